from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.placement.units import candidate, llama_config, work_of

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.explain import ADDED_NODE, explain, unused_units
from potluck.placement.grouping import prediction_of
from potluck.placement.links import Link, LinkTable
from potluck.placement.offering import Pool
from potluck.placement.place import place
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import LayoutStage
from potluck.types.placement import Basis, Plan, Preferences
from potluck.types.quantities import format_bytes

WORK = work_of(llama_config(12))
LAYER_BYTES = candidate("any", WORK).cost.layer_bytes[0]
END_BYTES = candidate("any", WORK).cost.head_bytes
CPU = UnitId("cpu/native")

NETWORK = Link(latency_seconds=1e-3, bytes_per_second=1e9, basis=Basis.MEASURED)


def request(
    *candidates: Candidate, objective: Objective = Objective.LATENCY, num_streams: int = 8
) -> PlaceRequest:
    return PlaceRequest(
        candidates=candidates,
        links=LinkTable(
            network=NETWORK, host_ids={each.node_id: each.node_id for each in candidates}
        ),
        coordinator=candidates[0].node_id,
        preferences=Preferences(objective=objective, num_streams=num_streams),
        max_step_tokens=512,
    )


def placed(place_request: PlaceRequest) -> Plan:
    plan = place(place_request)
    assert plan is not None
    return plan


def room(num_layers: int, *, num_ends: int = 2) -> int:
    """Of a stage with so many layers, and as many of the embedding and the head."""
    return num_layers * LAYER_BYTES + num_ends * END_BYTES + (2 << 20)


def reasons(place_request: PlaceRequest) -> dict[str, str]:
    return {
        each.node_id: each.reason
        for each in unused_units(place_request, placed(place_request)).rejections
    }


def test_what_an_unused_unit_would_add_is_what_its_best_plan_takes_longer() -> None:
    place_request = request(candidate("fast", WORK), candidate("slow", WORK, decode=20.0))
    plan = placed(place_request)
    found = unused_units(place_request, plan)
    # The same with a layer of its own, as the user may ask for it.
    layouts = [
        (("fast", 11), ("slow", 1)),
        (("slow", 1), ("fast", 11)),
    ]
    forced = [
        placed(
            replace(
                place_request,
                preferences=replace(
                    place_request.preferences,
                    layout=tuple(
                        LayoutStage(node_id=NodeId(name), unit_id=CPU, num_layers=count)
                        for name, count in layout
                    ),
                ),
            )
        ).prediction
        for layout in layouts
    ]
    assert plan.prediction is not None
    best = min(each.token_seconds for each in forced if each is not None)
    added = best - plan.prediction.token_seconds
    assert added > 0
    # A unit need not take the embedding or the head with its layer.
    assert 0 < found.added_seconds[NodeId("slow"), CPU] <= added * (1 + 1e-9)
    (rejection,) = found.rejections
    assert rejection.reason.startswith("would add ")
    assert rejection.reason.endswith(" ms per token")


def test_a_unit_that_has_no_room_for_a_layer() -> None:
    place_request = request(
        candidate("fast", WORK), candidate("tiny", WORK, usable_bytes=LAYER_BYTES)
    )
    needed = format_bytes(LAYER_BYTES + (2 << 20))
    reason = f"{format_bytes(LAYER_BYTES)} usable, but one layer needs {needed}"
    assert reasons(place_request) == {"tiny": reason}
    assert unused_units(place_request, placed(place_request)).added_seconds == {}


def test_memory_that_a_used_unit_shares_is_not_counted_twice() -> None:
    place_request = request(
        candidate("fast", WORK, usable_bytes=room(12)),
        candidate("slow", WORK, decode=20.0, usable_bytes=room(12)),
    )
    assert "would add" in reasons(place_request)["slow"]
    pool = Pool(left_bytes=room(12), members=frozenset({0, 1}))
    assert reasons(replace(place_request, pools=(pool,)))["slow"].startswith("0 B usable")


def test_all_stages_of_a_unit_take_of_the_memory_that_it_shares() -> None:
    """As in a plan that keeps what a unit holds, and adds to it what another one lost."""
    place_request = replace(
        request(
            candidate("fast", WORK, usable_bytes=room(14)),
            candidate("slow", WORK, decode=20.0, usable_bytes=room(14)),
        ),
        pools=(Pool(left_bytes=room(12) + (2 << 20), members=frozenset({0, 1})),),
    )
    whole = placed(place_request)
    (stage,) = whole.stages
    halves = [
        replace(
            stage,
            shard=replace(
                stage.shard,
                start_layer=start,
                end_layer=end,
                has_embedding=start == 0,
                has_head=end == 12,
            ),
            num_bytes=room(6, num_ends=1),
        )
        for start, end in ((0, 6), (6, 12))
    ]
    plan = replace(whole, stages=tuple(halves), prediction=prediction_of(place_request, halves))
    (rejection,) = unused_units(place_request, plan).rejections
    assert rejection.reason.startswith("0 B usable")


def test_a_twin_makes_no_difference() -> None:
    """The model does not fit on one of them, and the third would only replace another."""
    units = [candidate(name, WORK, usable_bytes=room(6)) for name in ("a", "b", "c")]
    assert set(reasons(request(*units)).values()) == {"would not reduce the time per token"}


