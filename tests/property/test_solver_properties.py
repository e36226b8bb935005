"""The solver against every possible answer on small fleets, and random ones on larger fleets."""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
import pytest
from support.placement.limited_paths import limited_cuts
from support.placement.path_problems import (
    all_answers,
    fleet_problem,
    for_sequences,
    random_answers,
    random_problem,
)

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem
from potluck.placement.solver import (
    best_throughput,
    minimize,
    replicate,
    shortest_path,
    total_rate,
)

NUM_FLEETS = 500


def check_answer(problem: PathProblem, cuts: tuple[Cut, ...]) -> None:
    """Whether stages hold all items in order, on different units, and fit in their memory."""
    assert [cut.start for cut in cuts] == [0, *(cut.end for cut in cuts[:-1])]
    assert cuts[-1].end == problem.num_items
    assert all(cut.start < cut.end for cut in cuts)
    assert len({cut.unit for cut in cuts}) == len(cuts)
    assert not problem.no_cuts & {cut.start for cut in cuts}
    for cut in cuts:
        assert problem.bytes_of(cut) <= problem.usable_bytes[cut.unit]


@pytest.mark.slow
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
        assert path.gap == 0
        limit = float(random.choice(bottlenecks)) * random.choice([1.0, 1.000001])
        cuts = limited_cuts(problem, limit)
        check_answer(problem, cuts)
        assert problem.bottleneck_seconds(cuts) <= limit * (1 + 1e-8)
        least = paths[bottlenecks <= limit * (1 + 1e-9)].min()
        assert problem.path_seconds(cuts) == pytest.approx(least, rel=1e-8)
    assert num_solved > NUM_FLEETS // 10


@pytest.mark.slow
def test_prices_and_few_tracked_kinds_lead_to_the_best_of_all_answers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on large fleets, though these are small enough to do without.
    monkeypatch.setattr(minimize, "_SMALL", 0)
    monkeypatch.setattr(minimize, "_ALL_TRACKED", 0)
    random = np.random.default_rng(50)
    num_solved = 0
    for _ in range(60):
        problem = random_problem(
            random, num_units=int(random.integers(3, 6)), num_layers=int(random.integers(3, 9))
        )
        paths, _ = all_answers(problem)
        path = shortest_path(problem)
        if len(paths):
            num_solved += 1
            assert path is not None
            assert path.seconds == pytest.approx(paths.min(), rel=1e-9)
            assert path.gap == 0
        else:
            assert path is None
    assert num_solved > 20


@pytest.mark.slow
def test_proofs_hold_whether_or_not_all_kinds_are_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(60)
    for links in ("unequal", "sites"):
        problem = fleet_problem(random, num_units=10, num_layers=24, part=(0.1, 0.3), links=links)
        priced = shortest_path(problem)
        with monkeypatch.context() as changed:
            changed.setattr(minimize, "_SMALL", 1 << 20)
            changed.setattr(minimize, "_ALL_TRACKED", 10)
            tracked = shortest_path(problem)
        assert priced is not None
        assert tracked is not None
        assert priced.gap < 1e-8
        assert tracked.gap < 1e-8
        assert priced.seconds == pytest.approx(tracked.seconds, rel=1e-9)


@pytest.mark.slow
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
        assert found.path.gap == 0
    assert num_solved > NUM_FLEETS // 10


