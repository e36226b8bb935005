"""The fastest path over a table: bounds, initial paths, local search, then an exact search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Floats
from potluck.placement.solver.labels import Relaxation, relax, search, through_bounds
from potluck.placement.solver.table import Budget, Stage, Table, of_kinds

NEGLIGIBLE = 1e-9
"""A gap of this relative size is a rounding error."""
_SMALL, _ALL_TRACKED = 64, 8
"""Up to this many usages of all kinds, states are searched immediately; up to this many kinds, all
are tracked from the start, as fewer would save nothing."""
_LONGEST_ORDER = 128
_MOST_STEPS, _FIRST_SCALE, _PATIENCE, _MOMENTUM = 150, 0.5, 12, 0.5
"""Parameters of the subgradient steps, found by trying 25 settings on four fleets of 50 units."""


Order = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The least seconds from the source along an order, by place.

    ``entering`` ``[M, I]``: at place ``m``, with a stage there that starts at an item;
    ``left`` ``[M, I + 1]``: with a stage there that ends before an item.

    An order is a tuple of kinds; a kind occurs in it at most as often as it has units. Stages may
    skip any of its places, so the best cut of an order is also the best over all of its
    subsequences.
    """

    entering: Floats
    left: Floats


def forward(table: Table, order: Order) -> Forward:
    """Return the least seconds from the source to each place. ``M * I * (I + M)`` elements."""
    num_places, num_items = len(order), table.num_items
    entering = np.full((num_places, num_items), np.inf)
    left = np.full((num_places, num_items + 1), np.inf)
    kinds = np.array(order, dtype=np.intp)
    for place, kind in enumerate(order):
        if place:
            arriving = left[:place, :-1] + table.hops[kinds[:place], kind][:, None]
            entering[place] = arriving.min(axis=0)
        entering[place, 0] = table.entry[kind]
        left[place] = (entering[place][:, None] + table.seconds[kind]).min(axis=0)
    return Forward(entering, left)


def backward(table: Table, order: Order) -> Floats:
    """Return the least seconds to the sink ``[M, I]``, from a stage at a place and a first item."""
    num_places, num_items = len(order), table.num_items
    ahead = np.full((num_places, num_items), np.inf)
    leaving = np.empty(num_items + 1)
    kinds = np.array(order, dtype=np.intp)
    for place in range(num_places - 1, -1, -1):
        kind = order[place]
        leaving[:] = np.inf
        if place + 1 < num_places:
            onward = ahead[place + 1 :] + table.hops[kind, kinds[place + 1 :]][:, None]
            leaving[:-1] = onward.min(axis=0)
        leaving[-1] = table.exit[kind]
        ahead[place] = (table.seconds[kind] + leaving).min(axis=1)
    return ahead


def best_cut(table: Table, order: Order) -> tuple[float, tuple[Stage, ...]]:
    """Return the least seconds of the stages along an order, and the stages; none if nothing
    fits.
    """
    if not order:
        return np.inf, ()
    ways = forward(table, order)
    finishing = ways.left[:, -1] + table.exit[list(order)]
    place = int(finishing.argmin())
    seconds = float(finishing[place])
    if not np.isfinite(seconds):
        return np.inf, ()
    stages: list[Stage] = []
    end = table.num_items
    while True:
        kind = order[place]
        start = int((ways.entering[place, :end] + table.seconds[kind, :end, end]).argmin())
        stages.append(Stage(kind, start, end))
        if start == 0:
            return seconds, tuple(reversed(stages))
        before = np.array(order[:place], dtype=np.intp)
        place = int((ways.left[:place, start] + table.hops[before, kind]).argmin())
        end = start


def insertions(table: Table, order: Order, kinds: NDArray[np.intp]) -> Floats:
    """Return the least seconds with each of these kinds at each place: ``[M + 1, len(kinds)]``.

    At place ``m`` a stage of that kind comes before the order's place ``m``. Costs ``M * I * I``
    elements for each kind.
    """
    ways, ahead = forward(table, order), backward(table, order)
    num_places, num_items = len(order), table.num_items
    seconds = table.seconds[kinds]
    leaving = np.full((num_places + 1, len(kinds), num_items + 1), np.inf)
    for place in range(num_places - 1, -1, -1):
        onward = ahead[place] + table.hops[kinds, order[place]][:, None]
        np.minimum(leaving[place + 1, :, :-1], onward, out=leaving[place, :, :-1])
    leaving[:, :, -1] = table.exit[kinds]
    entering = np.full((len(kinds), num_items), np.inf)
    entering[:, 0] = table.entry[kinds]
    values = np.empty((num_places + 1, len(kinds)))
    for place in range(num_places + 1):
        if place:
            arriving = ways.left[place - 1, :-1] + table.hops[order[place - 1], kinds][:, None]
            np.minimum(entering[:, 1:], arriving[:, 1:], out=entering[:, 1:])
        onward = (seconds + leaving[place][:, None, :]).min(axis=2)
        values[place] = (entering + onward).min(axis=1)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class BestPath:
    """The best path found (no stages if none was), and a lower bound for paths below the limit.

    ``prices`` are those of the best bound; they are a good start for a similar table.
    """

    seconds: float
    stages: tuple[Stage, ...]
    bound_seconds: float
    prices: Floats | None = None

    @property
    def order(self) -> Order:
        """The kinds of the stages."""
        return tuple(stage.kind for stage in self.stages)


