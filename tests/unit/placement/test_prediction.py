"""What is predicted of stages, against sums by hand."""

from __future__ import annotations

import math

import pytest
from support.placement.units import candidate, llama_config, work_of

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import Cut
from potluck.placement.links import Link, LinkTable, header_bytes, step_bytes
from potluck.placement.place import problem_of, problems_of
from potluck.placement.prediction import MARGINS, predict
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis, Prediction, Preferences

WORK = work_of(llama_config(8))
FAST, SLOW = candidate("a", WORK), candidate("b", WORK, decode=50.0, prefill=250.0)
WHOLE = (Cut(unit=0, start=0, end=10),)
HALVES = (Cut(unit=0, start=0, end=5), Cut(unit=1, start=5, end=10))
A = NodeId("a")


def predicted(
    units: tuple[Candidate, ...],
    cuts: tuple[Cut, ...],
    *,
    links: LinkTable | None = None,
    **wishes: int,
) -> Prediction:
    return predict(requested(*units, links=links, **wishes), cuts)


def requested(*units: Candidate, links: LinkTable | None = None, **wishes: int) -> PlaceRequest:
    return PlaceRequest(
        candidates=units,
        links=links or LinkTable(),
        coordinator=A,
        preferences=Preferences(**wishes),  # type: ignore[arg-type]
        max_step_tokens=128,
    )


def test_one_stream_takes_the_sum_of_stages_hops_and_the_way_back() -> None:
    found = predicted((FAST, SLOW), HALVES)
    problem = problem_of(requested(FAST, SLOW), 1)
    assert found.token_seconds == pytest.approx(problem.path_seconds(HALVES))
    parts = sum(stage.decode_seconds + stage.hop_seconds for stage in found.stages)
    assert found.token_seconds == pytest.approx(parts + found.entry_seconds)
    assert found.tokens_per_second == pytest.approx(1 / found.token_seconds)


def test_the_slowest_stage_limits_several_streams() -> None:
    found = predicted((FAST, SLOW), HALVES)
    assert found.bottleneck == 1
    slowest = found.stages[1].loaded_seconds
    assert found.total_tokens_per_second == pytest.approx(8 / (found.steps_in_flight * slowest))
    assert found.total_tokens_per_second > 1.2 * found.tokens_per_second