@pytest.mark.slow
@pytest.mark.parametrize("links", ["equal", "unequal", "sites"])
@pytest.mark.parametrize("part", [(0.02, 0.2), (0.1, 1.2)])
def test_no_random_answer_on_a_larger_fleet_is_better(
    links: str, part: tuple[float, float]
) -> None:
    random = np.random.default_rng(7)
    for num_units, num_layers in ((8, 40), (14, 16), (20, 30)):
        problem = fleet_problem(
            random, num_units=num_units, num_layers=num_layers, part=part, links=links
        )
        answers = random_answers(problem, random, num_answers=500)
        path = shortest_path(problem, num_elements=50_000_000)
        found = best_throughput(partial(for_sequences, problem), 8, num_elements=50_000_000)
        if path is None or found is None:
            assert not answers
            continue
        check_answer(problem, path.cuts)
        check_answer(problem, found.path.cuts)
        for cuts in answers:
            seconds = problem.path_seconds(cuts)
            assert path.seconds <= seconds * (1 + 1e-9)
            assert path.bound_seconds <= seconds * (1 + 1e-9)
        for num_sequences, num_in_flight in ((1, 8), (2, 4), (4, 2), (8, 1)):
            work = for_sequences(problem, num_sequences)
            for cuts in answers:
                busiest = num_in_flight * work.bottleneck_seconds(cuts)
                period = max(work.path_seconds(cuts), busiest)
                assert found.path.seconds <= period * (1 + 1e-9)
                assert found.path.bound_seconds <= period * (1 + 1e-9)


@pytest.mark.slow
def test_bounds_hold_when_there_is_no_work_left_to_spend() -> None:
    random = np.random.default_rng(3)
    for _ in range(10):
        problem = fleet_problem(
            random, num_units=9, num_layers=20, part=(0.1, 0.4), links="unequal"
        )
        best = shortest_path(problem)
        hasty = shortest_path(problem, num_elements=1)
        assert best is not None
        assert best.gap < 1e-8
        if hasty is not None:
            check_answer(problem, hasty.cuts)
            assert hasty.bound_seconds <= best.seconds * (1 + 1e-9)
            assert hasty.seconds >= best.seconds * (1 - 1e-9)


@pytest.mark.slow
def test_many_units_are_searched_by_parts_and_bounded_as_a_whole() -> None:
    random = np.random.default_rng(5)
    problem = fleet_problem(random, num_units=140, num_layers=10, part=(0.1, 0.6), links="sites")
    path = shortest_path(problem, num_elements=100_000_000)
    assert path is not None
    check_answer(problem, path.cuts)
    assert path.gap < 0.15
    for cuts in random_answers(problem, random, num_answers=100):
        assert path.bound_seconds <= path.seconds <= problem.path_seconds(cuts)
    of_sequences = cache(partial(for_sequences, problem))
    pipelines = replicate(of_sequences, 16, num_elements=50_000_000)
    units = [cut.unit for each in pipelines for cut in each.path.cuts]
    assert len(units) == len(set(units))
    assert sum(each.num_streams for each in pipelines) == 16
    one = best_throughput(of_sequences, 16, num_elements=50_000_000)
    assert one is not None
    assert total_rate(pipelines) >= total_rate((one,))
    for each in pipelines:
        check_answer(problem, each.path.cuts)


@pytest.mark.slow
def test_the_same_problem_has_the_same_answer() -> None:
    problem = fleet_problem(
        np.random.default_rng(1), num_units=20, num_layers=30, part=(0.05, 0.3), links="sites"
    )
    assert shortest_path(problem) == shortest_path(problem)


@pytest.mark.slow
@pytest.mark.parametrize("num_units", [10, 60, 200])
def test_a_fleet_without_room_has_no_answer(num_units: int) -> None:
    random = np.random.default_rng(2)
    most = 0.8 / num_units
    problem = fleet_problem(
        random, num_units=num_units, num_layers=30, part=(0.5 * most, most), links="sites"
    )
    assert shortest_path(problem, num_elements=50_000_000) is None
    of_sequences = partial(for_sequences, problem)
    assert best_throughput(of_sequences, 4, num_elements=50_000_000) is None
    assert replicate(of_sequences, 4, num_elements=50_000_000) == ()


def test_a_fleet_whose_links_are_all_cut_has_no_answer() -> None:
    problem = fleet_problem(
        np.random.default_rng(2), num_units=140, num_layers=10, part=(0.1, 0.5), links="equal"
    )
    problem.hop_seconds[:-1, :-1] = np.inf
    assert shortest_path(problem) is None
    assert replicate(partial(for_sequences, problem), 4) == ()
