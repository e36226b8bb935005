"""The fleets of ``benchmarks/placement.py``: mismatched machines, near and far.

Cores are shares of two: those on one core add up to at most one, so that machines which compute at
the same time do not disturb one another. Agents without a limit of memory may hold the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.cluster.throttled_fleet import Distance, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    """A fleet, the model that it serves, and the objective."""

    name: str
    machines: tuple[Machine, ...]
    distances: tuple[Distance, ...] = ()
    model: str = "1B-Q8_0"
    num_streams: int = 1
    """One stream is deployed for latency, several for throughput."""


def _machine(cores: float, core: int, megabytes: int = 3000) -> Machine:
    return Machine(cores=cores, core=core, memory=f"{megabytes}M")


def _apart(num_machines: int, milliseconds: float, **others: float) -> tuple[Distance, ...]:
    """Return the same distance between all pairs of machines."""
    return tuple(
        _between(one, other, milliseconds, **others) for one, other in _pairs(num_machines)
    )


def _pairs(num_machines: int) -> Iterable[tuple[int, int]]:
    return ((a, b) for b in range(num_machines) for a in range(b))


def _between(
    one: int, other: int, milliseconds: float, *, megabytes_per_second: float = 0.0
) -> Distance:
    return Distance(
        one=one,
        other=other,
        delay_seconds=milliseconds / 1000,
        bytes_per_second=megabytes_per_second * 1e6,
    )


FLEETS: tuple[FleetCase, ...] = (
    FleetCase(name="a tenth beside", machines=(_machine(0.8, 0, 1500), _machine(0.1, 1))),
    FleetCase(name="equals", machines=(_machine(0.6, 0), _machine(0.6, 1))),
    FleetCase(name="two halves", machines=(_machine(0.8, 0, 750), _machine(0.4, 1, 750))),
    FleetCase(
        name="three sizes",
        machines=(_machine(0.8, 0, 500), _machine(0.5, 1, 600), _machine(0.2, 1, 900)),
    ),
    FleetCase(
        name="two halves, 5 ms",
        machines=(_machine(0.8, 0, 750), _machine(0.4, 1, 750)),
        distances=_apart(2, 5),
    ),
    FleetCase(
        name="a slow coordinator",
        machines=(_machine(0.2, 0), _machine(0.8, 1)),
        distances=_apart(2, 5),
    ),
    FleetCase(
        name="near or far",
        machines=(_machine(0.5, 0, 750), _machine(0.4, 1, 800), _machine(0.5, 1, 800)),
        distances=(_between(0, 1, 1), _between(0, 2, 60), _between(1, 2, 60)),
    ),
    FleetCase(
        name="four",
        machines=(
            _machine(0.8, 0, 420),
            _machine(0.4, 1, 500),
            _machine(0.3, 1, 500),
            _machine(0.2, 1, 900),
        ),
        distances=_apart(4, 2),
    ),
    FleetCase(
        name="a slow line",
        machines=(_machine(0.8, 0, 750), _machine(0.6, 1, 900), _machine(0.2, 1, 900)),
        distances=(
            _between(0, 1, 20, megabytes_per_second=0.2),
            _between(0, 2, 1),
            _between(1, 2, 20, megabytes_per_second=0.2),
        ),
    ),
    FleetCase(
        name="eight streams, equals", machines=(_machine(0.7, 0), _machine(0.7, 1)), num_streams=8
    ),
    FleetCase(
        name="eight streams, one half",
        machines=(_machine(0.7, 0), _machine(0.35, 1)),
        num_streams=8,
    ),
    FleetCase(
        name="eight streams, three, 3 ms",
        machines=(_machine(0.7, 0), _machine(0.5, 1), _machine(0.3, 1)),
        distances=_apart(3, 3),
        num_streams=8,
    ),
    FleetCase(
        name="four streams, 15 ms",
        machines=(_machine(0.6, 0, 900), _machine(0.6, 1, 900)),
        distances=_apart(2, 15),
        num_streams=4,
    ),
    FleetCase(
        name="small model, a tenth beside",
        machines=(_machine(0.8, 0), _machine(0.1, 1, 6000)),
        model="100M-BF16",
    ),
)
