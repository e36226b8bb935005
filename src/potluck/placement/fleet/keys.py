"""The keys of a fleet file and what they mean, for reading, error messages and the guide's table.

A table with an unknown key, or with an invalid value, is refused with an error that names the file,
the table and the key, and a hint with the meaning of the key.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import UsageError
from potluck.types.hardware import ProbeReport
from potluck.types.held_stage import MAX_BYTES
from potluck.types.ranges import MAX_THREADS, shown
from potluck.types.unit import ChosenUnit

MAX_MACHINES = 4096
"""The maximum for all entries together; four times what the solver is designed for."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"

_SIZE = re.compile(rf"{_NUMBER} *([kmgt]?)(?:i?b)?", re.IGNORECASE)

_BYTE_RATE = re.compile(rf"{_NUMBER} *([kMGT]?)(B|bit)/s")

_OPERATION_RATE = re.compile(rf"{_NUMBER} *([kMGT]?) *(?:op/s|ops/s|/s|FLOPS|FLOP/s|OPS)")

_TIME = re.compile(rf"{_NUMBER} *(us|µs|ms|s)")

_BINARY: Mapping[str, int] = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_DECIMAL: Mapping[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

_SECONDS: Mapping[str, float] = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}

_MAX_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRates:
    """Operations per second by data type; None if not given."""

    f32: float | None = None
    f16: float | None = None
    int8: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedUnit:
    """A unit as described by its user.

    ``device_bytes`` is memory of its own; None for a unit that uses the machine's.
    """

    backend: str
    device_bytes: int | None = None
    read_bytes_per_second: float | None = None
    operations: OperationRates = field(default_factory=OperationRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualDescription:
    """A machine as described by its user: total memory, cores, and its units."""

    memory_bytes: int
    num_cores: int
    units: tuple[DescribedUnit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A machine as ``potluck probe --json`` described it, and its units."""

    report: ProbeReport
    units: tuple[ChosenUnit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """``count`` machines of one kind.

    ``usable_bytes`` is what stages may use of the memory of each, None to use the description's own
    value. ``place`` is where the file describes it, for messages and sources.
    """

    name: str
    place: str
    count: int
    usable_bytes: int | None
    description: ManualDescription | Probed

    @property
    def names(self) -> tuple[str, ...]:
        """Return one name for each machine."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{index}" for index in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """A link's one-way latency and its bandwidth; None if not given."""

    latency_seconds: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPair:
    """The links from machines to others, by the names of two entries; also back if not one-way."""

    source: str
    target: str
    is_one_way: bool
    figures: LinkFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Machines, the links between any two of them, and links that differ.

    ``coordinator`` is the entry whose first machine coordinates the deployment.
    """

    machines: tuple[Machine, ...]
    coordinator: str
    links: LinkFigures = field(default_factory=LinkFigures)
    pairs: tuple[LinkPair, ...] = ()


def parse_size(value: object) -> int:
    """Return the bytes of ``16 GiB``, ``900M`` or ``4096``; units are powers of 1024.

    Raise ``ValueError`` if it is not a size above 0, or exceeds that of any machine.
    """
    match = _match(_SIZE, value)
    size = int(_positive(float(match[1]) * _BINARY[match[2].lower()], least=1))
    if size > MAX_BYTES:
        raise ValueError("it is more than any machine has")
    return size


def parse_byte_rate(value: object) -> float:
    """Return the bytes per second of ``25 GB/s`` or ``1 Gbit/s``; units are powers of 1000.

    Raise ``ValueError`` if it is not a rate above 0.
    """
    match = _match(_BYTE_RATE, value)
    per_unit = 1.0 if match[3] == "B" else 1 / 8
    return _positive(float(match[1]) * _DECIMAL[match[2]] * per_unit)


def parse_operation_rate(value: object) -> float:
    """Return the operations per second of ``300 Gop/s`` or ``35 TFLOPS``.

    Raise ``ValueError`` if it is no rate above 0.
    """
    match = _match(_OPERATION_RATE, value)
    return _positive(float(match[1]) * _DECIMAL[match[2]])


def parse_seconds(value: object) -> float:
    """Return the seconds of ``0.3 ms``, ``250 us`` or ``1 s``. Raise ``ValueError`` otherwise."""
    match = _match(_TIME, value)
    return float(match[1]) * _SECONDS[match[2]]


def _match(pattern: re.Pattern[str], value: object) -> re.Match[str]:
    text = value.strip() if isinstance(value, str) else ""
    match = pattern.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    if match is None:
        raise ValueError("it has another form")
    return match


def _positive(number: float, *, least: float = 0.0) -> float:
    if not math.isfinite(number) or number <= 0 or number < least:
        raise ValueError("it is not above 0")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """``meaning`` is a sentence without its full stop, and ``example`` a value in TOML.

    ``parse`` raises ``ValueError`` for an invalid value.
    """

    name: str
    meaning: str
    example: str
    parse: Callable[[object], Any]
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A kind of table of the file, in ``words``, and its keys."""

    words: str
    keys: tuple[Key, ...]

    def read(self, values: object, where: str) -> dict[str, Any]:
        """Return the parsed values by key. ``where`` names the file and the table in errors.

        Raise ``UsageError`` for a missing or unknown key, or an invalid value.
        """
        if not isinstance(values, Mapping):
            raise UsageError(
                f"{where} is {shown(values)}, but must be a table", hint=self._all_keys()
            )
        known = {key.name: key for key in self.keys}
        read = {}
        for name, value in values.items():
            if name not in known:
                raise UsageError(f"{where}: unknown key {name}", hint=self._about_unknown(name))
            key = known[name]
            try:
                read[name] = key.parse(value)
            except ValueError:
                raise UsageError(
                    f"{where}: {name} = {shown(value)} is not valid", hint=_about(key)
                ) from None
        for key in self.keys:
            if key.is_required and key.name not in values:
                raise UsageError(f"{where}: {key.name} is missing", hint=_about(key))
        return read

    def _about_unknown(self, name: str) -> str:
        close = difflib.get_close_matches(name, [key.name for key in self.keys], n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        return guess + self._all_keys()

    def _all_keys(self) -> str:
        return f"{self.words} has the keys {', '.join(key.name for key in self.keys)}"


def _about(key: Key) -> str:
    return f"{key.name} is {key.meaning}, as in {key.name} = {key.example}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError
    return value


def _whole(most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise ValueError
        return value

    return parse


def _instance_of(kind: type[Any]) -> Callable[[object], object]:
    def parse(value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError
        return value

    return parse


def _operations(value: object) -> OperationRates:
    """Return one rate for all data types, or a table of rates."""
    if isinstance(value, str):
        rate = parse_operation_rate(value)
        return OperationRates(f32=rate, f16=rate, int8=rate)
    if not isinstance(value, Mapping) or not value or not value.keys() <= {"f32", "f16", "int8"}:
        raise ValueError
    return OperationRates(**{name: parse_operation_rate(rate) for name, rate in value.items()})


_UNIT_KEYS = (
    Key(
        name="backend",
        meaning="the backend of the unit (native for a CPU, tinygrad:CUDA, tinygrad:AMD, "
        "tinygrad:QCOM or tinygrad:CL for a GPU)",
        example='"native"',
        parse=_text,
    ),
    Key(
        name="device_memory",
        meaning="the free memory of the unit itself; omit it if the unit uses the machine's memory",
        example='"24 GiB"',
        parse=parse_size,
    ),
    Key(
        name="read_bandwidth",
        meaning="the unit's memory bandwidth from its data sheet (plans assume less)",
        example='"25 GB/s"',
        parse=parse_byte_rate,
    ),
    Key(
        name="operations",
        meaning="the unit's operations per second from its data sheet (a multiply-add counts as "
        "two; plans assume less), or a table of these by f32, f16 and int8",
        example='"300 Gop/s"',
        parse=_operations,
    ),
)

FLEET = Table(
    words="a fleet",
    keys=(
        Key(
            name="machines",
            meaning="the list of machines, a table [[machines]] for each kind",
            example='[{name = "desktop", memory = "32 GiB"}]',
            parse=_instance_of(list),
            is_required=True,
        ),
        Key(
            name="coordinator",
            meaning="the name of the machine that coordinates (by default the first one)",
            example='"desktop"',
            parse=_name,
        ),
        Key(
            name="links",
            meaning="the table of the network's figures",
            example='{latency = "0.3 ms", bandwidth = "1 Gbit/s"}',
            parse=_instance_of(Mapping),
        ),
    ),
)

MACHINE = Table(
    words="a machine",
    keys=(
        Key(
            name="name",
            meaning="the name in the plan: letters, digits, dots, dashes and underscores",
            example='"desktop"',
            parse=_name,
            is_required=True,
        ),
        Key(
            name="count",
            meaning="the number of machines of this kind",
            example="4",
            parse=_whole(MAX_MACHINES),
        ),
        Key(
            name="probe",
            meaning="the file with the output of potluck probe --measure --json on the machine, "
            "relative to the fleet file",
            example='"desktop.json"',
            parse=_text,
        ),
        Key(
            name="memory",
            meaning="the machine's total memory",
            example='"32 GiB"',
            parse=parse_size,
        ),
        Key(
            name="usable_memory",
            meaning="the machine's memory that stages may use",
            example='"28 GiB"',
            parse=parse_size,
        ),
        Key(
            name="cores",
            meaning="the number of threads that compute on the machine's CPU",
            example="8",
            parse=_whole(MAX_THREADS),
        ),
        *_UNIT_KEYS,
        Key(
            name="units",
            meaning="the list of units of a machine that has several, each with the keys backend, "
            "device_memory, read_bandwidth and operations",
            example='[{backend = "native"}, {backend = "tinygrad:CUDA", device_memory = "24 GiB"}]',
            parse=_instance_of(list),
        ),
    ),
)

UNIT = Table(words="a unit", keys=_UNIT_KEYS)

_LINK_KEYS = (
    Key(
        name="latency",
        meaning="the one-way latency of a small message",
        example='"0.3 ms"',
        parse=parse_seconds,
    ),
    Key(
        name="bandwidth",
        meaning="the bandwidth for large messages",
        example='"1 Gbit/s"',
        parse=parse_byte_rate,
    ),
)

LINKS = Table(
    words="the table links",
    keys=(
        *_LINK_KEYS,
        Key(
            name="pairs",
            meaning="the list of links that differ, each with the keys from, to, latency, "
            "bandwidth and one_way",
            example='[{from = "desktop", to = "board", latency = "3 ms"}]',
            parse=_instance_of(list),
        ),
    ),
)

PAIR = Table(
    words="a pair of machines",
    keys=(
        Key(
            name="from",
            meaning="the name of the machines at one end",
            example='"desktop"',
            parse=_name,
            is_required=True,
        ),
        Key(
            name="to",
            meaning="the name of the machines at the other end",
            example='"board"',
            parse=_name,
            is_required=True,
        ),
        *_LINK_KEYS,
        Key(
            name="one_way",
            meaning="whether the figures apply in one direction only",
            example="true",
            parse=_instance_of(bool),
        ),
    ),
)