def test_a_slow_link_limits_several_streams() -> None:
    far = Link(latency_seconds=1e-3, bytes_per_second=1e5, basis=Basis.MEASURED)
    found = predicted((FAST, SLOW), HALVES, links=LinkTable(network=far))
    assert found.bottleneck is None
    num_bytes = step_bytes(-(-8 // found.steps_in_flight), 1024)
    assert found.total_tokens_per_second <= 8 / (found.steps_in_flight * num_bytes / 1e5) * 1.001


def test_chunks_of_a_prompt_follow_one_another() -> None:
    one = predicted((FAST, SLOW), HALVES, prompt_tokens=128)
    four = predicted((FAST, SLOW), HALVES, prompt_tokens=512)
    slow = SLOW.times.prefill(128, 512).seconds(5, 10)
    assert 3 * 0.8 * slow < four.first_token_seconds - one.first_token_seconds < 3 * 1.2 * slow
    long = predicted((FAST, SLOW), HALVES, prompt_tokens=128 * 200)
    assert math.isfinite(long.first_token_seconds)
    assert long.first_token_seconds > 40 * four.first_token_seconds


def test_a_prompt_of_nothing_takes_a_step() -> None:
    assert 0 < predicted((FAST,), WHOLE, prompt_tokens=0).first_token_seconds < 1


def test_a_quota_is_renewed_while_others_compute() -> None:
    """Measured: two processes with half a core each that take turns do not slow each other."""
    half = tuple(candidate(name, WORK, usable_share=0.5) for name in ("a", "b"))
    cuts = (Cut(unit=0, start=0, end=5), Cut(unit=1, start=5, end=10))
    full = predicted((FAST, candidate("b", WORK)), cuts)
    assert predicted(half, cuts).token_seconds == pytest.approx(full.token_seconds, rel=0.1)
    alone = predicted(half[:1], WHOLE).token_seconds
    assert alone == pytest.approx(2 * FAST.times.decode().seconds(0, 10))
    # Several streams keep it busy.
    loaded = predicted(half, cuts).total_tokens_per_second
    assert loaded == pytest.approx(full.total_tokens_per_second / 2, rel=0.25)


def test_a_quota_with_a_short_period_makes_a_slow_unit() -> None:
    half = tuple(
        candidate(name, WORK, usable_share=0.5, quota_period_seconds=0.001) for name in ("a", "b")
    )
    cuts = (Cut(unit=0, start=0, end=5), Cut(unit=1, start=5, end=10))
    full = predicted((FAST, candidate("b", WORK)), cuts)
    assert predicted(half, cuts).token_seconds == pytest.approx(2 * full.token_seconds, rel=0.2)


def test_two_stages_of_one_unit_share_its_time() -> None:
    cuts = (Cut(unit=0, start=0, end=5), Cut(unit=0, start=5, end=10))
    found = predicted((FAST,), cuts)
    assert found.total_tokens_per_second <= predicted((FAST,), WHOLE).total_tokens_per_second


def test_the_margin_is_that_of_stages_and_hops_by_their_share_of_the_time() -> None:
    found = predicted((FAST, SLOW), HALVES)
    hops = [stage.hop_seconds for stage in found.stages]
    computing = sum(stage.decode_seconds for stage in found.stages)
    seconds = {
        Basis.MEASURED: computing,
        Basis.TABLE: found.entry_seconds,  # within the machine
        Basis.ASSUMED: sum(hops),
    }
    expected = sum(MARGINS[basis] * each for basis, each in seconds.items())
    assert found.margin == pytest.approx(expected / found.token_seconds)
    near = Link(latency_seconds=1e-4, bytes_per_second=1e8, basis=Basis.MEASURED)
    table = LinkTable(network=near, loopback=near)
    alike = predicted((FAST, SLOW), HALVES, links=table)
    assert alike.margin == pytest.approx(MARGINS[Basis.MEASURED])
    assert alike.link_basis is None


def test_hops_that_take_most_of_the_time_set_the_margin() -> None:
    far = Link(latency_seconds=5.0, bytes_per_second=1e8, basis=Basis.ASSUMED)
    found = predicted((FAST, SLOW), HALVES, links=LinkTable(network=far))
    assert found.margin == pytest.approx(MARGINS[Basis.ASSUMED], abs=0.01)
    assert found.link_basis is Basis.ASSUMED


def test_what_links_rest_on_is_told_where_they_widen_the_margin() -> None:
    """By their part of the margin: the way within the machine hardly counts."""
    for basis, expected in ((Basis.TABLE, Basis.TABLE), (Basis.SERVED, None)):
        link = Link(latency_seconds=10e-3, bytes_per_second=1e8, basis=basis)
        found = predicted((FAST, SLOW), HALVES, links=LinkTable(network=link))
        assert found.link_basis is expected


def test_an_idle_node_is_predicted_as_surely_as_its_unit() -> None:
    """What a probe leaves unknown of the loopback interface takes a small part of the time."""
    own = Link(latency_seconds=30e-6, bytes_per_second=2e9, basis=Basis.TABLE)
    found = predicted((FAST,), WHOLE, links=LinkTable(links={(A, A): own}))
    assert MARGINS[Basis.MEASURED] < found.margin < MARGINS[Basis.MEASURED] + 0.03


def test_no_stage_is_an_error() -> None:
    with pytest.raises(ValueError, match="no stages"):
        predicted((FAST,), ())


def test_a_problem_has_the_units_bytes_and_seconds() -> None:
    problem = problem_of(requested(FAST, SLOW), 4)
    assert problem.num_units == 2
    assert problem.num_items == 10
    assert problem.item_bytes[0, 0] == FAST.cost.embedding_bytes
    assert problem.item_bytes[1, 1:9].tolist() == list(SLOW.cost.layer_bytes)
    parts = SLOW.times.decode(4, 512)
    assert problem.item_seconds[1].tolist() == list(parts.item_seconds)
    assert problem.stage_seconds[1] == parts.stage_seconds


def test_a_problem_has_hops_by_node() -> None:
    there = Link(latency_seconds=5e-3, bytes_per_second=1e6, basis=Basis.MEASURED)
    table = LinkTable(links={(A, NodeId("b")): there}, host_ids={A: "x", NodeId("c"): "x"})
    units = (FAST, SLOW, candidate("c", WORK))
    problem = problem_of(requested(*units, links=table), 2)
    ends = [each.node_id for each in units]
    for source, a in enumerate([*ends, A]):
        for target, b in enumerate([*ends, A]):
            is_end = 3 in (source, target)
            num_bytes = header_bytes(2) if is_end else step_bytes(2, 1024)
            link = table.link(a, b)
            assert problem.hop_seconds[source, target] == pytest.approx(link.hop_seconds(num_bytes))
            assert problem.busy_seconds[source, target] == pytest.approx(
                link.busy_seconds(num_bytes)
            )


def test_problems_by_number_of_sequences_are_those_made_one_by_one() -> None:
    of = problems_of(requested(FAST, SLOW))
    for count in (1, 8):
        alone = problem_of(requested(FAST, SLOW), count)
        assert (of(count).item_seconds == alone.item_seconds).all()
        assert (of(count).hop_seconds == alone.hop_seconds).all()


def test_a_problem_needs_a_unit() -> None:
    with pytest.raises(ValueError, match="no units"):
        problem_of(requested(), 1)
