"""A bound: the least seconds if a kind could be used any number of times, at a price for each use.

This is the Lagrangian relaxation of "each unit has at most one stage". With the prices ``p``, the
least seconds plus prices, minus ``p`` times the number of units of each kind, never exceeds the
seconds of any answer. Prices are raised for kinds that are used too often (subgradient steps).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potluck.placement.path import Floats
from potluck.placement.solver.table import Stage, Table


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The result for one choice of prices. Seconds include prices.

    - ``bound_seconds``: a lower bound for all answers; infinite if there is none.
    - ``stages``: the best path, which may use a kind too often.
    - ``ahead`` ``[K, I]``: the least from a stage of a kind at a first item to the sink;
      ``leaving`` ``[K, I + 1]``: from the end of a stage of a kind before an item.
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


def through(table: Table, relaxation: Relaxation) -> Floats:
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
