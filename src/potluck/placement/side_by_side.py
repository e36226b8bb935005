"""The gain of several pipelines if there are more units than one pipeline needs. Pure.

A deployment is one pipeline, so each of these would be a deployment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from potluck.placement.candidates import PlaceRequest
from potluck.placement.grouping import prediction_of
from potluck.placement.offering import Pool, fair_shares
from potluck.placement.path import PathProblem, ThroughputPath
from potluck.placement.place import only_units, placed_stages, problem_of, problems_of
from potluck.placement.solver import promising_units, replicate, total_rate
from potluck.placement.solver.table import DEFAULT_ELEMENTS
from potluck.placement.within_pools import fits, with_usable
from potluck.types.choices import Objective
from potluck.types.placement import PlacedStage, Plan, Prediction

_WORTHWHILE = 0.02
"""The minimum gain in throughput: the same as what an additional unit must gain in a plan."""
_MANY = 128
"""With more units, fewer choices are tried: a thousand are planned in less than 20 s of CPU time.
"""
_SEARCHES, _ELEMENTS = 30, DEFAULT_ELEMENTS // 8
"""Bounds with many units: up to 16 pipelines, and a limited search."""
_MOST_CELLS = 1 << 25
"""The maximum size of the link matrices for steps of every size: half a GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The stages of a pipeline, and its prediction: for all streams, or for its share of them."""

    stages: tuple[PlacedStage, ...]
    prediction: Prediction


def side_by_side(request: PlaceRequest, plan: Plan) -> tuple[Pipeline, ...]:
    """Return disjoint pipelines that together serve all streams faster than ``plan`` does.

    The fastest come first. There are none if none were found, if the plan has a layout, or if it
    was not made for throughput. The search is a heuristic: there may be better ones.
    """
    preferences = request.preferences
    if (
        plan.prediction is None
        or preferences.objective is not Objective.THROUGHPUT
        or preferences.layout
        or min(preferences.num_streams, len(request.candidates)) < 2
    ):
        return ()
    request = _of_promising_units(request)
    paths = _within_pools(request)
    pipelines = [_pipeline(request, path) for path in paths] if len(paths) > 1 else []
    together = sum(each.prediction.total_tokens_per_second for each in pipelines)
    alone = plan.prediction.total_tokens_per_second
    if len(pipelines) < 2 or together < alone * (1 + _WORTHWHILE):
        return ()
    return tuple(sorted(pipelines, key=lambda each: -each.prediction.total_tokens_per_second))


def _of_promising_units(request: PlaceRequest) -> PlaceRequest:
    """Return the request with so few units that the problems of all steps take little memory."""
    most = max(2, math.isqrt(_MOST_CELLS // request.preferences.num_streams))
    num_units = len(request.candidates)
    if num_units <= most:
        return request
    problem = problem_of(request, 1)
    return only_units(request, promising_units(problem, np.arange(num_units), most).tolist())


def _within_pools(request: PlaceRequest) -> tuple[ThroughputPath, ...]:
    """Return the best pipelines that respect all pools."""
    num_units = len(request.candidates)
    num_streams = request.preferences.num_streams
    problems = cache(problems_of(request))

    def solve(usable: Sequence[int]) -> tuple[ThroughputPath, ...]:
        def problem(num_sequences: int) -> PathProblem:
            return with_usable(problems(num_sequences), usable)

        if num_units > _MANY:
            return replicate(problem, num_streams, num_elements=_ELEMENTS, num_searches=_SEARCHES)
        return replicate(problem, num_streams)

    problem = problems(1)
    best: tuple[ThroughputPath, ...] = ()
    for usable in _divisions(problem, request.pools):
        found = solve(usable)
        cuts = [cut for each in found for cut in each.path.cuts]
        if fits(problem, request.pools, cuts) and total_rate(found) > total_rate(best):
            best = found
    return best


def _divisions(problem: PathProblem, pools: Sequence[Pool]) -> Iterator[list[int]]:
    """Yield what each unit may use, for pipelines that together use most units.

    Units that could overdraw a pool share it fairly, or it is left to the fastest of them. With
    many units, only the latter is tried.
    """
    alone = [int(each) for each in problem.usable_bytes]
    contested = [
        pool for pool in pools if sum(alone[unit] for unit in pool.members) > pool.left_bytes
    ]
    if not contested or problem.num_units <= _MANY:
        yield alone
    if not contested:
        return
    if problem.num_units <= _MANY:
        yield fair_shares(alone, pools)
    seconds = problem.item_seconds.sum(axis=1)
    fastest = list(alone)
    for pool in contested:
        left = [unit for unit in sorted(pool.members) if fastest[unit] > 0]
        chosen = min(left, key=lambda unit: seconds[unit], default=None)
        for unit in left:
            if unit != chosen:
                fastest[unit] = 0
    yield fair_shares(fastest, pools)


def _pipeline(request: PlaceRequest, path: ThroughputPath) -> Pipeline:
    """Return a pipeline of the solver as a plan for its share of the streams."""
    units = [cut.unit for cut in path.path.cuts]
    preferences = replace(request.preferences, num_streams=path.num_streams)
    own = replace(only_units(request, units), preferences=preferences)
    places = {unit: place for place, unit in enumerate(sorted(units))}
    cuts = [replace(cut, unit=places[cut.unit]) for cut in path.path.cuts]
    stages = placed_stages(own, cuts)
    return Pipeline(stages=stages, prediction=prediction_of(own, stages))
