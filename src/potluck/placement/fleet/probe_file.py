"""Read the output of ``potluck probe --json`` from a machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from potluck.errors import UsageError
from potluck.placement.fleet.description import Probed
from potluck.types.hardware import ProbeReport
from potluck.types.held_stage import MAX_BYTES
from potluck.types.ranges import MAX_THREADS
from potluck.types.unit import ChosenUnit, Role

_MAX_FILE_BYTES = 16 * 2**20
_SCHEMA = "potluck.probe/1"
_HINT = (
    "probe is the file with the output of potluck probe --measure --json on the machine, "
    "relative to the fleet file"
)


class _Units(msgspec.Struct):
    schema: str
    units: tuple[ChosenUnit, ...]


def read_probe_file(path: Path, where: str) -> Probed:
    """Return the machine that a file describes. ``where`` is the location of the reference to the
    file.

    Raise ``UsageError`` if it cannot be read, is not such a document, or has no working unit.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{where}: probe: {path}: {error.strerror or error}", hint=_HINT
        ) from error
    try:
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"the file is larger than {_MAX_FILE_BYTES} bytes")
        kind = msgspec.json.decode(data, type=_Units)
        if kind.schema != _SCHEMA:
            raise ValueError(f"its schema is {kind.schema}, not {_SCHEMA}")
        read = Probed(report=msgspec.json.decode(data, type=ProbeReport), units=kind.units)
        _require_consistent(read)
    except ValueError as error:  # includes DecodeError and invalid UTF-8
        raise UsageError(f"{where}: probe: {path}: {error}", hint=_HINT) from error
    return read


def _require_consistent(probed: Probed) -> None:
    devices = {device.device_id for device in probed.report.devices}
    trials = {trial.unit_id for trial in probed.report.trials}
    for unit in probed.units:
        if unit.device_id not in devices or unit.unit_id not in trials:
            raise ValueError(f"it does not describe the unit {unit.unit_id}")
    memory = probed.report.memory
    own = (device.own_free_bytes for device in probed.report.devices)
    sizes = [memory.total_bytes, memory.free_bytes, memory.usable.bytes, *own]
    if not all(size is None or 0 <= size <= MAX_BYTES for size in sizes):
        raise ValueError("it has more memory than any machine, or less than none")
    if not 1 <= probed.report.cpu.num_usable_cores <= MAX_THREADS:
        raise ValueError(f"{probed.report.cpu.num_usable_cores} usable cores are not possible")
    if not any(unit.role in (Role.SERVES, Role.RESERVE) for unit in probed.units):
        raise ValueError("no unit of this machine works")
