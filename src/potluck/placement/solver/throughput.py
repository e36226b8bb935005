"""The path that serves several streams fastest, by bisection over paths with limited stages, and
several pipelines side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Floats, Path, PathProblem, ThroughputPath
from potluck.placement.solver.labels import relax, through_bounds
from potluck.placement.solver.minimize import BestPath, Order, knapsack_prices, minimize
from potluck.placement.solver.table import (
    DEFAULT_ELEMENTS,
    TOLERANCE,
    Budget,
    Table,
    make_table,
    of_kinds,
)

MOST_SIZES = 7
"""The maximum number of step sizes tried for each pipeline: all of them for up to 12 streams."""
_SMALLER, _NEAR = 1e-8, 1.02
"""The least relevant improvement of a period; how near bisection comes before the last steps."""
_SHARES, _MOST_POLISHED = 5, 100
"""A step of the bisection may spend this part (1/n) of what is left; there are seldom more than ten
last steps."""

WIDE = 128
"""With more kinds, not all are searched: a step of prices takes 10 ms there."""
_SEARCHED, _JOINING, _ROUNDS = 80, 40, 2

_CANDIDATES = 32
"""Units among which one of several pipelines is searched."""
_PIPELINE_PART = 16
"""The search for one of several pipelines gets this part (1/n) of the budget of a single one."""
_TOLERANCE = 0.01
"""The gap to its bound at which the search for one of several pipelines ends."""
_MOST_PIPELINES = 64
_SEARCHES = 70
"""The total number of searched pipelines: about 10 s."""

ProblemOf = Callable[[int], PathProblem]
"""The problem of steps with this many sequences. Units and items are the same in all of them, and
steps of more sequences take no less time."""


def minimize_any(table: Table, budget: Budget) -> BestPath:
    """Return the result of ``minimize``; with many kinds, with a bound over all of them.

    With prices on units, the relaxation over all of them shows which units a better path might use.
    The search is among the most promising ones; then prices are taken from it, and units that turn
    out to matter are added (column generation with few rounds).
    """
    if table.num_kinds <= WIDE:
        return minimize(table, budget)
    relaxation = relax(table, knapsack_prices(table))
    bound = max(relaxation.bound_seconds, relax(table, np.zeros(table.num_kinds)).bound_seconds)
    chosen = np.sort(np.argsort(through_bounds(table, relaxation), kind="stable")[:_SEARCHED])
    best_path = minimize(table.only(chosen), budget)
    for round_index in range(_ROUNDS):
        prices = relaxation.prices.copy()
        if best_path.prices is not None:
            prices[chosen] = best_path.prices
        relaxation = relax(table, prices)
        bound = max(bound, relaxation.bound_seconds)
        room = best_path.seconds + float((prices * table.counts).sum())
        values = through_bounds(table, relaxation)
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
    stages = of_kinds(best_path.stages, chosen)
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


def shortest_path(problem: PathProblem, *, num_elements: int = DEFAULT_ELEMENTS) -> Path | None:
    """Return the path with the least ``path_seconds``, or None if no path was found.

    Work is bounded by ``num_elements`` rather than by time, so the same problem has the same
    answer.
    """
    table = make_table(problem)
    best_path = minimize_any(table, Budget(num_elements))
    if not best_path.stages:
        return None
    cuts = table.cuts(best_path.stages)
    seconds = problem.path_seconds(cuts)
    is_best = best_path.bound_seconds >= seconds * (1 - TOLERANCE)
    bound = seconds if is_best else best_path.bound_seconds
    return Path(cuts=cuts, seconds=seconds, bound_seconds=bound)


def step_sizes(num_streams: int, num_units: int) -> list[tuple[int, int]]:
    """Return the useful numbers of sequences per step, each with the number of steps in flight.

    Of several numbers of steps of the same size, the least has the shortest period. More steps than
    one per stage and one in transit would only wait.
    """
    sizes = sorted({-(-num_streams // steps) for steps in range(1, num_streams + 1)})
    pairs = [(size, -(-num_streams // size)) for size in sizes]
    return [(size, steps) for size, steps in pairs if steps <= num_units + 1]


def spread_sizes(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the sizes, or some of them at about equal ratios if there are many."""
    if len(sizes) <= MOST_SIZES:
        return sizes
    wanted = np.geomspace(sizes[0][0], sizes[-1][0], MOST_SIZES)
    chosen = {min(sizes, key=lambda pair: abs(pair[0] - size)) for size in wanted}
    return sorted(chosen)


