"""Groups of units in plans: when they are chosen, of whom they consist, and what is predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.placement.grouping import (
    FAST,
    LARGE,
    WIRED,
    WIRELESS,
    group_request,
    groups_of,
    joining,
)
from support.placement.units import candidate, work_of

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.candidates import PlaceRequest
from potluck.placement.explain import explain
from potluck.placement.grouping import prediction_of
from potluck.placement.links import LinkTable
from potluck.placement.offering import Pool
from potluck.placement.place import place
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId
from potluck.types.groups import GroupPart, LayoutStage
from potluck.types.placement import PlacedStage, Plan, Preferences

GIB = 2**30


def planned(request: PlaceRequest) -> Plan:
    plan = place(request)
    assert plan is not None
    assert plan.prediction is not None
    return plan


def token_seconds(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.token_seconds


def off(request: PlaceRequest) -> PlaceRequest:
    return replace(request, preferences=replace(request.preferences, tensor_parallel=1))


def shares(plan: Plan) -> list[tuple[int, ...]]:
    return [
        (1,) if group[0].shard.part is None else group[0].shard.part.shares
        for group in groups_of(plan)
    ]


def test_equal_units_on_a_fast_link_form_a_group() -> None:
    request = group_request([joining(name) for name in "abcd"])
    plan = planned(request)
    assert shares(plan) == [(1, 1, 1, 1)]
    assert [stage.shard.part for stage in plan.stages] == [
        GroupPart(member=member, shares=(1, 1, 1, 1)) for member in range(4)
    ]
    assert all(stage.shard.start_layer == 0 for stage in plan.stages)
    assert all(stage.shard.has_embedding and stage.shard.has_head for stage in plan.stages)
    alone = planned(off(request))
    assert len(alone.stages) == 1
    assert 2.2 < token_seconds(alone) / token_seconds(plan) < 4
    # Each has about a fourth of the weights.
    assert all(stage.num_bytes < 0.4 * alone.stages[0].num_bytes for stage in plan.stages)


def test_no_group_on_a_slow_link() -> None:
    request = group_request([joining(name) for name in "abcd"], WIRELESS)
    assert planned(request).stages == planned(off(request)).stages


def test_units_far_away_are_in_no_group() -> None:
    links = LinkTable(
        links={(NodeId("a"), NodeId("b")): FAST, (NodeId("c"), NodeId("d")): FAST},
        network=WIRELESS,
    )
    plan = planned(group_request([joining(name) for name in "abcd"], links=links))
    assert shares(plan) == [(1, 1)]
    assert {stage.node_id for stage in plan.stages} in ({"a", "b"}, {"c", "d"})


def test_a_pipeline_of_groups_holds_what_is_too_large_for_either() -> None:
    """Two pairs of neighbours: each has room for half of the model."""
    links = LinkTable(
        links={(NodeId("a"), NodeId("b")): FAST, (NodeId("c"), NodeId("d")): FAST},
        network=WIRELESS,
    )
    units = [joining(name, usable_bytes=int(0.45 * GIB)) for name in "abcd"]
    plan = planned(group_request(units, links=links))
    assert shares(plan) == [(1, 1), (1, 1)]
    first, second = groups_of(plan)
    assert {stage.node_id for stage in first} in ({"a", "b"}, {"c", "d"})
    assert first[0].shard.end_layer == second[0].shard.start_layer
    assert all(stage.num_bytes <= 0.45 * GIB for stage in plan.stages)
    assert plan.prediction is not None
    assert [each.node_id for each in plan.prediction.stages] == [s.node_id for s in plan.stages]
    assert [each.hop_seconds > 0 for each in plan.prediction.stages] == [True, False, True, False]


def test_shares_follow_speeds() -> None:
    units = [joining("slow", 50.0), joining("fast", 100.0), joining("also-slow", 50.0)]
    plan = planned(group_request(units, FAST))
    assert [stage.node_id for stage in plan.stages] == ["fast", "slow", "also-slow"]
    assert shares(plan) == [(2, 1, 1)]
    assert token_seconds(planned(off(group_request(units, FAST)))) > 1.6 * token_seconds(plan)


def test_shares_follow_quotas() -> None:
    units = [joining("a"), joining("b", usable_share=0.5), joining("c", usable_share=0.5)]
    assert shares(planned(group_request(units, FAST))) == [(2, 1, 1)]


def test_a_member_without_a_quota_is_not_seen_to_pause() -> None:
    """The others have less to do, as much as they are held up."""
    units = [joining("a", 300.0), joining("b", 300.0, usable_share=0.5)]
    plan = planned(group_request(units, FAST, preferences=Preferences(tensor_parallel=2)))
    assert shares(plan) == [(2, 1)]
    assert plan.prediction is not None
    leader = plan.prediction.stages[0]
    assert leader.decode_seconds == pytest.approx(token_seconds(plan), rel=0.05)
    # Where all are held up, most steps are quicker than that.
    units = [joining(name, 300.0, usable_share=0.5) for name in "ab"]
    plan = planned(group_request(units, FAST, preferences=Preferences(tensor_parallel=2)))
    assert plan.prediction is not None
    assert plan.prediction.stages[0].decode_seconds < 0.7 * token_seconds(plan)


def test_the_unit_of_the_coordinator_leads() -> None:
    units = [joining("fast", 100.0), joining("coordinator", 50.0)]
    plan = planned(group_request(units, FAST))
    assert [stage.node_id for stage in plan.stages] == ["coordinator", "fast"]
    assert shares(plan) == [(1, 2)]


def test_memory_limits_a_share() -> None:
    small = joining("small", usable_bytes=int(0.3 * GIB))
    plan = planned(group_request([small, joining("large")], FAST))
    (own,) = shares(plan)
    place = [stage.node_id for stage in plan.stages].index(NodeId("small"))
    assert own[place] < 0.25 * sum(own)
    assert {stage.node_id: stage.num_bytes for stage in plan.stages}[NodeId("small")] <= 0.3 * GIB


@pytest.mark.parametrize("number", [None, 2])
def test_a_unit_without_room_is_in_no_group(number: int | None) -> None:
    units = [joining("full", 200.0, usable_bytes=1 << 20), joining("a"), joining("b")]
    plan = planned(group_request(units, FAST, preferences=Preferences(tensor_parallel=number)))
    assert [stage.node_id for stage in plan.stages] == ["a", "b"]


def test_units_of_other_backends_join_no_group() -> None:
    request = group_request([joining("a"), replace(joining("b"), divided_cost=None)], FAST)
    assert len(planned(request).stages) == 1
    with pytest.raises(ParameterError, match="--tensor-parallel 2: 1 unit can join a group"):
        place(replace(request, preferences=Preferences(tensor_parallel=2)))


@pytest.mark.parametrize("number", [2, 3])
def test_every_stage_is_on_so_many_units(number: int) -> None:
    units = [joining(name) for name in "abcdef"]
    plan = planned(group_request(units, WIRELESS, preferences=Preferences(tensor_parallel=number)))
    assert all(len(group) == number for group in groups_of(plan))


def test_more_units_than_there_are_cannot_be_asked_for() -> None:
    request = group_request(
        [joining("a"), joining("b")], FAST, preferences=Preferences(tensor_parallel=3)
    )
    with pytest.raises(ParameterError, match="--tensor-parallel 3: 2 units can join a group"):
        place(request)


def test_units_that_share_memory_share_it_in_a_group_too() -> None:
    units = [joining(name, usable_bytes=GIB) for name in "ab"]
    pool = Pool(left_bytes=int(0.8 * GIB), members=frozenset({0, 1}))
    request = replace(group_request(units, FAST), pools=(pool,))
    found = place(request)
    assert found is None or sum(stage.num_bytes for stage in found.stages) <= 0.8 * GIB
    roomy = replace(request, pools=(replace(pool, left_bytes=2 * GIB),))
    assert shares(planned(roomy)) == [(1, 1)]


def layout(*stages: tuple[str, int, GroupPart | None]) -> Preferences:
    return Preferences(
        layout=tuple(
            LayoutStage(
                node_id=NodeId(name),
                unit_id=joining("a").unit_id,
                num_layers=num_layers,
                part=part,
            )
            for name, num_layers, part in stages
        )
    )


def parts(*members: int) -> list[GroupPart]:
    return [GroupPart(member=index, shares=members) for index in range(len(members))]


def test_a_layout_with_groups_is_predicted_and_counted() -> None:
    two, one = parts(3, 1), None
    wants = layout(("a", 10, two[0]), ("b", 10, two[1]), ("c", 6, one))
    plan = planned(group_request([joining(name) for name in "abc"], preferences=wants))
    assert [(s.node_id, s.shard.start_layer, s.shard.end_layer) for s in plan.stages] == [
        ("a", 0, 10),
        ("b", 0, 10),
        ("c", 10, 16),
    ]
    assert [stage.shard.part for stage in plan.stages] == [*two, one]
    assert plan.stages[0].num_bytes > 2 * plan.stages[1].num_bytes
    assert plan.prediction is not None
    first, second, last = plan.prediction.stages
    assert first.exchange_seconds == second.exchange_seconds > 0
    assert last.exchange_seconds == 0


def test_a_layout_whose_member_has_no_room_names_it() -> None:
    two = parts(1, 1)
    wants = layout(("a", 16, two[0]), ("b", 16, two[1]))
    units = [joining("a"), joining("b", usable_bytes=GIB // 4)]
    with pytest.raises(InsufficientMemoryError, match=r"16 layers need .* on cpu/native on node b"):
        place(group_request(units, preferences=wants))


def test_a_layout_with_a_unit_that_cannot_join_is_refused() -> None:
    two = parts(1, 1)
    wants = layout(("a", 16, two[0]), ("b", 16, two[1]))
    units = [joining("a"), replace(joining("b"), divided_cost=None)]
    with pytest.raises(ParameterError, match="cpu/native on node b cannot join a group"):
        place(group_request(units, preferences=wants))


def test_the_time_of_a_group_is_its_slowest_parts_and_its_exchanges() -> None:
    request = group_request([joining("a"), joining("b")], WIRED)
    two = parts(1, 1)
    wants = layout(("a", 16, two[0]), ("b", 16, two[1]))
    plan = planned(replace(request, preferences=wants))
    alone = planned(off(request))
    assert plan.prediction is not None
    assert alone.prediction is not None
    leader, member = plan.prediction.stages
    assert (leader.decode_seconds, leader.hop_seconds > 0) == (member.decode_seconds, True)
    assert member.hop_seconds == 0
    # 66 exchanges of 120 µs each and more.
    assert 66 * 120e-6 < leader.exchange_seconds < 66 * 350e-6
    computing = leader.decode_seconds - leader.exchange_seconds
    assert 0.5 < computing / alone.prediction.stages[0].decode_seconds < 0.55
    slower = replace(request, preferences=wants, links=LinkTable(network=WIRELESS))
    added = token_seconds(planned(slower)) - token_seconds(plan)
    assert added > 66 * (3e-3 - 120e-6)


def test_a_prediction_of_the_same_stages_is_the_same() -> None:
    request = group_request([joining(name) for name in "abc"], FAST)
    plan = planned(request)
    assert prediction_of(request, plan.stages) == plan.prediction


def test_a_plan_that_keeps_a_group_and_fills_on_one_of_its_units_is_predicted() -> None:
    request = group_request([joining(name) for name in "ab"], FAST)
    whole = planned(replace(request, preferences=Preferences(tensor_parallel=2))).stages
    before = [replace(s, shard=replace(s.shard, end_layer=10, has_head=False)) for s in whole]
    rest = replace(
        whole[0], shard=replace(whole[0].shard, start_layer=10, has_embedding=False, part=None)
    )
    prediction = prediction_of(request, [*before, rest])
    assert len(prediction.stages) == 3


def test_unused_units_are_told_what_joining_would_change() -> None:
    slow = joining("z", 0.5)
    request = group_request([joining("a"), joining("b"), slow], FAST)
    plan = planned(request)
    assert {stage.node_id for stage in plan.stages} == {"a", "b"}
    explained = explain(request, plan)
    (rejection,) = explained.rejections
    assert rejection.node_id == "z"
    assert rejection.reason.startswith(("would add", "would not reduce the time per token"))
    assert explained.without_groups is not None
    assert explained.in_groups is None
    assert explained.without_groups.prediction.token_seconds > token_seconds(plan)


def test_a_plan_without_groups_says_what_the_best_group_would_take() -> None:
    request = group_request([joining("a"), joining("b")], WIRELESS)
    plan = planned(request)
    explained = explain(request, plan)
    assert explained.without_groups is None
    assert explained.in_groups is not None
    assert explained.in_groups.prediction.token_seconds > token_seconds(plan)


def test_for_throughput_groups_are_chosen_where_they_serve_more() -> None:
    units = [joining(name) for name in "abcd"]
    wants = Preferences(objective=Objective.THROUGHPUT, num_streams=4)
    request = group_request(units, FAST, preferences=wants)
    plan, alone = planned(request), planned(off(request))
    assert plan.prediction is not None
    assert alone.prediction is not None
    assert plan.prediction.total_tokens_per_second >= alone.prediction.total_tokens_per_second
    assert plan.prediction.steps_in_flight <= len(groups_of(plan)) + 1


def test_where_nothing_can_be_divided_there_are_no_groups() -> None:
    units = [candidate(name, work_of(LARGE)) for name in "ab"]
    request = replace(group_request(units, FAST), divide=None)
    assert len(planned(request).stages) == 1


def test_every_member_has_the_layers_of_its_leader() -> None:
    request = group_request([joining(name) for name in "abcd"], FAST)
    for group in groups_of(planned(request)):
        (whole,) = {replace(stage.shard, part=None) for stage in group}
        assert all(
            stage.shard == replace(whole, part=GroupPart(member=index, shares=shares_of(group)))
            for index, stage in enumerate(group)
        )


def shares_of(group: tuple[PlacedStage, ...]) -> tuple[int, ...]:
    part = group[0].shard.part
    assert part is not None
    return part.shares
