"""The best cut along a given order of kinds, and the effect of one more unit at each place.

An order is a tuple of kinds; a kind occurs in it at most as often as it has units. Stages may skip
any of its places, so the best cut of an order is also the best over all of its subsequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Floats
from potluck.placement.solver.table import Stage, Table

Order = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The least seconds from the source along an order, by place.

    ``entering`` ``[M, I]``: at place ``m``, with a stage there that starts at an item;
    ``left`` ``[M, I + 1]``: with a stage there that ends before an item.
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
