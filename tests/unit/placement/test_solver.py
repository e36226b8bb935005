"""Small path problems whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.placement.limited_paths import limited_cuts
from support.placement.path_problems import for_sequences

from potluck.placement.cuts import Cut
from potluck.placement.path import Path, PathProblem
from potluck.placement.solver import (
    best_throughput,
    replicate,
    shortest_path,
    total_rate,
)
from potluck.placement.solver.labels import relax, search, through_bounds, usage_of
from potluck.placement.solver.minimize import best_cut, insertions
from potluck.placement.solver.table import Budget, make_table
from potluck.placement.solver.throughput import step_sizes


def problem_of(
    seconds_per_item: list[float], usable: list[int], *, num_items: int = 6, hop: float = 0.001
) -> PathProblem:
    """Return a problem of units with these speeds and memories; an item takes 10 bytes."""
    num_units = len(usable)
    none = np.zeros(num_units, dtype=np.int64)
    return PathProblem(
        usable_bytes=np.array(usable, dtype=np.int64),
        item_bytes=np.full((num_units, num_items), 10, dtype=np.int64),
        stage_bytes=none,
        shared_bytes=none,
        lone_bytes=np.full((num_units, 2), 10, dtype=np.int64),
        item_seconds=np.tile(np.array(seconds_per_item)[:, None], (1, num_items)),
        stage_seconds=np.zeros(num_units),
        hop_seconds=np.full((num_units + 1, num_units + 1), hop),
        busy_seconds=np.full((num_units + 1, num_units + 1), hop / 2),
    )


def units_of(path: Path | None) -> list[int]:
    assert path is not None
    return [cut.unit for cut in path.cuts]


def test_a_model_stays_on_the_fastest_unit_that_holds_it() -> None:
    problem = problem_of([0.03, 0.01, 0.1], [100, 60, 1000])
    path = shortest_path(problem)
    assert path is not None
    assert path.cuts == (Cut(unit=1, start=0, end=6),)
    assert path.seconds == problem.path_seconds(path.cuts) == pytest.approx(0.062)
    assert path.gap == 0


def test_only_what_does_not_fit_goes_to_a_slower_unit() -> None:
    path = shortest_path(problem_of([0.03, 0.01, 0.1], [100, 50, 1000]))
    assert path is not None
    assert {cut.unit: cut.end - cut.start for cut in path.cuts} == {1: 5, 0: 1}


def test_a_fast_unit_behind_a_slow_link_is_left_out() -> None:
    problem = problem_of([0.03, 0.01], [100, 100])
    hops = problem.hop_seconds.copy()
    hops[1, :] = hops[:, 1] = 0.5
    assert units_of(shortest_path(replace(problem, hop_seconds=hops))) == [0]


def test_links_in_one_direction_decide_the_order() -> None:
    problem = problem_of([0.01, 0.01], [30, 30])
    hops = problem.hop_seconds.copy()
    hops[0, 1] = 0.1
    assert units_of(shortest_path(replace(problem, hop_seconds=hops))) == [1, 0]


def test_a_cut_link_is_not_used() -> None:
    problem = problem_of([0.01, 0.01, 0.5], [30, 30, 30])
    hops = problem.hop_seconds.copy()
    hops[0, 1] = hops[1, 0] = np.inf
    assert 2 in units_of(shortest_path(replace(problem, hop_seconds=hops)))
    hops[:2, 2] = np.inf
    hops[2, :2] = np.inf
    assert shortest_path(replace(problem, hop_seconds=hops)) is None


def test_a_limit_divides_a_model_that_one_unit_could_hold() -> None:
    problem = problem_of([0.01, 0.01, 0.02], [100, 100, 100])
    cuts = limited_cuts(problem, 0.035)
    assert sorted(cut.unit for cut in cuts) == [0, 1]
    assert problem.bottleneck_seconds(cuts) <= 0.035
    assert limited_cuts(problem, 0.009) == ()


def test_a_tied_head_fits_only_where_the_embedding_is() -> None:
    problem = problem_of([0.01, 0.01], [50, 0])
    assert shortest_path(problem) is None
    tied = replace(problem, shared_bytes=np.array([10, 10]))
    assert units_of(shortest_path(tied)) == [0]


def test_a_lone_end_takes_less_than_its_parts() -> None:
    problem = problem_of([0.01, 0.01], [50, 4])
    assert shortest_path(problem) is None
    lone = replace(problem, lone_bytes=np.array([[10, 10], [10, 4]]))
    assert units_of(shortest_path(lone)) == [0, 1]


def test_no_units_hold_nothing() -> None:
    problem = problem_of([], [])
    assert shortest_path(problem) is None
    assert best_throughput(partial(for_sequences, problem), 4) is None
    assert replicate(partial(for_sequences, problem), 4) == ()


def test_one_stream_alone_is_one_step_in_flight() -> None:
    problem = problem_of([0.01, 0.02], [100, 100])
    found = best_throughput(partial(for_sequences, problem), 1)
    assert found is not None
    assert (found.num_in_flight, found.num_sequences, found.num_streams) == (1, 1, 1)
    assert found.path.cuts == (Cut(unit=0, start=0, end=6),)


def test_several_streams_divide_a_model_between_equal_units() -> None:
    problem = problem_of([0.01, 0.01], [100, 100])
    # Steps that cost as much for each sequence as one alone: only more units help.
    found = best_throughput(
        lambda n: replace(problem, item_seconds=problem.item_seconds * n), num_streams=8
    )
    assert found is not None
    assert [(cut.start, cut.end) for cut in found.path.cuts] == [(0, 3), (3, 6)]
    assert found.num_in_flight * found.num_sequences >= 8
    assert found.path.seconds == pytest.approx(8 * 0.03, rel=0.05)


def test_sizes_of_steps_are_those_that_differ() -> None:
    assert step_sizes(8, 10) == [(1, 8), (2, 4), (3, 3), (4, 2), (8, 1)]
    assert step_sizes(8, 2) == [(3, 3), (4, 2), (8, 1)]
    assert step_sizes(1, 5) == [(1, 1)]


def test_pipelines_side_by_side_share_no_unit_and_serve_all_streams() -> None:
    problem = problem_of([0.01] * 8 + [0.05], [40] * 9)

    def of_sequences(num_sequences: int) -> PathProblem:
        return replace(problem, item_seconds=problem.item_seconds * num_sequences)

    found = replicate(of_sequences, 16)
    units = [cut.unit for each in found for cut in each.path.cuts]
    assert len(units) == len(set(units))
    assert 8 not in units
    assert sum(each.num_streams for each in found) == 16
    one = best_throughput(of_sequences, 16)
    assert one is not None
    assert total_rate(found) >= total_rate((one,))
    for each in found:
        work = of_sequences(each.num_sequences)
        busiest = each.num_in_flight * work.bottleneck_seconds(each.path.cuts)
        assert each.path.seconds == max(work.path_seconds(each.path.cuts), busiest)


def test_where_steps_cost_the_same_for_any_number_of_sequences_pipelines_are_not_needed() -> None:
    problem = problem_of([0.01] * 4, [100] * 4)
    assert len(replicate(lambda _: problem, 8)) == 1


def test_units_are_alike_only_if_links_are_too() -> None:
    problem = problem_of([0.01, 0.01, 0.01, 0.02], [30] * 4)
    assert make_table(problem).members == ((0, 1, 2), (3,))
    hops = problem.hop_seconds.copy()
    hops[1, 3] = 0.002
    assert make_table(replace(problem, hop_seconds=hops)).members == ((0, 2), (1,), (3,))


def test_units_without_room_are_left_out_of_the_table() -> None:
    assert make_table(problem_of([0.01, 0.02], [9, 10])).members == ((1,),)


def test_the_cut_of_an_order_may_skip_places() -> None:
    table = make_table(problem_of([0.02, 0.01], [60, 60]))
    seconds, stages = best_cut(table, (0, 1))
    assert seconds == pytest.approx(0.062)
    assert [stage.kind for stage in stages] == [1]
    assert best_cut(table, ())[1] == ()


def test_insertions_say_what_inserting_gives() -> None:
    problem = problem_of([0.02, 0.01, 0.03, 0.015], [30, 20, 40, 20], num_items=8)
    hops = problem.hop_seconds * np.random.default_rng(1).uniform(0.5, 1.5, (5, 5))
    table = make_table(replace(problem, hop_seconds=hops))
    values = insertions(table, (0, 2), np.array([1, 3]))
    for place in range(3):
        for index, kind in enumerate((1, 3)):
            order = [0, 2]
            order.insert(place, kind)
            without = best_cut(table, (0, 2))[0]
            inserted = min(best_cut(table, tuple(order))[0], without)
            assert min(values[place, index], without) == pytest.approx(inserted)


def test_prices_make_a_bound_that_no_answer_is_below() -> None:
    problem = problem_of([0.01, 0.02, 0.03], [20, 30, 30])
    table = make_table(problem)
    path = shortest_path(problem)
    assert path is not None
    for prices in ([0.0, 0, 0], [0.02, 0, 0], [0.05, 0.03, 0]):
        relaxation = relax(table, np.array(prices))
        assert relaxation.bound_seconds <= path.seconds * (1 + 1e-9)
        priced = path.seconds + sum(prices)
        values = through_bounds(table, relaxation)
        assert all(values[cut.unit] <= priced * (1 + 1e-9) for cut in path.cuts)


def test_a_spent_budget_ends_an_exact_search() -> None:
    table = make_table(problem_of([0.01, 0.02, 0.03], [20, 30, 30]))
    relaxation = relax(table, np.zeros(3))
    everything = frozenset({0, 1, 2})
    assert search(table, relaxation, 1.0, everything, Budget(10)) is None
    found = search(table, relaxation, 1.0, everything, Budget(10_000_000))
    assert found is not None
    assert found[0] == pytest.approx(shortest_path_seconds())


def shortest_path_seconds() -> float:
    path = shortest_path(problem_of([0.01, 0.02, 0.03], [20, 30, 30]))
    assert path is not None
    return path.seconds


def test_usages_of_many_kinds_do_not_fit_in_an_integer() -> None:
    assert usage_of(np.ones(31, dtype=np.int64), frozenset(range(31)), 10) is not None
    assert usage_of(np.ones(32, dtype=np.int64), frozenset(range(32)), 10) is None
