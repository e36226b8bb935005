"""Many units: search among those that matter, and show that the others cannot help.

With prices on units, the relaxation over all of them shows which units a better path might use. The
search is among the most promising ones; then prices are taken from it, and units that turn out to
matter are added (column generation with few rounds).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Path, PathProblem
from potluck.placement.solver.budget import DEFAULT_ELEMENTS, Budget
from potluck.placement.solver.minimize import BestPath, knapsack_prices, minimize
from potluck.placement.solver.relaxation import relax, through
from potluck.placement.solver.table import TOLERANCE, Stage, Table, make_table

WIDE = 128
"""With more kinds, not all are searched: a step of prices takes 10 ms there."""
_SEARCHED, _JOINING, _ROUNDS = 80, 40, 2


def minimize_any(table: Table, budget: Budget) -> BestPath:
    """Return the result of ``minimize``; with many kinds, with a bound over all of them."""
    if table.num_kinds <= WIDE:
        return minimize(table, budget)
    relaxation = relax(table, knapsack_prices(table))
    bound = max(relaxation.bound_seconds, relax(table, np.zeros(table.num_kinds)).bound_seconds)
    chosen = np.sort(np.argsort(through(table, relaxation), kind="stable")[:_SEARCHED])
    best_path = minimize(table.only(chosen), budget)
    for round_index in range(_ROUNDS):
        prices = relaxation.prices.copy()
        if best_path.prices is not None:
            prices[chosen] = best_path.prices
        relaxation = relax(table, prices)
        bound = max(bound, relaxation.bound_seconds)
        room = best_path.seconds + float((prices * table.counts).sum())
        values = through(table, relaxation)
        values[chosen] = np.inf
        joining = np.flatnonzero(values < room)
        if not len(joining):
            bound = max(bound, best_path.bound_seconds)
            break
        if best_path.seconds <= bound * (1 + 1e-9) or round_index == _ROUNDS - 1 or budget.is_spent:
            break
        joining = joining[np.argsort(values[joining], kind="stable")[:_JOINING]]
        start = tuple(int(chosen[kind]) for kind in best_path.order)
        chosen = np.sort(np.append(chosen, joining))
        place = {int(kind): index for index, kind in enumerate(chosen)}
        best_path = minimize(
            table.only(chosen),
            budget,
            start=tuple(place[kind] for kind in start),
            prices=prices[chosen],
        )
    stages = tuple(Stage(int(chosen[each.kind]), each.start, each.end) for each in best_path.stages)
    return replace(best_path, stages=stages, bound_seconds=min(bound, best_path.seconds))


def promising_units(problem: PathProblem, among: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return at most this many of these units: the fastest for what they hold, near the best one.

    This is an estimate: items count as equal, and every unit as having the shortest link to
    another.
    """
    if len(among) <= most:
        return among
    num_items = problem.num_items
    room = problem.usable_bytes[among] - problem.stage_bytes[among]
    capacity = np.minimum(room / np.maximum(problem.item_bytes[among].mean(axis=1), 1), num_items)
    useful = capacity > 0
    among, capacity = among[useful], capacity[useful]
    if len(among) <= most:
        return among
    hops = problem.hop_seconds[np.ix_(among, among)].copy()
    np.fill_diagonal(hops, np.inf)
    seconds = problem.item_seconds[among].mean(axis=1) * capacity + problem.stage_seconds[among]
    shortest = hops.min(axis=0)
    worth = seconds + np.where(np.isfinite(shortest), shortest, 0.0)
    by_speed = np.argsort(worth / capacity, kind="stable")
    filled = np.searchsorted(np.cumsum(capacity[by_speed]), num_items)
    margin = by_speed[min(int(filled), len(by_speed) - 1)]
    reduced = seconds - worth[margin] / capacity[margin] * capacity
    hub = int(np.argmin(reduced + problem.hop_seconds[-1, among]))
    np.fill_diagonal(hops, 0.0)
    reduced = reduced + (hops[hub] + hops[:, hub]) / 2
    return np.sort(among[np.argsort(reduced, kind="stable")[:most]])


def shortest_path(
    problem: PathProblem,
    *,
    limit_seconds: float = math.inf,
    num_elements: int = DEFAULT_ELEMENTS,
) -> Path | None:
    """Return the path with the least ``path_seconds``, or None if no path was found.

    No stage takes longer than ``limit_seconds``, and no link is occupied for longer. Work is
    bounded by ``num_elements`` rather than by time, so the same problem has the same answer.
    """
    table = make_table(problem)
    if math.isfinite(limit_seconds):
        table = table.limited(limit_seconds)
    best_path = minimize_any(table, Budget(num_elements))
    if not best_path.stages:
        return None
    cuts = table.cuts(best_path.stages)
    seconds = problem.path_seconds(cuts)
    is_best = best_path.bound_seconds >= seconds * (1 - TOLERANCE)
    bound = seconds if is_best else best_path.bound_seconds
    return Path(cuts=cuts, seconds=seconds, bound_seconds=bound)
