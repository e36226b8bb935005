"""A GPU that is played: the native engine behind the name of a backend that can fail in use.

What it does wrong is read from the file that ``FAULTY_UNIT`` names, in the trial's children and in
the workers alike: one word of ``Misbehaviour``, or nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import os
from pathlib import Path

from potluck.engines.backends import BACKENDS
from potluck.types.backend import ALL_FEATURES, BackendAbilities, BackendSpec, DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory
from potluck.types.tensor import TensorFormat
from potluck.types.unit import Interface

FILE = "FAULTY_UNIT"

ICD = "FAULTY_UNIT_ICD"
"""Names an OpenCL driver's file (``support.machines.icds``): the GPU is then tinygrad's, on it."""

DEVICE_ID = "of-faulty"
UNIT = f"{DEVICE_ID}/played"
CL_UNIT = f"{DEVICE_ID}/tinygrad:CL"

ABILITIES = BackendAbilities(features=ALL_FEATURES, formats=frozenset(TensorFormat))

_PLAYED = BackendSpec(
    name="played",
    module="support.machines.faulty_unit.trial",
    engine="support.machines.faulty_unit.engine",
    kinds=frozenset({DeviceKind.GPU}),
    abilities=ABILITIES,
)


def spec() -> BackendSpec:
    """The backend of the GPU. Its trial is always the played one: tinygrad's takes a minute."""
    if ICD not in os.environ:
        return _PLAYED
    (real,) = (each for each in BACKENDS if each.name == "tinygrad:CL")
    return dataclasses.replace(real, module=_PLAYED.module)


def detector_report() -> DetectorReport:
    """The GPU."""
    icd = os.environ.get(ICD)
    interfaces = () if icd is None else (Interface(api="opencl", address=f"{icd}#0:0"),)
    memory = DeviceMemory(total_bytes=4 << 30, free_bytes=4 << 30, is_shared=False, source="a test")
    device = Device(
        device_id=DEVICE_ID,
        kind=DeviceKind.GPU,
        make="a test",
        name="Played GPU",
        reported_name="Played GPU",
        chip="played",
        driver="",
        device_files=(),
        memory=memory,
        interfaces=interfaces,
    )
    return DetectorReport(detector="faulty", devices=(device,))


class Misbehaviour(enum.Enum):
    """What the unit does wrong."""

    NO_MEMORY = "no memory for weights"
    HANG = "hangs in a step"
    HANG_LOADING = "hangs while a tensor is copied"
    HOG = "hangs in a step, and no other thread of the process runs"
    NAN = "gives NaN"
    DRIVER = "loses its context in a step"
    CRASH = "crashes in a step"
    EXIT = "ends the process in a step"
    LIE = "fails its self-test"


def misbehaviour() -> Misbehaviour | None:
    """What it does wrong now."""
    word = Path(os.environ[FILE]).read_text(encoding="ascii")
    return Misbehaviour(word) if word else None
