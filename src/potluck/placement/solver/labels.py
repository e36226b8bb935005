"""The best path by dynamic programming over (used kinds, last kind, next item), with bounds.

A state is kept only while its seconds, plus the least that must follow according to a relaxation,
are below the best known answer. Only the kinds in ``tracked`` are prevented from being used too
often. With all kinds tracked the answer is exact; with fewer it is a bound, which is exact if its
path uses no kind too often ("decremental state space relaxation"). Kinds that have a price are
always tracked: then states of equal usage have paid equal prices, and the best by seconds is the
best with prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Floats
from potluck.placement.solver.table import Budget, Stage, Table

Ints = NDArray[np.int64]

USAGE_BITS = 62
_MOST_STATES, _MOST_CHOICES = 1 << 14, 1 << 22
"""At one item; these keep the memory of a search below 100 MB."""
_CHOICE_ELEMENTS = 8
"""Operations needed to choose the next stage, measured relative to those of the other searches."""
_PAIRS = 1 << 18
"""States of one kind that are compared with each other at one item: enough to remove most copies,
and few enough that comparing costs no more than extending."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The result for one choice of prices. Seconds include prices.

    - ``bound_seconds``: a lower bound for all answers; infinite if there is none.
    - ``stages``: the best path, which may use a kind too often.
    - ``ahead`` ``[K, I]``: the least from a stage of a kind at a first item to the sink;
      ``leaving`` ``[K, I + 1]``: from the end of a stage of a kind before an item.

    This is the Lagrangian relaxation of "each unit has at most one stage". With the prices ``p``,
    the least seconds plus prices, minus ``p`` times the number of units of each kind, never exceeds
    the seconds of any answer. Prices are raised for kinds that are used too often (subgradient
    steps).
    """

    prices: Floats
    bound_seconds: float
    stages: tuple[Stage, ...]
    ahead: Floats
    leaving: Floats

    def uses(self) -> Floats:
        """Return how many stages each kind has."""
        kinds = [stage.kind for stage in self.stages]
        return np.bincount(kinds, minlength=len(self.prices)).astype(np.float64)


def relax(table: Table, prices: Floats) -> Relaxation:
    """Return the relaxation with these prices. ``K * I * (I / 2 + K)`` elements."""
    num_kinds, num_items = table.num_kinds, table.num_items
    ahead = np.full((num_kinds, num_items), np.inf)
    leaving = np.full((num_kinds, num_items + 1), np.inf)
    leaving[:, -1] = table.exit
    for start in range(num_items - 1, -1, -1):
        ahead[:, start] = (table.seconds[:, start, start + 1 :] + leaving[:, start + 1 :]).min(
            axis=1
        )
        ahead[:, start] += prices
        leaving[:, start] = (table.hops + ahead[:, start]).min(axis=1)
    entering = table.entry + ahead[:, 0]
    least = float(entering.min(initial=np.inf))
    if not np.isfinite(least):
        return Relaxation(prices, np.inf, (), ahead, leaving)
    stages = _stages_of(table, int(entering.argmin()), ahead, leaving)
    return Relaxation(prices, least - float((prices * table.counts).sum()), stages, ahead, leaving)


def through_bounds(table: Table, relaxation: Relaxation) -> Floats:
    """Return the least seconds plus prices of a path that uses each kind: ``[K]``.

    A kind that exceeds an answer by more than the prices of all units cannot be part of a better
    one.
    """
    num_kinds, num_items = table.num_kinds, table.num_items
    left = np.full((num_kinds, num_items + 1), np.inf)
    least = np.full(num_kinds, np.inf)
    for start in range(num_items):
        entering = (left[:, start, None] + table.hops).min(axis=0) if start else table.entry
        np.minimum(least, entering + relaxation.ahead[:, start], out=least)
        entering = (entering + relaxation.prices)[:, None]
        to_ends = entering + table.seconds[:, start, start + 1 :]
        np.minimum(left[:, start + 1 :], to_ends, out=left[:, start + 1 :])
    return least


def _stages_of(table: Table, kind: int, ahead: Floats, leaving: Floats) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    start = 0
    while True:
        onward = table.seconds[kind, start, start + 1 :] + leaving[kind, start + 1 :]
        end = start + 1 + int(onward.argmin())
        stages.append(Stage(kind, start, end))
        if end == table.num_items:
            return tuple(stages)
        kind = int((table.hops[kind] + ahead[:, end]).argmin())
        start = end


@dataclass(frozen=True, slots=True)
class Usage:
    """How often each tracked kind is used, packed into one integer: a bit field for each of them.

    Each field has a spare top bit, so that subtracting one usage from another does not borrow from
    a neighbour. ``one`` is 0 for a kind that is not tracked.
    """

    one: Ints
    full: Ints
    field: Ints
    spare: int


def usage_of(counts: Ints, tracked: frozenset[int], num_items: int) -> Usage | None:
    """Return the fields; None if those of the tracked kinds do not fit in an integer."""
    one, full, field = (np.zeros(len(counts), dtype=np.int64) for _ in range(3))
    spare = shift = 0
    for kind in sorted(tracked):
        most = int(counts[kind])
        if most >= num_items:
            continue
        width = most.bit_length() + 1
        if shift + width > USAGE_BITS:
            return None
        one[kind] = 1 << shift
        full[kind] = most << shift
        field[kind] = ((1 << width) - 1) << shift
        spare |= 1 << (shift + width - 1)
        shift += width
    return Usage(one, full, field, spare)


class _States(NamedTuple):
    """Paths so far: what they used, where they end, their seconds with prices, and prices alone."""

    usage: Ints
    kind: Ints
    seconds: Floats
    prices: Floats
    entry: Ints


def search(
    table: Table, relaxation: Relaxation, below: float, tracked: frozenset[int], budget: Budget
) -> tuple[float, tuple[Stage, ...]] | None:
    """Return the seconds and the stages of the best path that takes less than ``below``.

    There are no stages if there is no such path. Return None if the search exceeds the limits:
    costs are limited by the budget, by 62 bits for a usage, and by the states at one item.
    """
    num_items = table.num_items
    priced = frozenset(np.flatnonzero(relaxation.prices > 0).tolist())
    usage = usage_of(table.counts, tracked | priced, num_items)
    if usage is None:
        return None
    limit = below + float((relaxation.prices * table.counts).sum())
    waiting: list[list[_States]] = [[] for _ in range(num_items + 1)]
    entries = _Entries()
    for start in range(num_items):
        budget.spend(table.num_kinds)
        entered = (
            _enter(table, relaxation, usage, limit, waiting[start], start, budget)
            if start
            else _enter_first(table, relaxation, usage, limit)
        )
        waiting[start].clear()
        if entered is None:
            return None
        if not len(entered.kind):
            continue
        states = _undominated(entered, usage, budget)
        if len(states.kind) > _MOST_STATES:
            return None
        ids = entries.add(states, start)
        budget.spend(len(ids) * (num_items - start))
        if budget.is_spent:
            return None
        _extend(table, relaxation, limit, states, ids, start, waiting)
    return _finish(table, waiting[-1], entries, below)


class _Entries:
    """The starts of stages, for reconstructing the path from its last stage."""

    def __init__(self) -> None:
        self._num = 0
        self._kind: list[Ints] = []
        self._before: list[Ints] = []
        self._start: list[Ints] = []

    def add(self, states: _States, start: int) -> Ints:
        num = len(states.kind)
        self._kind.append(states.kind)
        self._before.append(states.entry)
        self._start.append(np.full(num, start, dtype=np.int64))
        self._num += num
        return np.arange(self._num - num, self._num, dtype=np.int64)

    def stages(self, entry: int, end: int) -> tuple[Stage, ...]:
        kind, before, start = map(np.concatenate, (self._kind, self._before, self._start))
        stages: list[Stage] = []
        while entry >= 0:
            stages.append(Stage(int(kind[entry]), int(start[entry]), end))
            end, entry = int(start[entry]), int(before[entry])
        return tuple(reversed(stages))


def _enter_first(table: Table, relaxation: Relaxation, usage: Usage, limit: float) -> _States:
    kinds = np.flatnonzero(table.entry + relaxation.ahead[:, 0] < limit)
    prices = relaxation.prices[kinds]
    return _States(
        usage=usage.one[kinds],
        kind=kinds,
        seconds=table.entry[kinds] + prices,
        prices=prices,
        entry=np.full(len(kinds), -1, dtype=np.int64),
    )


def _enter(
    table: Table,
    relaxation: Relaxation,
    usage: Usage,
    limit: float,
    waiting: list[_States],
    start: int,
    budget: Budget,
) -> _States | None:
    """Return the states in which the next stage's kind is chosen: the best of each usage."""
    if not waiting:
        return _no_states()
    states = _best_of_each(_joined(waiting))
    budget.spend(len(states.kind) * table.num_kinds * _CHOICE_ELEMENTS)
    if budget.is_spent or len(states.kind) * table.num_kinds > _MOST_CHOICES:
        return None
    arriving = states.seconds[:, None] + table.hops[states.kind]
    possible = arriving + relaxation.ahead[:, start] < limit
    possible &= (states.usage[:, None] & usage.field) < np.where(usage.one, usage.full, 1)
    before, kind = np.nonzero(possible)
    if not len(kind):
        return _no_states()
    prices = relaxation.prices[kind]
    found = _States(
        usage=states.usage[before] + usage.one[kind],
        kind=kind,
        seconds=arriving[before, kind] + prices,
        prices=states.prices[before] + prices,
        entry=states.entry[before],
    )
    return _best_of_each(found)


