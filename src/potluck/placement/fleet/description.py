"""A fleet as described by its file: machines, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.types.hardware import ProbeReport
from potluck.types.unit import ChosenUnit


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