def minimize(
    table: Table,
    budget: Budget,
    *,
    below: float = np.inf,
    start: Order = (),
    prices: Floats | None = None,
) -> BestPath:
    """Return the best path that takes less than ``below``.

    ``start`` and ``prices`` may be those of a similar table's answer, which saves work.
    """
    if not table.num_kinds:
        return BestPath(below, (), np.inf)
    relaxation = relax(table, np.zeros(table.num_kinds))
    budget.spend(_cost(table))
    incumbent = _Incumbent(table, budget, below)
    incumbent.try_stages(relaxation.stages)
    if incumbent.is_best(relaxation.bound_seconds):
        return incumbent.best_path(relaxation, relaxation.bound_seconds)
    if not _is_small(table):
        incumbent.pool = _ranked(table, relaxation)
        incumbent.try_around(relaxation.stages)
        incumbent.try_order(incumbent.pool)
        incumbent.try_order(tuple(reversed(incumbent.pool)))
        if start:
            incumbent.try_order(start)
        relaxation = _raise_prices(table, relaxation, incumbent, budget, prices)
        if not incumbent.is_best(relaxation.bound_seconds):
            incumbent.improve(moves=False)
    bound = _prove(table, relaxation, incumbent, budget)
    if not incumbent.is_best(bound):
        incumbent.improve(moves=True)
    return incumbent.best_path(relaxation, bound)


def _is_small(table: Table) -> bool:
    """Return whether trying all usages costs less than first searching for a good path."""
    return bool(np.prod(np.minimum(table.counts, table.num_items) + 1.0) <= _SMALL)


class _Incumbent:
    """The best path so far."""

    def __init__(self, table: Table, budget: Budget, below: float) -> None:
        self._table, self._budget = table, budget
        self.seconds = below
        self.stages: tuple[Stage, ...] = ()
        self.pool: Order = ()

    def best_path(self, relaxation: Relaxation, bound_seconds: float) -> BestPath:
        bound = min(bound_seconds, self.seconds) if self.stages else bound_seconds
        return BestPath(self.seconds, self.stages, bound, relaxation.prices)

    def is_best(self, bound_seconds: float) -> bool:
        return self.seconds <= bound_seconds * (1 + NEGLIGIBLE)

    def try_stages(self, stages: tuple[Stage, ...]) -> bool:
        """Accept stages that are better, unless they use a kind too often."""
        if overused(self._table, stages):
            return False
        seconds = self._table.path_seconds(stages)
        if seconds >= self.seconds:
            return False
        self.seconds, self.stages = seconds, stages
        return True

    def try_order(self, order: Order) -> bool:
        num_items = self._table.num_items
        self._budget.spend(len(order) * num_items * (num_items + len(order)))
        _, stages = best_cut(self._table, order)
        return bool(stages) and self.try_stages(stages)

    @property
    def order(self) -> Order:
        return tuple(stage.kind for stage in self.stages)

    def try_around(self, stages: tuple[Stage, ...]) -> None:
        """Try the order of stages that may use a kind too often, with other kinds in between."""
        path = [stage.kind for stage in stages]
        for sequence in (path, list(reversed(path))):
            left = self._table.counts.copy()
            kept: list[int] = []
            for kind in sequence:
                if left[kind] > 0:
                    left[kind] -= 1
                    kept.append(kind)
            if sequence is not path:
                kept.reverse()
            others: list[int] = []
            for kind in self.pool:
                if left[kind] > 0:
                    left[kind] -= 1
                    others.append(kind)
            if self.try_order((*kept[:-1], *others, *kept[-1:])) or kept == path:
                return

    def improve(self, *, moves: bool) -> None:
        """Insert and replace stages (and move them) until there is no improvement."""
        while self.stages and not self._budget.is_spent:
            if not (self._insert() or (moves and self._move())):
                return

    def _insert(self) -> bool:
        order, table = self.order, self._table
        used = np.bincount(order, minlength=table.num_kinds)
        kinds = np.flatnonzero(used < table.counts)
        return self._insert_any(order, kinds)

    def _move(self) -> bool:
        order = self.order
        for place in range(len(order)):
            rest = order[:place] + order[place + 1 :]
            kind = np.array([order[place]], dtype=np.intp)
            if self._insert_any(rest, kind):
                return True
        return False

    def _insert_any(self, order: Order, kinds: NDArray[np.intp]) -> bool:
        if not len(kinds) or self._budget.is_spent:
            return False
        num_items = self._table.num_items
        self._budget.spend((len(order) + 1) * len(kinds) * num_items * num_items)
        values = insertions(self._table, order, kinds)
        place, index = np.unravel_index(int(values.argmin()), values.shape)
        if not values[place, index] < self.seconds * (1 - NEGLIGIBLE):
            return False
        return self.try_order((*order[:place], int(kinds[index]), *order[place:]))


