"""The path that serves several streams fastest, and several such paths side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from potluck.placement.path import Path, PathProblem, ThroughputPath
from potluck.placement.solver.budget import DEFAULT_ELEMENTS, Budget
from potluck.placement.solver.minimize import Least, minimize
from potluck.placement.solver.table import Table, make_table

_SMALLER, _NEAR = 1e-8, 1.02
"""By how much a period must be less to count; how near bisection comes before the last steps."""

ProblemOf = Callable[[int], PathProblem]
"""The problem of steps of so many sequences. Units and items are the same in all of them."""


def best_throughput(
    problem_of: ProblemOf, num_streams: int, *, num_elements: int = DEFAULT_ELEMENTS
) -> ThroughputPath | None:
    """Return the path, and the steps in flight, with which all streams get a token soonest.

    With ``k`` steps in flight a token takes each stream as long as a step takes from the source to
    the sink, or ``k`` times as long as it occupies the busiest stage or link, whichever is more.
    Returns None if no path was found.
    """
    best: ThroughputPath | None = None
    bound = math.inf
    for num_sequences in sorted({-(-num_streams // k) for k in range(1, num_streams + 1)}):
        num_in_flight = -(-num_streams // num_sequences)
        problem = problem_of(num_sequences)
        if num_in_flight > problem.num_units + 1:
            continue
        table = make_table(problem)
        found = _search(table, num_in_flight, best.path.seconds if best else math.inf, num_elements)
        bound = min(bound, found.bound_seconds)
        if found.stages:
            path = Path(cuts=table.cuts(found.stages), seconds=found.seconds, bound_seconds=0.0)
            best = ThroughputPath(
                path=path, num_in_flight=num_in_flight, num_sequences=num_sequences
            )
    if best is None:
        return None
    return replace(best, path=replace(best.path, bound_seconds=min(bound, best.path.seconds)))


def _search(table: Table, num_in_flight: int, below: float, num_elements: int) -> Least:
    """Return the stages of the least period, if it is less than ``below``.

    A period of ``p`` is possible if there is a path of ``p`` seconds on which nothing is occupied
    longer than ``p / num_in_flight``. The least possible one is looked for by bisection.
    """
    best = Least(below, (), 0.0)
    low, target = 0.0, below * (1 - _SMALLER)
    while True:
        limit = target / num_in_flight
        limited = table.limited(limit) if math.isfinite(limit) else table
        least = minimize(limited, Budget(num_elements), below=target)
        proved = least.bound_seconds
        if least.stages:
            period = max(
                table.path_seconds(least.stages),
                num_in_flight * table.bottleneck_seconds(least.stages),
            )
            best = Least(period, least.stages, best.bound_seconds)
        elif math.isinf(target) or target >= best.seconds * (1 - 2 * _SMALLER):
            return replace(best, bound_seconds=max(best.bound_seconds, min(proved, best.seconds)))
        else:
            best = replace(best, bound_seconds=max(best.bound_seconds, min(proved, target)))
            low = target
        low = max(low, min(least.bound_seconds, best.seconds) if math.isinf(target) else low)
        near = best.seconds <= low * _NEAR
        target = best.seconds * (1 - _SMALLER) if near else (low + best.seconds) / 2


def replicate(
    problem_of: ProblemOf, num_streams: int, *, num_elements: int = DEFAULT_ELEMENTS
) -> tuple[ThroughputPath, ...]:
    """Return disjoint pipelines that serve all streams together fastest; none if nothing fits."""
    best = best_throughput(problem_of, num_streams, num_elements=num_elements)
    return (best,) if best else ()
