"""Reads a fleet file (TOML), strictly: what it does not understand is an error that names it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.engines.backends import BACKENDS, abilities_of
from potluck.errors import UsageError
from potluck.fleet.description import (
    ByHand,
    DescribedUnit,
    Fleet,
    LinkFigures,
    LinkPair,
    Machine,
    OperationRates,
    Probed,
)
from potluck.fleet.keys import FLEET, LINKS, MACHINE, MAX_MACHINES, PAIR, UNIT
from potluck.fleet.probe_file import read_probe_file
from potluck.quantities import format_few
from potluck.types.unit import NATIVE

_MAX_FILE_BYTES = 4 * 2**20
_DEFAULT_CORES = 4
_UNIT_KEYS = tuple(key.name for key in UNIT.keys)
_OF_HAND = ("memory", "cores", *_UNIT_KEYS, "units")


def read_fleet(path: Path) -> Fleet:
    """Return the fleet that a file describes. Raise ``UsageError``, which names what is wrong."""
    return fleet_of(_document(path), path)


def fleet_of(values: Mapping[str, object], path: Path) -> Fleet:
    """Return the fleet that the values of a file describe. Raise as ``read_fleet``.

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
            raise UsageError(f"{path}: it has more than {_MAX_FILE_BYTES} bytes")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", hint="--fleet names a file in TOML"
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
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
            f"{where}: {doubled[0]} is given beside probe",
            hint="the probe's report says it; leave one of the two out",
        )
    return read_probe_file(folder / read["probe"], where)


def _described(read: Mapping[str, Any], where: str) -> ByHand:
    if "memory" not in read:
        raise UsageError(
            f"{where}: neither probe nor memory is there",
            hint='describe the machine by probe = "FILE", or by memory = "32 GiB" and more keys',
        )
    if read.get("usable_memory", 0) > read["memory"]:
        raise UsageError(
            f"{where}: usable_memory is more than memory",
            hint="usable_memory is what stages may use of the machine's memory",
        )
    if "units" not in read:
        units: tuple[DescribedUnit, ...] = (_unit(read, where),)
    else:
        if doubled := [name for name in _UNIT_KEYS if name in read]:
            raise UsageError(
                f"{where}: {doubled[0]} is given beside units",
                hint=f"say it in one of the units: a unit has the keys {', '.join(_UNIT_KEYS)}",
            )
        places = [f"{where}.units[{index}]" for index in range(len(read["units"]))]
        units = tuple(
            _unit(UNIT.read(values, place), place)
            for values, place in zip(read["units"], places, strict=True)
        )
        if not units:
            raise UsageError(f"{where}: units is empty", hint="leave it out, or describe a unit")
        if sum(abilities_of(unit.backend).is_built_in for unit in units) > 1:
            raise UsageError(
                f"{where}: two units have the backend {NATIVE}",
                hint=f"a machine has one CPU, and {NATIVE} is also what backend is by default",
            )
    return ByHand(
        memory_bytes=read["memory"], num_cores=read.get("cores", _DEFAULT_CORES), units=units
    )


def _unit(read: Mapping[str, Any], where: str) -> DescribedUnit:
    backend = read.get("backend", NATIVE)
    known = [spec.name for spec in BACKENDS if spec.engine]
    if backend not in known:
        raise UsageError(
            f"{where}: there is no backend {backend}", hint=f"backends are {', '.join(known)}"
        )
    if abilities_of(backend).is_built_in and "device_memory" in read:
        raise UsageError(
            f"{where}: device_memory is given, and the backend {NATIVE} uses the machine's memory",
            hint="name the backend of the GPU, such as tinygrad:CUDA",
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
            f"{path}: {total} machines are more than {MAX_MACHINES}",
            hint="count is how many machines of a kind there are; lower one",
        )
    places: dict[str, str] = {}
    for machine in machines:
        for name in {machine.name, *machine.names}:
            if name in places:
                raise UsageError(
                    f"{machine.place}: {name} is the name of a machine of {places[name]} too",
                    hint="name is what the plan calls the machine: give it another",
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
            f"{where}: neither latency nor bandwidth is there",
            hint="say in what this link differs, or leave the pair out",
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
            f'{where} = "{name}" is no machine of this fleet',
            hint=f"machines are {format_few(names, 8)}",
        )
