"""Paths on which nothing is occupied longer than a limit: the searches for throughput."""

from __future__ import annotations

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem
from potluck.placement.solver.table import Budget, make_table
from potluck.placement.solver.throughput import minimize_any


def limited_cuts(problem: PathProblem, limit_seconds: float) -> tuple[Cut, ...]:
    """The fastest stages, of which none takes longer, over links that are occupied no longer."""
    table = make_table(problem).limited(limit_seconds)
    return table.cuts(minimize_any(table, Budget()).stages)