def _best_of_each(states: _States) -> _States:
    """Keep the fastest of the states with the same usage and the same last kind."""
    order = np.lexsort((states.seconds, states.usage, states.kind))
    same = (np.diff(states.usage[order]) == 0) & (np.diff(states.kind[order]) == 0)
    return _some(states, order[np.append(True, ~same)])


def _undominated(states: _States, usage: Usage, budget: Budget) -> _States:
    """Drop states of a kind for which another one was no slower and used no more."""
    spare = usage.spare
    if not spare:
        return states
    kept = np.ones(len(states.kind), dtype=np.bool_)
    true_seconds = states.seconds - states.prices
    for kind in np.unique(states.kind):
        same = np.flatnonzero(states.kind == kind)
        if len(same) < 2:
            continue
        same = same[np.argsort(true_seconds[same], kind="stable")]
        best = same[: max(1, _PAIRS // len(same))]
        budget.spend(len(best) * len(same))
        of_best, of_same = states.usage[best], states.usage[same]
        within = (((of_same[None, :] | spare) - of_best[:, None]) & spare) == spare
        earlier = np.arange(len(best))[:, None] < np.arange(len(same))[None, :]
        kept[same[(within & earlier).any(axis=0)]] = False
    return _some(states, np.flatnonzero(kept))


def _extend(
    table: Table,
    relaxation: Relaxation,
    limit: float,
    states: _States,
    ids: Ints,
    start: int,
    waiting: list[list[_States]],
) -> None:
    """Let every state end its stage before every possible item."""
    seconds = states.seconds[:, None] + table.seconds[states.kind, start, start + 1 :]
    possible = seconds + relaxation.leaving[states.kind, start + 1 :] < limit
    offset, index = np.nonzero(possible.T)
    bounds = np.searchsorted(offset, np.arange(table.num_items - start + 1))
    for step in np.unique(offset):
        chosen = index[bounds[step] : bounds[step + 1]]
        waiting[start + 1 + step].append(
            _States(
                usage=states.usage[chosen],
                kind=states.kind[chosen],
                seconds=seconds[chosen, step],
                prices=states.prices[chosen],
                entry=ids[chosen],
            )
        )


def _finish(
    table: Table, waiting: list[_States], entries: _Entries, below: float
) -> tuple[float, tuple[Stage, ...]]:
    if not waiting:
        return below, ()
    states = _joined(waiting)
    seconds = states.seconds - states.prices + table.exit[states.kind]
    best = int(seconds.argmin())
    if not seconds[best] < below:
        return below, ()
    return float(seconds[best]), entries.stages(int(states.entry[best]), table.num_items)


def _joined(parts: list[_States]) -> _States:
    if len(parts) == 1:
        return parts[0]
    return _States._make(map(np.concatenate, zip(*parts, strict=True)))


def _some(states: _States, chosen: NDArray[np.intp]) -> _States:
    return _States._make(each[chosen] for each in states)


def _no_states() -> _States:
    empty = np.zeros(0, dtype=np.int64)
    return _States(usage=empty, kind=empty, seconds=np.zeros(0), prices=np.zeros(0), entry=empty)