def best_throughput(
    problem_of: ProblemOf, num_streams: int, *, num_elements: int = DEFAULT_ELEMENTS
) -> ThroughputPath | None:
    """Return the path, and the steps in flight, with which all streams get a token soonest.

    With ``k`` steps in flight a token of a stream takes as long as a step takes from the source to
    the sink, or ``k`` times as long as it occupies the busiest stage or link, whichever is more.
    Return None if no path was found. Of many step sizes, ``MOST_SIZES`` are tried, and the bound
    applies to those. It is a bound over all units, although of more than ``WIDE`` of them only the
    most promising are searched.
    """
    num_units = problem_of(1).num_units
    sizes = spread_sizes(step_sizes(num_streams, num_units))
    if num_units <= WIDE:
        return best_among(problem_of, num_streams, sizes, None, num_elements=num_elements)
    units = promising_units(problem_of(sizes[0][0]), np.arange(num_units), WIDE // 2)
    best = best_among(problem_of, num_streams, sizes, units, num_elements=num_elements)
    if best is None:
        return None
    bound = _bound_of_all(problem_of(sizes[0][0]))
    return replace(best, path=replace(best.path, bound_seconds=min(bound, best.path.seconds)))


def _bound_of_all(problem: PathProblem) -> float:
    """Return a lower bound for all paths on any of the units."""
    table = make_table(problem)
    return relax(table, np.zeros(table.num_kinds)).bound_seconds


def best_among(
    problem_of: ProblemOf,
    num_streams: int,
    sizes: Iterable[tuple[int, int]],
    units: NDArray[np.intp] | None,
    *,
    num_elements: int,
    tolerance: float = 0.0,
) -> ThroughputPath | None:
    """Return the best path on these units (all: None) with one of these step sizes.

    With a ``tolerance`` the search of each size ends when it is that near to its bound.
    """
    best: ThroughputPath | None = None
    bound = math.inf
    pairs = list(sizes)
    for num_sequences, num_in_flight in pairs:
        table = make_table(problem_of(num_sequences), units)
        below = best.path.seconds if best else math.inf
        budget = Budget(num_elements // len(pairs))
        found = _search(table, num_in_flight, below, budget, tolerance)
        bound = min(bound, found.bound_seconds)
        if found.stages:
            best = ThroughputPath(
                path=Path(cuts=table.cuts(found.stages), seconds=found.seconds, bound_seconds=0.0),
                num_in_flight=num_in_flight,
                num_sequences=num_sequences,
                num_streams=num_streams,
            )
    if best is None:
        return None
    return replace(best, path=replace(best.path, bound_seconds=min(bound, best.path.seconds)))


def _search(
    table: Table, num_in_flight: int, below: float, budget: Budget, tolerance: float
) -> BestPath:
    """Return the stages of the least period, if it is less than ``below``, and a bound of it.

    A period of ``p`` is possible if there is a path of ``p`` seconds on which nothing is occupied
    longer than ``p / num_in_flight``.
    """
    best = BestPath(below, (), 0.0)
    low, bound, num_polished = 0.0, 0.0, 0
    order: Order = ()
    prices: Floats | None = None
    target = below * (1 - _SMALLER)
    while True:
        limited = table
        if math.isfinite(target):
            limited = table.limited(target / num_in_flight)
        share = Budget(budget.left // _SHARES)
        best_path = minimize(limited, share, below=target, start=order, prices=prices)
        budget.spend(budget.left // _SHARES - share.left)
        prices = best_path.prices
        if math.isinf(target) or not best_path.stages:
            bound = max(bound, min(best_path.bound_seconds, target))
        if best_path.stages:
            order = best_path.order
            busiest = num_in_flight * table.bottleneck_seconds(best_path.stages)
            best = BestPath(max(best_path.seconds, busiest), best_path.stages, 0.0)
        elif target >= best.seconds * (1 - 2 * _SMALLER):
            is_best = bound >= best.seconds * (1 - 2 * _SMALLER)
            return replace(best, bound_seconds=best.seconds if is_best else bound)
        else:
            low = target
        low = max(low, bound)
        is_near = best.seconds <= low * _NEAR
        is_near_enough = bool(tolerance) and best.seconds <= low * (1 + tolerance)
        num_polished += is_near
        if is_near_enough or num_polished > _MOST_POLISHED:
            return replace(best, bound_seconds=min(bound, best.seconds))
        target = best.seconds * (1 - _SMALLER) if is_near else (low + best.seconds) / 2


def replicate(
    problem_of: ProblemOf,
    num_streams: int,
    *,
    num_elements: int = DEFAULT_ELEMENTS,
    num_searches: int = _SEARCHES,
) -> tuple[ThroughputPath, ...]:
    """Return disjoint pipelines that together serve all streams fastest; none if nothing fits.

    Each serves its ``num_streams``. The number of pipelines tried doubles, up to the maximum; each
    pipeline gets the best of the units left by those before it. At most ``num_searches`` pipelines
    are searched in total. There is no bound: this is a heuristic.
    """
    remembered = cache(problem_of)
    one = best_throughput(remembered, num_streams, num_elements=num_elements)
    if one is None:
        return ()
    best: tuple[ThroughputPath, ...] = (one,)
    num_pipelines, num_searched = 2, 0
    most = min(num_streams, remembered(1).num_units, _MOST_PIPELINES)
    while num_pipelines <= most:
        num_searched += num_pipelines
        if num_searched > num_searches:
            break
        found = _side_by_side(
            remembered, num_streams, num_pipelines, num_elements=num_elements // _PIPELINE_PART
        )
        if total_rate(found) > total_rate(best):
            best = found
        elif len(found) < num_pipelines or num_pipelines > 4:
            break
        if num_pipelines == most:
            break
        num_pipelines = min(2 * num_pipelines, most)
    return best


def total_rate(pipelines: tuple[ThroughputPath, ...]) -> float:
    """Return the tokens per second of all streams of all pipelines."""
    return sum(each.num_streams / each.path.seconds for each in pipelines)


def _side_by_side(
    problem_of: ProblemOf, num_streams: int, num_pipelines: int, *, num_elements: int
) -> tuple[ThroughputPath, ...]:
    """Return at most this many pipelines, with streams distributed for the highest rate."""
    num_units = problem_of(1).num_units
    each = -(-num_streams // num_pipelines)
    sizes = spread_sizes(step_sizes(each, num_units))
    free = np.arange(num_units)
    paths: list[ThroughputPath] = []
    while len(paths) < num_pipelines and len(free):
        found = _one_more(problem_of, each, sizes, free, num_elements)
        if found is None:
            break
        sizes = [(found.num_sequences, found.num_in_flight)]
        paths.append(found)
        free = np.setdiff1d(free, [cut.unit for cut in found.path.cuts])
    return _share_out(problem_of, paths, num_streams)


def _one_more(
    problem_of: ProblemOf,
    num_streams: int,
    sizes: list[tuple[int, int]],
    free: NDArray[np.intp],
    num_elements: int,
) -> ThroughputPath | None:
    """Return a pipeline of free units; search among more of them if the best cannot hold all
    items.
    """
    most = _CANDIDATES
    while True:
        units = promising_units(problem_of(sizes[0][0]), free, most)
        found = best_among(
            problem_of,
            num_streams,
            sizes,
            units,
            num_elements=num_elements * len(sizes),
            tolerance=_TOLERANCE,
        )
        if found is not None or most >= min(len(free), 8 * _CANDIDATES):
            return found
        most *= 4


def _share_out(
    problem_of: ProblemOf, paths: list[ThroughputPath], num_streams: int
) -> tuple[ThroughputPath, ...]:
    """Give each stream in turn to the pipeline whose rate gains the most, or loses the least."""
    num_given = [0] * len(paths)
    rates = [0.0] * len(paths)
    nexts = [_period(problem_of, path, 1) for path in paths]
    for _ in range(num_streams if paths else 0):
        gains = [
            (num + 1) / following.path.seconds - rate
            for num, rate, following in zip(num_given, rates, nexts, strict=True)
        ]
        chosen = int(np.argmax(gains))
        num_given[chosen] += 1
        rates[chosen] += gains[chosen]
        nexts[chosen] = _period(problem_of, paths[chosen], num_given[chosen] + 1)
    return tuple(
        _period(problem_of, path, num)
        for path, num in zip(paths, num_given, strict=True)
        if num > 0
    )


def _period(problem_of: ProblemOf, pipeline: ThroughputPath, num_streams: int) -> ThroughputPath:
    """Return the pipeline with this many streams, in no more steps than it was made for."""
    cuts = pipeline.path.cuts
    num_sequences = -(-num_streams // pipeline.num_in_flight)
    num_in_flight = -(-num_streams // num_sequences)
    problem = problem_of(num_sequences)
    seconds = max(problem.path_seconds(cuts), num_in_flight * problem.bottleneck_seconds(cuts))
    return ThroughputPath(
        path=Path(cuts=cuts, seconds=seconds, bound_seconds=0.0),
        num_in_flight=num_in_flight,
        num_sequences=num_sequences,
        num_streams=num_streams,
    )
