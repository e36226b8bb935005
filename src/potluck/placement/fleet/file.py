"""Read a fleet file (TOML) strictly: anything unknown is an error that names it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from potluck.engines.backends import BACKENDS, abilities_of
from potluck.errors import UsageError
from potluck.placement.fleet.keys import (
    FLEET,
    LINKS,
    MACHINE,
    MAX_MACHINES,
    PAIR,
    UNIT,
    DescribedUnit,
    Fleet,
    LinkFigures,
    LinkPair,
    Machine,
    ManualDescription,
    OperationRates,
    Probed,
)
from potluck.types.hardware import ProbeReport
from potluck.types.held_stage import MAX_BYTES
from potluck.types.quantities import format_few
from potluck.types.ranges import MAX_THREADS
from potluck.types.unit import NATIVE, ChosenUnit, Role

_MAX_FILE_BYTES = 4 * 2**20
_DEFAULT_CORES = 4
_UNIT_KEYS = tuple(key.name for key in UNIT.keys)
_OF_HAND = ("memory", "cores", *_UNIT_KEYS, "units")

_MAX_PROBE_BYTES = 16 * 2**20

_SCHEMA = "potluck.probe/1"

_HINT = (
    "probe is the file with the output of potluck probe --measure --json on the machine, "
    "relative to the fleet file"
)


def read_fleet(path: Path) -> Fleet:
    """Return the fleet that a file describes. Raise ``UsageError``, which names the problem."""
    return fleet_of(_document(path), path)


def fleet_of(values: Mapping[str, object], path: Path) -> Fleet:
    """Return the fleet that the values of a file describe. Raises the same errors as
    ``read_fleet``.

    Files that it names are read.
    """
    document = FLEET.read(values, str(path))
    machines = tuple(
        _machine(values, f"{path}: machines[{index}]", path.parent)
        for index, values in enumerate(document["machines"])
    )
    if not machines:
        raise UsageError(f"{path}: machines is empty", hint="describe one or more [[machines]]")
    _require_distinct(path, machines)
    names = [machine.name for machine in machines]
    coordinator = document.get("coordinator", names[0])
    _require_known(coordinator, names, f"{path}: coordinator")
    links = LINKS.read(document.get("links", {}), f"{path}: links")
    return Fleet(
        machines=machines,
        coordinator=coordinator,
        links=_figures(links),
        pairs=tuple(
            _pair(values, names, f"{path}: links.pairs[{index}]")
            for index, values in enumerate(links.get("pairs", ()))
        ),
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise UsageError(f"{path}: the file is larger than {_MAX_FILE_BYTES} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", hint="--fleet needs a TOML file"
        ) from error
    except (ValueError, RecursionError) as error:  # includes TOMLDecodeError and invalid UTF-8
        raise UsageError(f"{path}: {error}", hint="a fleet is described in TOML") from error


def _machine(values: object, where: str, folder: Path) -> Machine:
    if isinstance(values, Mapping) and isinstance(values.get("name"), str):
        where = f"{where} ({values['name']})"
    read = MACHINE.read(values, where)
    return Machine(
        name=read["name"],
        place=where,
        count=read.get("count", 1),
        usable_bytes=read.get("usable_memory"),
        description=(_probed(read, where, folder) if "probe" in read else _described(read, where)),
    )


def _probed(read: Mapping[str, Any], where: str, folder: Path) -> Probed:
    if doubled := [name for name in _OF_HAND if name in read]:
        raise UsageError(
            f"{where}: {doubled[0]} cannot be used together with probe",
            hint="the probe report already has it; omit one of them",
        )
    return _read_probe_file(folder / read["probe"], where)


def _described(read: Mapping[str, Any], where: str) -> ManualDescription:
    if "memory" not in read:
        raise UsageError(
            f"{where}: either probe or memory is required",
            hint='describe the machine with probe = "FILE", or with memory = "32 GiB" and '
            "further keys",
        )
    if read.get("usable_memory", 0) > read["memory"]:
        raise UsageError(
            f"{where}: usable_memory is more than memory",
            hint="usable_memory is the machine's memory that stages may use",
        )
    if "units" not in read:
        units: tuple[DescribedUnit, ...] = (_unit(read, where),)
    else:
        if doubled := [name for name in _UNIT_KEYS if name in read]:
            raise UsageError(
                f"{where}: {doubled[0]} cannot be used together with units",
                hint=f"move it into one of the units: a unit has the keys {', '.join(_UNIT_KEYS)}",
            )
        places = [f"{where}.units[{index}]" for index in range(len(read["units"]))]
        units = tuple(
            _unit(UNIT.read(values, place), place)
            for values, place in zip(read["units"], places, strict=True)
        )
        if not units:
            raise UsageError(f"{where}: units is empty", hint="omit it, or describe a unit")
        if sum(abilities_of(unit.backend).is_built_in for unit in units) > 1:
            raise UsageError(
                f"{where}: two units have the backend {NATIVE}",
                hint=f"a machine has one CPU, and {NATIVE} is also the default backend",
            )
    return ManualDescription(
        memory_bytes=read["memory"], num_cores=read.get("cores", _DEFAULT_CORES), units=units
    )


def _unit(read: Mapping[str, Any], where: str) -> DescribedUnit:
    backend = read.get("backend", NATIVE)
    known = [spec.name for spec in BACKENDS if spec.engine]
    if backend not in known:
        raise UsageError(
            f"{where}: unknown backend {backend}", hint=f"known backends: {', '.join(known)}"
        )
    if abilities_of(backend).is_built_in and "device_memory" in read:
        raise UsageError(
            f"{where}: device_memory is set, but the backend {NATIVE} uses the machine's memory",
            hint="set the backend of the GPU, for example tinygrad:CUDA",
        )
    return DescribedUnit(
        backend=backend,
        device_bytes=read.get("device_memory"),
        read_bytes_per_second=read.get("read_bandwidth"),
        operations=read.get("operations", OperationRates()),
    )


def _require_distinct(path: Path, machines: tuple[Machine, ...]) -> None:
    """Raise ``UsageError`` for a name of two machines, and for too many machines."""
    if (total := sum(machine.count for machine in machines)) > MAX_MACHINES:
        raise UsageError(
            f"{path}: {total} machines exceed the limit of {MAX_MACHINES}",
            hint="count is the number of machines of a kind; lower one",
        )
    places: dict[str, str] = {}
    for machine in machines:
        for name in {machine.name, *machine.names}:
            if name in places:
                raise UsageError(
                    f"{machine.place}: {name} is also the name of a machine of {places[name]}",
                    hint="machines must have different names",
                )
            places[name] = machine.place.rpartition(": ")[2]


def _figures(read: Mapping[str, Any]) -> LinkFigures:
    return LinkFigures(latency_seconds=read.get("latency"), bytes_per_second=read.get("bandwidth"))


def _pair(values: object, names: list[str], where: str) -> LinkPair:
    read = PAIR.read(values, where)
    for end in ("from", "to"):
        _require_known(read[end], names, f"{where}: {end}")
    if "latency" not in read and "bandwidth" not in read:
        raise UsageError(
            f"{where}: either latency or bandwidth is required",
            hint="set what differs for this link, or omit the pair",
        )
    return LinkPair(
        source=read["from"],
        target=read["to"],
        is_one_way=read.get("one_way", False),
        figures=_figures(read),
    )


def _require_known(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise UsageError(
            f'{where} = "{name}" is not a machine of this fleet',
            hint=f"machines are {format_few(names, 8)}",
        )


class _Units(msgspec.Struct):
    schema: str
    units: tuple[ChosenUnit, ...]


def _read_probe_file(path: Path, where: str) -> Probed:
    """Return the machine that a file describes. ``where`` is the location of the reference to the
    file.

    Raise ``UsageError`` if it cannot be read, is not such a document, or has no working unit.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_PROBE_BYTES + 1)
        if len(data) > _MAX_PROBE_BYTES:
            raise ValueError(f"the file is larger than {_MAX_PROBE_BYTES} bytes")
        kind = msgspec.json.decode(data, type=_Units)
        if kind.schema != _SCHEMA:
            raise ValueError(f"its schema is {kind.schema}, not {_SCHEMA}")
        read = Probed(report=msgspec.json.decode(data, type=ProbeReport), units=kind.units)
        _require_consistent(read)
    except OSError as error:
        raise UsageError(
            f"{where}: probe: {path}: {error.strerror or error}", hint=_HINT
        ) from error
    except (ValueError, RecursionError) as error:  # includes DecodeError and invalid UTF-8
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
