"""Plans with groups, of random clusters: never slower than the best plan without by prediction."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.placement.grouping import LARGE, SIZE, group_request, groups_of, joining
from support.placement.units import llama_config

from potluck.errors import ParameterError
from potluck.placement.candidates import PlaceRequest
from potluck.placement.cuts import items_of
from potluck.placement.grouping import prediction_of
from potluck.placement.links import Link, LinkTable
from potluck.placement.place import place
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis, Plan, Preferences

SMALL = llama_config(6, num_kv_heads=2, vocab_size=4096)
NUM_CLUSTERS = 60


def cluster(seed: int) -> PlaceRequest:
    """Return one to six units, equal or not, some without groups, with random links and memory."""
    random = np.random.default_rng(seed)
    config = LARGE if random.random() < 0.6 else SMALL
    num_units = int(random.integers(1, 7))
    is_equal, is_tight = random.random() < 0.4, random.random() < 0.4
    total = sum(joining("a", config=config).cost.layer_bytes)
    units = []
    for index in range(num_units):
        decode = 100.0 if is_equal else float(np.exp(random.uniform(2, 6)))
        usable = int(total * random.uniform(0.15, 1.2)) + (1 << 27) if is_tight else 1 << 40
        unit = joining(f"n{index}", decode, config=config, usable_bytes=usable)
        units.append(unit if random.random() < 0.85 else replace(unit, divided_cost=None))
    links = {}
    scale = 10.0 ** random.uniform(-5, -2)
    for a in range(num_units):
        for b in range(num_units):
            if a != b and random.random() < 0.8:
                links[NodeId(f"n{a}"), NodeId(f"n{b}")] = Link(
                    latency_seconds=float(scale * random.uniform(0.5, 2)),
                    bytes_per_second=float(10.0 ** random.uniform(6.5, 9.5)),
                    basis=Basis.MEASURED,
                )
    throughput = random.random() < 0.25
    return replace(
        group_request(
            units,
            config=config,
            size=SIZE,
            links=LinkTable(links=links),
            preferences=Preferences(
                objective=Objective.THROUGHPUT if throughput else Objective.LATENCY,
                num_streams=int(random.integers(1, 9)),
            ),
        ),
        coordinator=NodeId("n0"),
    )


def without_groups(request: PlaceRequest) -> PlaceRequest:
    return replace(request, preferences=replace(request.preferences, tensor_parallel=1))


def check(request: PlaceRequest, plan: Plan) -> None:
    """Check that a plan is one: all items once, members together, in room."""
    usable = {(each.node_id, each.unit_id): each.usable_bytes for each in request.candidates}
    able = {
        (each.node_id, each.unit_id): each.divided_cost is not None for each in request.candidates
    }
    units = [(stage.node_id, stage.unit_id) for stage in plan.stages]
    assert len(set(units)) == len(units)
    position = 0
    for group in groups_of(plan):
        start, end = items_of(group[0].shard)
        assert start == position < end
        position = end
        parts = [stage.shard.part for stage in group]
        if parts == [None]:
            continue
        shares = parts[0].shares if parts[0] is not None else ()
        assert len(group) == len(shares)
        assert [None if part is None else (part.member, part.shares) for part in parts] == [
            (member, shares) for member in range(len(shares))
        ]
        assert len({replace(stage.shard, part=None) for stage in group}) == 1
        assert group[0].shard.start_layer < group[0].shard.end_layer
        assert all(able[stage.node_id, stage.unit_id] for stage in group)
    assert position == request.num_layers + 2
    for stage in plan.stages:
        assert stage.num_bytes <= usable[stage.node_id, stage.unit_id]
    assert plan.prediction is not None
    assert [(each.node_id, each.unit_id) for each in plan.prediction.stages] == units
    assert plan.prediction.steps_in_flight <= len(groups_of(plan)) + 1
    again = prediction_of(request, plan.stages)
    assert math.isclose(again.token_seconds, plan.prediction.token_seconds)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_CLUSTERS, 10))
def test_a_plan_with_groups_is_never_predicted_to_be_slower(first: int) -> None:
    """Clusters are many, and few have room for nothing at all or are best without groups."""
    chosen = 0
    for seed in range(first, first + 10):
        request = cluster(seed)
        plan, alone = place(request), place(without_groups(request))
        if plan is None:
            assert alone is None
            continue
        check(request, plan)
        has_groups = len(groups_of(plan)) < len(plan.stages)
        chosen += has_groups
        if alone is None:
            assert has_groups, "what fits only with groups has groups"
            continue
        assert plan.prediction is not None
        assert alone.prediction is not None
        objective = request.preferences.objective
        ratio = plan.prediction.rate(objective) / alone.prediction.rate(objective)
        assert ratio >= (1.05 if has_groups else 1.0) * (1 - 1e-9), seed
    assert chosen > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 115))
def test_faster_units_have_larger_shares(seed: int) -> None:
    request = cluster(seed)
    candidates = tuple(
        joining(each.node_id, decode, usable_bytes=1 << 40)
        for each, decode in zip(
            request.candidates, (300.0, 40.0, 120.0, 77.0, 9.0, 40.0), strict=False
        )
    )
    number = max(2, len(candidates) // 2)
    wants = Preferences(tensor_parallel=number)
    roomy = group_request(candidates, preferences=wants, links=request.links)
    if len(candidates) < number:
        return
    plan = place(roomy)
    assert plan is not None
    assert {len(group) for group in groups_of(plan)} == {number}
    seconds = {each.node_id: sum(each.times.decode().item_seconds) for each in roomy.candidates}
    for group in groups_of(plan):
        part = group[0].shard.part
        assert part is not None
        by_speed = sorted(zip(group, part.shares, strict=True), key=lambda e: seconds[e[0].node_id])
        shares = [share for _, share in by_speed]
        assert shares == sorted(shares, reverse=True)
        takes = [seconds[stage.node_id] * share for stage, share in by_speed]
        # No member has much more to do than the fastest, but for whole numbers of shares.
        assert max(takes) <= 1.03 * sum(part.shares) / sum(
            1 / seconds[stage.node_id] for stage in group
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 215))
@pytest.mark.parametrize("number", [2, 3])
def test_where_a_number_of_units_is_asked_for_every_stage_has_it(seed: int, number: int) -> None:
    request = cluster(seed)
    request = replace(request, preferences=replace(request.preferences, tensor_parallel=number))
    able = sum(each.divided_cost is not None for each in request.candidates)
    if able < number:
        with pytest.raises(ParameterError, match="can join a group"):
            place(request)
        return
    plan = place(request)
    if plan is not None:
        check(request, plan)
        assert {len(group) for group in groups_of(plan)} == {number}
