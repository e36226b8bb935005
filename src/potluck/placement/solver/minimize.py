"""The least seconds of a path over a table: bounds, starts, local search, then an exact search."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.placement.solver.budget import Budget
from potluck.placement.solver.labels import search
from potluck.placement.solver.orders import Order, best_cut, insertions
from potluck.placement.solver.relaxation import Relaxation, relax, through
from potluck.placement.solver.table import Stage, Table

NEGLIGIBLE = 1e-9
"""A gap of this relative size is rounding."""
_SMALL = 64


@dataclass(frozen=True, slots=True)
class Least:
    """The best path found, no stages if none was, and what no path below the limit is below."""

    seconds: float
    stages: tuple[Stage, ...]
    bound_seconds: float


def minimize(
    table: Table, budget: Budget, *, below: float = np.inf, start: tuple[Order, ...] = ()
) -> Least:
    """Return the best path that takes less than ``below``. ``start``: orders to begin with."""
    if not table.num_kinds:
        return Least(below, (), np.inf)
    relaxation = relax(table, np.zeros(table.num_kinds))
    if relaxation.bound_seconds >= below:
        return Least(below, (), relaxation.bound_seconds)
    incumbent = _Incumbent(table, budget, below)
    incumbent.try_stages(relaxation.stages)
    if _is_small(table):
        bound = _prove(table, relaxation, incumbent, budget)
        return Least(incumbent.seconds, incumbent.stages, min(bound, incumbent.seconds))
    if not incumbent.is_best(relaxation.bound_seconds):
        for order in (*start, *_starts(table, relaxation)):
            incumbent.try_order(order)
        incumbent.improve()
        relaxation = _raise_prices(table, relaxation, incumbent, budget)
    bound = _prove(table, relaxation, incumbent, budget)
    return Least(incumbent.seconds, incumbent.stages, min(bound, incumbent.seconds))


def _is_small(table: Table) -> bool:
    """Whether trying all usages costs less than looking for a good path first."""
    return bool(np.prod(np.minimum(table.counts, table.num_items) + 1.0) <= _SMALL)


class _Incumbent:
    """The best path so far."""

    def __init__(self, table: Table, budget: Budget, below: float) -> None:
        self._table, self._budget = table, budget
        self.seconds = below
        self.stages: tuple[Stage, ...] = ()

    def is_best(self, bound_seconds: float) -> bool:
        return self.seconds <= bound_seconds * (1 + NEGLIGIBLE)

    def try_stages(self, stages: tuple[Stage, ...]) -> bool:
        """Take stages that are better, unless they use a kind too often."""
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

    def improve(self) -> None:
        """Insert, replace and move stages until nothing of it helps."""
        while self.stages and not self._budget.is_spent:
            if not (self._insert() or self._move()):
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


_LONGEST_START = 128


def _starts(table: Table, relaxation: Relaxation) -> list[Order]:
    """Return orders of all units (or many), from the ends of the relaxed path."""
    ranked = np.argsort(through(table, relaxation), kind="stable")
    pool: list[int] = []
    for kind in ranked:
        pool += [int(kind)] * int(min(table.counts[kind], table.num_items))
    pool = pool[:_LONGEST_START]
    path = [stage.kind for stage in relaxation.stages]
    starts = [tuple(pool), tuple(reversed(pool))]
    for first, last in ((path[0], path[-1]), (path[-1], path[0])):
        between = list(pool)
        if first in between:
            between.remove(first)
        if last in between:
            between.remove(last)
            starts.append((first, *between, last))
    return starts


def _raise_prices(
    table: Table, relaxation: Relaxation, incumbent: _Incumbent, budget: Budget
) -> Relaxation:
    """Return the relaxation with the best bound that some subgradient steps find."""
    best, cost = relaxation, _cost(table)
    prices, current, scale = relaxation.prices, relaxation, 1.0
    stalled = 0
    for _ in range(60):
        if incumbent.is_best(best.bound_seconds) or budget.is_spent or not current.stages:
            break
        excess = current.uses() - table.counts
        excess[(prices <= 0) & (excess < 0)] = 0
        norm = float((excess * excess).sum())
        if norm == 0:
            break
        upper = incumbent.seconds if np.isfinite(incumbent.seconds) else best.bound_seconds * 1.2
        prices = np.maximum(
            0, prices + scale * max(upper - current.bound_seconds, 0) / norm * excess
        )
        budget.spend(cost)
        current = relax(table, prices)
        incumbent.try_stages(current.stages)
        if current.bound_seconds > best.bound_seconds:
            best, stalled = current, 0
        else:
            stalled += 1
            if stalled == 5:
                scale, stalled = scale / 2, 0
    return best


def _cost(table: Table) -> int:
    num_items = table.num_items
    return table.num_kinds * num_items * (num_items // 2 + table.num_kinds)


def _prove(table: Table, relaxation: Relaxation, incumbent: _Incumbent, budget: Budget) -> float:
    """Search what could be better than the incumbent; return what no path is below."""
    bound = relaxation.bound_seconds
    if incumbent.is_best(bound):
        return bound
    room = incumbent.seconds + float((relaxation.prices * table.counts).sum())
    kept = np.flatnonzero(through(table, relaxation) < room)
    smaller = table.only(kept)
    relaxation = relax(smaller, relaxation.prices[kept])
    tracked: frozenset[int] = frozenset()
    if len(kept) <= 8:
        tracked = frozenset(range(len(kept)))
    while True:
        found = search(smaller, relaxation, incumbent.seconds, tracked, budget)
        if found is None:
            return bound
        if not found.stages:
            return incumbent.seconds
        bound = max(bound, found.seconds)
        again = overused(smaller, found.stages)
        if not again:
            incumbent.try_stages(
                tuple(Stage(int(kept[each.kind]), each.start, each.end) for each in found.stages)
            )
            return bound
        tracked |= again
