"""Several pipelines side by side, if there are more units than one needs."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from potluck.placement.path import Path, ThroughputPath
from potluck.placement.solver.table import DEFAULT_ELEMENTS
from potluck.placement.solver.throughput import (
    ProblemOf,
    best_among,
    best_throughput,
    promising_units,
    spread_sizes,
    step_sizes,
)

_CANDIDATES = 32
"""Units among which one of several pipelines is searched."""
_PIPELINE_PART = 16
"""The search for one of several pipelines gets this part (1/n) of the budget of a single one."""
_TOLERANCE = 0.01
"""The gap to its bound at which the search for one of several pipelines ends."""
_MOST_PIPELINES = 64
_SEARCHES = 70
"""The total number of searched pipelines: about 10 s."""


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
