"""The detectors of all vendors in the order in which they are reported, the CPU first."""

from __future__ import annotations

from potluck.probe.detector import Detector
from potluck.probe.detectors import adreno, amd, intel, mali, nvidia, opencl, other

DETECTORS: tuple[Detector, ...] = (
    nvidia.DETECTOR,
    amd.DETECTOR,
    intel.DETECTOR,
    mali.DETECTOR,
    adreno.DETECTOR,
    other.DETECTOR,
    opencl.DETECTOR,
)