def overused(table: Table, stages: tuple[Stage, ...]) -> frozenset[int]:
    """Return the kinds that have more stages than units."""
    uses = Counter(stage.kind for stage in stages)
    return frozenset(kind for kind, num in uses.items() if num > table.counts[kind])


def _ranked(table: Table, relaxation: Relaxation) -> Order:
    """Return kinds, each as often as it has units, by the best path through each."""
    pool: list[int] = []
    for kind in np.argsort(through_bounds(table, relaxation), kind="stable"):
        pool += [int(kind)] * int(min(table.counts[kind], table.num_items))
    return tuple(pool[:_LONGEST_ORDER])


def _raise_prices(
    table: Table,
    relaxation: Relaxation,
    incumbent: _Incumbent,
    budget: Budget,
    start: Floats | None,
) -> Relaxation:
    """Return the relaxation with the best bound found by subgradient steps.

    The length of a step is Polyak's; a direction keeps a part of the previous one, which makes the
    bound rise several times faster on long pipelines.
    """
    best, cost = relaxation, _cost(table)
    current = relax(table, knapsack_prices(table) if start is None else start)
    direction = np.zeros(table.num_kinds)
    prices, scale, stalled = current.prices, _FIRST_SCALE, 0
    for _ in range(_MOST_STEPS if start is None else _MOST_STEPS // 3):
        if current.bound_seconds > best.bound_seconds:
            best, stalled = current, 0
            incumbent.try_around(current.stages)
        else:
            stalled += 1
            if stalled == _PATIENCE:
                scale, stalled, current, prices = scale / 2, 0, best, best.prices
                direction[:] = 0
        if incumbent.is_best(best.bound_seconds) or budget.is_spent or not current.stages:
            break
        direction = current.uses() - table.counts + _MOMENTUM * direction
        useful = np.where((prices <= 0) & (direction < 0), 0, direction)
        norm = float((useful * useful).sum())
        if norm == 0:
            break
        upper = incumbent.seconds if np.isfinite(incumbent.seconds) else best.bound_seconds * 1.2
        length = scale * max(upper - current.bound_seconds, 0) / norm
        prices = np.maximum(0, prices + length * useful)
        budget.spend(cost)
        current = relax(table, prices)
        incumbent.try_stages(current.stages)
    return best


def knapsack_prices(table: Table) -> Floats:
    """Return prices from a problem without order: units that are filled with items one by one.

    The fastest units are filled; the last one determines the value of an item, and a faster unit is
    worth the difference for each item that it holds.
    """
    num_items = table.num_items
    lengths = np.arange(num_items + 1)[None, :] - np.arange(num_items)[:, None]
    held = np.where(np.isfinite(table.seconds), lengths, 0).reshape(table.num_kinds, -1)
    longest = held.argmax(axis=1)
    rows = np.arange(table.num_kinds)
    capacity = np.maximum(held[rows, longest], 1)
    seconds = table.seconds.reshape(table.num_kinds, -1)[rows, longest]
    seconds = seconds + np.minimum(table.hops.min(axis=0), table.entry)
    usable = np.flatnonzero(np.isfinite(seconds))
    prices = np.zeros(table.num_kinds)
    if not len(usable):
        return prices
    by_speed = usable[np.argsort((seconds / capacity)[usable], kind="stable")]
    filled = np.cumsum((capacity * table.counts)[by_speed])
    margin = by_speed[min(int(np.searchsorted(filled, num_items)), len(by_speed) - 1)]
    worth = seconds[margin] / capacity[margin] * capacity
    prices[usable] = np.maximum(0, (worth - seconds)[usable])
    return prices


def _cost(table: Table) -> int:
    num_items = table.num_items
    return table.num_kinds * num_items * (num_items // 2 + table.num_kinds)


def _prove(table: Table, relaxation: Relaxation, incumbent: _Incumbent, budget: Budget) -> float:
    """Search for anything better than the incumbent; return a lower bound for all paths."""
    bound = relaxation.bound_seconds
    if incumbent.is_best(bound):
        return bound
    room = incumbent.seconds + float((relaxation.prices * table.counts).sum())
    kept = np.flatnonzero(through_bounds(table, relaxation) < room)
    smaller = table.only(kept)
    relaxation = relax(smaller, relaxation.prices[kept])
    tracked: frozenset[int] = frozenset()
    if len(kept) <= _ALL_TRACKED:
        tracked = frozenset(range(len(kept)))
    while True:
        found = search(smaller, relaxation, incumbent.seconds, tracked, budget)
        if found is None:
            return bound
        seconds, stages = found
        if not stages:
            return incumbent.seconds
        bound = max(bound, seconds)
        again = overused(smaller, stages)
        if not again:
            incumbent.try_stages(of_kinds(stages, kept))
            return bound
        tracked |= again
