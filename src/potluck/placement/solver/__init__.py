"""The best path through a ``PathProblem``, for one stream or several, and several pipelines."""

from potluck.placement.solver.shortest import shortest_path
from potluck.placement.solver.throughput import best_throughput, replicate

__all__ = ["best_throughput", "replicate", "shortest_path"]
