"""The fastest path under a limit, as the search for throughput uses it."""

from __future__ import annotations

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem
from potluck.placement.solver.minimize import minimize
from potluck.placement.solver.table import Budget, make_table


def limited_cuts(problem: PathProblem, limit_seconds: float) -> tuple[Cut, ...]:
    """Return the fastest stages such that no stage or link is occupied longer than the limit."""
    table = make_table(problem).limited(limit_seconds)
    return table.cuts(minimize(table, Budget()).stages)
