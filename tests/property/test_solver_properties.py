"""The solver against every possible answer on small fleets, and random ones on larger fleets."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from support.path_problems import all_answers, for_sequences, random_problem

from potluck.placement.path import Cut, PathProblem
from potluck.placement.solver import best_throughput, shortest_path

NUM_FLEETS = 500


def check_answer(problem: PathProblem, cuts: tuple[Cut, ...]) -> None:
    """Whether stages hold all items in order, on different units, and fit in their memory."""
    assert [cut.start for cut in cuts] == [0, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == problem.num_items
    assert all(cut.start < cut.end for cut in cuts)
    assert len({cut.unit for cut in cuts}) == len(cuts)
    for cut in cuts:
        assert problem.bytes_of(cut) <= problem.usable_bytes[cut.unit]


@pytest.mark.parametrize("part", range(5))
def test_one_stream_gets_the_best_of_all_answers_on_small_fleets(part: int) -> None:
    random = np.random.default_rng(part)
    num_solved = 0
    for _ in range(NUM_FLEETS // 5):
        problem = random_problem(
            random, num_units=int(random.integers(1, 6)), num_layers=int(random.integers(1, 9))
        )
        paths, bottlenecks = all_answers(problem)
        path = shortest_path(problem)
        if not len(paths):
            assert path is None
            continue
        num_solved += 1
        assert path is not None
        check_answer(problem, path.cuts)
        assert path.seconds == problem.path_seconds(path.cuts)
        assert path.seconds == pytest.approx(paths.min(), rel=1e-9)
        assert path.gap < 1e-8
        limit = float(random.choice(bottlenecks)) * random.choice([1.0, 1.000001])
        limited = shortest_path(problem, limit_seconds=limit)
        assert limited is not None
        check_answer(problem, limited.cuts)
        assert problem.bottleneck_seconds(limited.cuts) <= limit * (1 + 1e-8)
        least = paths[bottlenecks <= limit * (1 + 1e-9)].min()
        assert limited.seconds == pytest.approx(least, rel=1e-8)
    assert num_solved > NUM_FLEETS // 10


@pytest.mark.parametrize("part", range(5))
def test_several_streams_get_the_best_of_all_answers_on_small_fleets(part: int) -> None:
    random = np.random.default_rng(100 + part)
    num_solved = 0
    for _ in range(NUM_FLEETS // 5):
        problem = random_problem(
            random, num_units=int(random.integers(1, 6)), num_layers=int(random.integers(1, 9))
        )
        num_streams = int(random.integers(1, 9))
        best = math.inf
        for num_in_flight in range(1, min(num_streams, problem.num_units + 1) + 1):
            num_sequences = math.ceil(num_streams / num_in_flight)
            paths, bottlenecks = all_answers(for_sequences(problem, num_sequences))
            periods = np.maximum(paths, num_in_flight * bottlenecks)
            best = min(best, periods.min(initial=math.inf))
        found = best_throughput(partial(for_sequences, problem), num_streams)
        if not math.isfinite(best):
            assert found is None
            continue
        num_solved += 1
        assert found is not None
        at_work = for_sequences(problem, found.num_sequences)
        check_answer(at_work, found.path.cuts)
        assert found.num_in_flight * found.num_sequences >= num_streams
        period = max(
            at_work.path_seconds(found.path.cuts),
            found.num_in_flight * at_work.bottleneck_seconds(found.path.cuts),
        )
        assert found.path.seconds == pytest.approx(period, rel=1e-9)
        assert found.path.seconds == pytest.approx(best, rel=1e-8)
    assert num_solved > NUM_FLEETS // 10
