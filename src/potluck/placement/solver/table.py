"""A path problem prepared for searches: kinds of units, and the seconds of every possible stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from potluck.placement.cuts import Cut
from potluck.placement.path import Floats, PathProblem

TOLERANCE = 1e-9
"""Limits are respected up to this relative error: sums of floats depend on their order."""


DEFAULT_ELEMENTS = 800_000_000
"""About a second of one core: ``benchmarks/solver.py`` shows 0.6 to 1.5 elements per ns."""


class Budget:
    """Elements that may still be computed. Not thread-safe; one search has one budget."""

    def __init__(self, num_elements: int = DEFAULT_ELEMENTS) -> None:
        self._left = num_elements

    def spend(self, num_elements: int) -> None:
        """Count elements that are about to be computed."""
        self._left -= num_elements

    @property
    def left(self) -> int:
        """Return how many are left; 0 if more were spent than available."""
        return max(0, self._left)

    @property
    def is_spent(self) -> bool:
        """Return whether nothing is left."""
        return self._left <= 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Kinds of units instead of units. ``K`` kinds, ``I`` items. The arrays must not be modified.

    Units are of one kind if exchanging them changes nothing: they are equal in memory, in seconds,
    and in their links with every other unit.

    - ``members``: the units of each kind; ``counts`` ``[K]`` says how many.
    - ``seconds`` ``[K, I, I + 1]``: of a stage ``[start, end)``; infinite if the unit cannot hold
      it, or if it would take longer than allowed.
    - ``hops`` ``[K, K]`` between stages (infinite within a kind of one unit), ``entry`` ``[K]``
      from the source and ``exit`` ``[K]`` to the sink.
    """

    members: tuple[tuple[int, ...], ...]
    counts: NDArray[np.int64]
    seconds: Floats
    hops: Floats
    entry: Floats
    exit: Floats
    busy_hops: Floats
    busy_entry: Floats
    busy_exit: Floats

    @property
    def num_kinds(self) -> int:
        """Return ``K``."""
        return len(self.members)

    @property
    def num_items(self) -> int:
        """Return ``I``."""
        return int(self.seconds.shape[1])

    def limited(self, limit_seconds: float) -> Table:
        """Return the table without stages and links that are occupied longer than this."""
        limit = limit_seconds * (1 + TOLERANCE)

        def kept(values: Floats, busy: Floats) -> Floats:
            return np.where(busy <= limit, values, np.inf)

        return replace(
            self,
            seconds=kept(self.seconds, self.seconds),
            hops=kept(self.hops, self.busy_hops),
            entry=kept(self.entry, self.busy_entry),
            exit=kept(self.exit, self.busy_exit),
        )

    def only(self, kinds: NDArray[np.intp]) -> Table:
        """Return the table with only these kinds."""
        return Table(
            members=tuple(self.members[kind] for kind in kinds),
            counts=self.counts[kinds],
            seconds=self.seconds[kinds],
            hops=self.hops[np.ix_(kinds, kinds)],
            entry=self.entry[kinds],
            exit=self.exit[kinds],
            busy_hops=self.busy_hops[np.ix_(kinds, kinds)],
            busy_entry=self.busy_entry[kinds],
            busy_exit=self.busy_exit[kinds],
        )

    def cuts(self, stages: tuple[Stage, ...]) -> tuple[Cut, ...]:
        """Return the stages on units: members of a kind are used in their order."""
        free = {kind: iter(self.members[kind]) for kind in {stage.kind for stage in stages}}
        return tuple(
            Cut(unit=next(free[stage.kind]), start=stage.start, end=stage.end) for stage in stages
        )

    def path_seconds(self, stages: tuple[Stage, ...]) -> float:
        """Return how long a step takes through these stages."""
        if not stages:
            return float("inf")
        total = float(self.entry[stages[0].kind]) + float(self.exit[stages[-1].kind])
        total += sum(float(self.seconds[each.kind, each.start, each.end]) for each in stages)
        return total + sum(float(self.hops[a.kind, b.kind]) for a, b in pairwise(stages))

    def bottleneck_seconds(self, stages: tuple[Stage, ...]) -> float:
        """Return how long a step occupies the bottleneck: the busiest stage or link."""
        links = [float(self.busy_entry[stages[0].kind]), float(self.busy_exit[stages[-1].kind])]
        links += [float(self.busy_hops[a.kind, b.kind]) for a, b in pairwise(stages)]
        return max(*links, *(float(self.seconds[s.kind, s.start, s.end]) for s in stages))


@dataclass(frozen=True, slots=True)
class Stage:
    """The items ``[start, end)`` on a unit of a kind."""

    kind: int
    start: int
    end: int


def of_kinds(stages: Iterable[Stage], kinds: NDArray[np.intp]) -> tuple[Stage, ...]:
    """Return stages on a table of only these ``kinds`` as stages on the whole table."""
    return tuple(replace(stage, kind=int(kinds[stage.kind])) for stage in stages)


