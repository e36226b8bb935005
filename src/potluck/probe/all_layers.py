"""The layers of every make, in the order in which they are reported; the CPU's comes before all."""

from __future__ import annotations

from potluck.probe.layer import Layer
from potluck.probe.layers import adreno, amd, intel, mali, nvidia, opencl, other

LAYERS: tuple[Layer, ...] = (
    nvidia.LAYER,
    amd.LAYER,
    intel.LAYER,
    mali.LAYER,
    adreno.LAYER,
    other.LAYER,
    opencl.LAYER,
)
