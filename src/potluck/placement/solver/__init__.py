"""Solvers for a ``PathProblem``: the best path for one stream or several, and several pipelines."""

from potluck.placement.solver.throughput import (
    best_throughput,
    promising_units,
    replicate,
    shortest_path,
    total_rate,
)

__all__ = [
    "best_throughput",
    "promising_units",
    "replicate",
    "shortest_path",
    "table",
    "total_rate",
]