def make_table(problem: PathProblem, units: NDArray[np.intp] | None = None) -> Table:
    """Return the table of a problem, or of only these units of it.

    Units that cannot hold any stage are left out. Takes ``8 * K * I * (I + 1)`` bytes.
    """
    chosen = np.arange(problem.num_units) if units is None else units
    holding = chosen[can_hold_any(problem, chosen)]
    members = kinds_of(problem, holding)
    first = np.array([units[0] for units in members], dtype=np.intp)
    busy_hops, hops = (
        matrix[np.ix_(first, first)] for matrix in (problem.busy_seconds, problem.hop_seconds)
    )
    for kind, same in enumerate(members):
        several = len(same) > 1
        hops[kind, kind] = problem.hop_seconds[same[0], same[1]] if several else np.inf
        busy_hops[kind, kind] = problem.busy_seconds[same[0], same[1]] if several else np.inf
    return Table(
        members=members,
        counts=np.array([len(same) for same in members], dtype=np.int64),
        seconds=stage_seconds(problem, first),
        hops=hops,
        entry=problem.hop_seconds[-1, first],
        exit=problem.hop_seconds[first, -1],
        busy_hops=busy_hops,
        busy_entry=problem.busy_seconds[-1, first],
        busy_exit=problem.busy_seconds[first, -1],
    )


def stage_seconds(problem: PathProblem, units: NDArray[np.intp]) -> Floats:
    """Return the seconds of every stage on these units, infinite where it is impossible.

    The shape is ``[len(units), I, I + 1]``: by unit, start and end.
    """
    num_items = problem.num_items
    starts = np.zeros((len(units), 1))
    ends = np.cumsum(problem.item_seconds[units], axis=1)
    so_far = np.concatenate([starts, ends], axis=1)
    seconds = np.full((len(units), num_items, num_items + 1), np.inf)
    for start in range(num_items):
        of_start = so_far[:, start + 1 :] - so_far[:, start : start + 1]
        of_start += problem.stage_seconds[units][:, None]
        fits = stage_fits(problem, units, start)
        seconds[:, start, start + 1 :] = np.where(fits, of_start, np.inf)
    no_cuts = sorted(problem.no_cuts)
    seconds[:, no_cuts, :] = np.inf
    seconds[:, :, no_cuts] = np.inf
    return seconds


def stage_fits(problem: PathProblem, units: NDArray[np.intp], start: int) -> NDArray[np.bool_]:
    """Return whether a stage from ``start`` to each later end fits: ``[len(units), I - start]``."""
    last = problem.num_items
    num_bytes = np.cumsum(problem.item_bytes[units, start:], axis=1)
    num_bytes += problem.stage_bytes[units][:, None]
    if start == 0:
        num_bytes[:, -1] -= problem.shared_bytes[units]
        if last > 1:
            num_bytes[:, 0] = problem.lone_bytes[units, 0]
    elif start == last - 1:
        num_bytes[:, 0] = problem.lone_bytes[units, 1]
    return np.less_equal(num_bytes, problem.usable_bytes[units][:, None])


def can_hold_any(problem: PathProblem, units: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which of these units have room for a stage of at least one item."""
    single = problem.item_bytes[units] + problem.stage_bytes[units][:, None]
    if problem.num_items > 1:
        single[:, 0] = np.minimum(single[:, 0], problem.lone_bytes[units, 0])
        single[:, -1] = np.minimum(single[:, -1], problem.lone_bytes[units, 1])
    else:
        single[:, 0] -= problem.shared_bytes[units]
    room = (single <= problem.usable_bytes[units][:, None]).any(axis=1)
    seconds = problem.item_seconds[units].sum(axis=1) + problem.stage_seconds[units]
    return np.asarray(room & np.isfinite(seconds), dtype=np.bool_)


def kinds_of(problem: PathProblem, units: NDArray[np.intp]) -> tuple[tuple[int, ...], ...]:
    """Return the units grouped by kind, in the order of each kind's first unit.

    Exchangeability is transitive, so comparing with one unit of a kind suffices.
    """
    ends = np.append(units, problem.num_units)
    links = [
        matrix[np.ix_(ends, ends)].copy() for matrix in (problem.hop_seconds, problem.busy_seconds)
    ]
    for matrix in links:
        np.fill_diagonal(matrix, 0.0)
    kinds: list[list[int]] = []
    by_row: dict[bytes, list[int]] = defaultdict(list)
    for index, unit in enumerate(units):
        alike = by_row[_row_of(problem, int(unit), index, links)]
        for kind in alike:
            if _exchangeable(links, kinds[kind][0], index):
                kinds[kind].append(index)
                break
        else:
            alike.append(len(kinds))
            kinds.append([index])
    return tuple(tuple(int(units[index]) for index in kind) for kind in kinds)


def _row_of(problem: PathProblem, unit: int, index: int, links: list[Floats]) -> bytes:
    """Return bytes that are equal for two units of one kind."""
    rows = [
        problem.usable_bytes[unit],
        problem.item_bytes[unit],
        problem.stage_bytes[unit],
        problem.shared_bytes[unit],
        problem.lone_bytes[unit],
        problem.item_seconds[unit],
        problem.stage_seconds[unit],
    ]
    for matrix in links:
        rows += [np.sort(matrix[index]), np.sort(matrix[:, index])]
    return b"".join(np.asarray(row).tobytes() for row in rows)


def _exchangeable(links: list[Floats], one: int, other: int) -> bool:
    """Return whether exchanging two units leaves every link unchanged."""
    for matrix in links:
        row, column = matrix[other].copy(), matrix[:, other].copy()
        row[[one, other]] = row[[other, one]]
        column[[one, other]] = column[[other, one]]
        if not (np.array_equal(matrix[one], row) and np.array_equal(matrix[:, one], column)):
            return False
    return True