def test_for_throughput_the_rate_counts() -> None:
    place_request = request(
        candidate("fast", WORK, decode=500.0),
        candidate("far", WORK, decode=500.0),
        objective=Objective.THROUGHPUT,
    )
    far = Link(latency_seconds=0.5, bytes_per_second=1e9, basis=Basis.MEASURED)
    place_request = replace(place_request, links=replace(place_request.links, network=far))
    assert re.fullmatch(
        r"would reduce the throughput of 8 streams by \d+ %", reasons(place_request)["far"]
    )


def test_a_layout_says_all() -> None:
    place_request = request(candidate("fast", WORK), candidate("slow", WORK))
    layout = (LayoutStage(node_id=NodeId("slow"), unit_id=CPU, num_layers=12),)
    place_request = replace(place_request, preferences=Preferences(layout=layout))
    found = explain(place_request, placed(place_request))
    assert [each.reason for each in found.rejections] == ["not in the layout"]
    assert (found.one_unit_fewer, found.one_unit_more) == (None, None)


@pytest.mark.slow
def test_one_unit_fewer_is_the_best_of_the_units_that_are_used() -> None:
    """Any two of three have room; without the slowest of them it is fastest."""
    units = [
        candidate(name, WORK, decode=rate, usable_bytes=room(count))
        for name, rate, count in (("a", 200.0, 5), ("b", 150.0, 7), ("c", 160.0, 12))
    ]
    place_request = request(*units, objective=Objective.THROUGHPUT)
    plan = placed(place_request)
    assert len(plan.stages) == 3
    fewer = explain(place_request, plan).one_unit_fewer
    assert fewer is not None
    expected = []
    for left_out in range(3):
        other = placed(
            replace(place_request, candidates=tuple(units[:left_out] + units[left_out + 1 :]))
        )
        assert other.prediction is not None
        expected.append((other.prediction.total_tokens_per_second, units[left_out].node_id))
    best_rate, best_node = max(expected)
    assert fewer.prediction.total_tokens_per_second == pytest.approx(best_rate)
    assert fewer.node_id == best_node
    assert best_node not in {stage.node_id for stage in fewer.stages}


def test_where_none_can_be_done_without_an_unused_unit_takes_its_place() -> None:
    place_request = request(candidate("fast", WORK), candidate("slow", WORK, decode=20.0))
    fewer = explain(place_request, placed(place_request)).one_unit_fewer
    assert fewer is not None
    assert fewer.node_id == "fast"
    assert [stage.node_id for stage in fewer.stages] == ["slow"]


def test_the_only_unit_cannot_be_done_without() -> None:
    place_request = request(candidate("fast", WORK))
    assert explain(place_request, placed(place_request)).one_unit_fewer is None


def test_another_unit_like_the_fastest_takes_over_from_slow_ones() -> None:
    place_request = request(
        candidate("slow", WORK, decode=20.0),
        candidate("fast", WORK, usable_bytes=room(7)),
    )
    plan = placed(place_request)
    assert {stage.node_id for stage in plan.stages} == {"slow", "fast"}
    more = explain(place_request, plan).one_unit_more
    assert more is not None
    assert more.node_id == "fast"
    assert {stage.node_id for stage in more.stages} == {"fast", ADDED_NODE}
    assert plan.prediction is not None
    assert more.prediction.token_seconds < plan.prediction.token_seconds / 2


def test_another_unit_that_does_not_help_is_not_used() -> None:
    place_request = request(candidate("fast", WORK))
    plan = placed(place_request)
    more = explain(place_request, plan).one_unit_more
    assert more is not None
    assert more.stages == plan.stages
    assert more.prediction == plan.prediction


def test_another_unit_is_linked_as_the_one_that_it_is_like() -> None:
    """The nearest machine of the fastest is a slow link away, and so is its twin."""
    slow_link = Link(latency_seconds=0.5, bytes_per_second=1e9, basis=Basis.MEASURED)
    place_request = request(
        candidate("slow", WORK, decode=20.0, usable_bytes=room(7)),
        candidate("fast", WORK, usable_bytes=room(7)),
    )
    near = explain(place_request, placed(place_request)).one_unit_more
    links = replace(place_request.links, links={(NodeId("slow"), NodeId("fast")): slow_link})
    place_request = replace(place_request, links=links, coordinator=NodeId("fast"))
    plan = placed(place_request)
    far = explain(place_request, plan).one_unit_more
    assert near is not None
    assert far is not None
    assert near.prediction.token_seconds < 0.1
    assert far.prediction.token_seconds > 1.0


def test_many_units_are_explained_without_solving_for_all_again() -> None:
    """Of many, another one is looked at beside those that are used."""
    units = [candidate("fast", WORK, usable_bytes=room(7))]
    units += [
        candidate(f"n{index}", WORK, decode=20.0 + index, usable_bytes=room(3))
        for index in range(70)
    ]
    place_request = request(*units)
    plan = placed(place_request)
    found = explain(place_request, plan)
    assert len(found.rejections) + len(plan.stages) == 71
    assert found.one_unit_more is not None
    names = {stage.node_id for stage in found.one_unit_more.stages}
    assert names <= {stage.node_id for stage in plan.stages} | {ADDED_NODE}
