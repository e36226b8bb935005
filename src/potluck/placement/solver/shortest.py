"""The fastest path for one stream."""

from __future__ import annotations

import math

from potluck.placement.path import Path, PathProblem
from potluck.placement.solver.budget import DEFAULT_ELEMENTS, Budget
from potluck.placement.solver.table import TOLERANCE, make_table
from potluck.placement.solver.wide import minimize_any


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
