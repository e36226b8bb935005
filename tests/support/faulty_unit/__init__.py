"""A GPU that is played: the native engine behind the name of a backend that can fail in use.

What it does wrong is read from the file that ``FAULTY_UNIT`` names, in the trial's children and in
the workers alike: one word of ``Misbehaviour``, or nothing.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path

from potluck.types.hardware import (
    BackendSpec,
    Device,
    DeviceKind,
    DeviceMemory,
    LayerReport,
)

FILE = "FAULTY_UNIT"

DEVICE_ID = "of-faulty"
BACKEND = "played"
UNIT = f"{DEVICE_ID}/{BACKEND}"

SPEC = BackendSpec(
    name=BACKEND,
    module="support.faulty_unit.trial",
    engine="support.faulty_unit.engine",
    kinds=frozenset({DeviceKind.GPU}),
)

LAYER_REPORT = LayerReport(
    layer="faulty",
    devices=(
        Device(
            device_id=DEVICE_ID,
            kind=DeviceKind.GPU,
            make="a test",
            name="Played GPU",
            reported_name="Played GPU",
            chip="played",
            driver="",
            device_files=(),
            memory=DeviceMemory(
                total_bytes=4 << 30, free_bytes=4 << 30, is_shared=False, source="a test"
            ),
        ),
    ),
)


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
