"""Plans around what is held: every layer once, what is kept unchanged, no memory overdrawn."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster.node_reports import node_report
from support.placement.grouping import groups_of

from potluck.placement.cuts import shard_of
from potluck.placement.stage_reuse import (
    Holding,
    is_of_size,
    keep_and_fill,
    kept,
    released,
    reserved,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.groups import GroupPart
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.node import UnitReport
from potluck.types.placement import ModelCost, UnitOffer
from potluck.types.program import Shard
from potluck.types.stage import StageSize

NUM_LAYERS = 8
LAYER, EMBEDDING, HEAD, FIXED = 100, 30, 20, 7
COST = ModelCost(
    layer_bytes=(LAYER,) * NUM_LAYERS,
    embedding_bytes=EMBEDDING,
    head_bytes=HEAD,
    shared_bytes=0,
    scratch_bytes=4,
    process_bytes=3,
    lone_embedding_bytes=EMBEDDING + 2,
    lone_head_bytes=HEAD + 2,
)
SIZE = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=64, num_threads=1)
UNIT = UnitId("cpu/native")
NODES = [NodeId(name) for name in "abcd"]


def held(node: NodeId, start: int, end: int, *, epoch: int = 1, num_blocks: int = 4) -> Holding:
    return Holding(
        node_id=node,
        stage=HeldStage(
            deployment=DeploymentId("d"),
            epoch=Epoch(number=epoch, coordinator=NODES[0]),
            unit_id=UNIT,
            shard=Shard(
                start_layer=start,
                end_layer=end,
                num_layers=NUM_LAYERS,
                has_embedding=start == 0,
                has_head=end == NUM_LAYERS,
            ),
            context_tokens=64,
            num_blocks=num_blocks,
            quantization=Quantization.NONE,
            arithmetic=Arithmetic.EXACT,
            is_mapped=False,
            num_bytes=_bytes(start, end),
            device_bytes=0,
        ),
    )


def _bytes(start: int, end: int) -> int:
    ends = EMBEDDING * (start == 0) + HEAD * (end == NUM_LAYERS)
    return LAYER * (end - start) + ends + FIXED


@st.composite
def holdings(draw: st.DrawFn) -> list[Holding]:
    """Any stages anywhere: with gaps, overlaps and copies."""
    result = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, NUM_LAYERS - 1))
        end = draw(st.integers(start + 1, NUM_LAYERS))
        node = draw(st.sampled_from(NODES))
        result.append(held(node, start, end, epoch=draw(st.integers(1, 3))))
    return result


@st.composite
def offers(draw: st.DrawFn) -> list[UnitOffer]:
    """What some nodes have left."""
    return [
        UnitOffer(node_id=node, unit_id=UNIT, usable_bytes=draw(st.integers(0, 1000)))
        for node in NODES
        if draw(st.booleans())
    ]


@pytest.mark.slow
@settings(max_examples=300)
@given(holdings(), offers())
def test_a_plan_around_what_is_held_is_a_whole_model(
    some: list[Holding], left: list[UnitOffer]
) -> None:
    keeping = kept(some, NUM_LAYERS)
    plan = keep_and_fill(keeping, left, COST)
    if plan is None:
        return
    shards = [stage.shard for stage in plan.stages]
    layers = [layer for shard in shards for layer in range(shard.start_layer, shard.end_layer)]
    assert layers == list(range(NUM_LAYERS))
    assert [shard.has_embedding for shard in shards] == [True] + [False] * (len(shards) - 1)
    assert [shard.has_head for shard in shards] == [False] * (len(shards) - 1) + [True]
    planned = [
        (stage.node_id, stage.shard.start_layer, stage.shard.end_layer, stage.num_bytes)
        for stage in plan.stages
    ]
    kept_stages = [(each.node_id, *_span(each), each.stage.num_bytes) for each in keeping]
    assert Counter(planned) >= Counter(kept_stages), "what is kept is as it was"
    taken = Counter[NodeId]()
    for node, start, end, num_bytes in (Counter(planned) - Counter(kept_stages)).elements():
        assert num_bytes >= _bytes(start, end)
        taken[node] += num_bytes
    usable = {offer.node_id: offer.usable_bytes for offer in left}
    assert all(num_bytes <= usable.get(node, 0) for node, num_bytes in taken.items())


@pytest.mark.slow
@settings(max_examples=200)
@given(offers(), st.frozensets(st.integers(1, NUM_LAYERS - 1)))
def test_a_gap_is_filled_without_cutting_what_belongs_together(
    left: list[UnitOffer], no_cuts: frozenset[int]
) -> None:
    keeping = [held(NODES[3], 2, 4)]
    cost = replace(COST, no_cuts=no_cuts)
    plan = keep_and_fill(keeping, left, cost)
    if plan is not None:
        assert not no_cuts - {2, 4} & {each.shard.start_layer for each in plan.stages[1:]}


@pytest.mark.slow
@settings(max_examples=300)
@given(holdings())
def test_what_is_kept_overlaps_nowhere_and_is_as_much_as_possible(some: list[Holding]) -> None:
    keeping = kept(some, NUM_LAYERS)
    spans = [_span(each) for each in keeping]
    assert spans == sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert sum(map(_weight, spans)) == _most([_span(each) for each in some])


@settings(max_examples=100)
@given(holdings(), st.randoms(use_true_random=False))
def test_the_order_of_reports_changes_nothing(some: list[Holding], draws: object) -> None:
    shuffled = list(some)
    draws.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [_span(each) for each in kept(shuffled, NUM_LAYERS)] == [
        _span(each) for each in kept(some, NUM_LAYERS)
    ]


def test_what_is_held_of_a_model_with_other_layers_is_not_kept() -> None:
    first, rest = held(NODES[0], 0, 5), held(NODES[1], 5, NUM_LAYERS)
    shard = replace(first.stage.shard, num_layers=NUM_LAYERS + 1)
    strange = replace(first, stage=msgspec.structs.replace(first.stage, shard=shard))
    assert kept([first, rest], NUM_LAYERS) == (first, rest)
    assert kept([strange, rest], NUM_LAYERS) == (rest,)


def _span(holding: Holding) -> tuple[int, int]:
    return holding.stage.shard.start_layer, holding.stage.shard.end_layer


def _weight(span: tuple[int, int]) -> int:
    """Layers, and the ends that come with them."""
    start, end = span
    return end - start + (start == 0) + (end == NUM_LAYERS)


def _most(spans: list[tuple[int, int]], start: int = 0) -> int:
    """By trying everything."""
    return max(
        (_weight(span) + _most(spans, span[1]) for span in spans if span[0] >= start),
        default=0,
    )


def test_of_two_holders_that_in_use_is_kept() -> None:
    both = [held(NODES[0], 0, 4, epoch=9), held(NODES[1], 0, 4)]
    assert kept(both, NUM_LAYERS)[0].node_id == NODES[0]
    in_use = {(NODES[1], UNIT, 0, 4)}
    assert kept(both, NUM_LAYERS, in_use)[0].node_id == NODES[1]


def test_nothing_held_is_no_plan() -> None:
    assert (
        keep_and_fill([], [UnitOffer(node_id=NODES[0], unit_id=UNIT, usable_bytes=9999)], COST)
        is None
    )


def test_a_gap_goes_to_one_unit_that_has_nothing_yet_if_it_fits_there() -> None:
    keeping = [held(NODES[0], 0, 4)]
    left = [
        UnitOffer(node_id=NODES[0], unit_id=UNIT, usable_bytes=900),
        UnitOffer(node_id=NODES[1], unit_id=UNIT, usable_bytes=500),
    ]
    plan = keep_and_fill(keeping, left, COST)
    assert plan is not None
    assert [stage.node_id for stage in plan.stages] == [NODES[0], NODES[1]]


def test_stages_of_another_size_are_not_kept() -> None:
    assert is_of_size(held(NODES[0], 0, 4).stage, SIZE)
    assert not is_of_size(held(NODES[0], 0, 4, num_blocks=5).stage, SIZE)


# Groups.


def part_held(
    node: NodeId,
    start: int,
    end: int,
    member: int,
    shares: tuple[int, ...],
    *,
    unit: UnitId = UNIT,
    epoch: int = 1,
) -> Holding:
    whole = held(node, start, end, epoch=epoch)
    part = GroupPart(member=member, shares=shares)
    shard = replace(whole.stage.shard, part=part)
    return replace(whole, stage=msgspec.structs.replace(whole.stage, shard=shard, unit_id=unit))


def test_the_members_of_a_group_are_kept_together_and_in_order() -> None:
    a, b, c, _ = NODES
    group = [part_held(b, 0, 5, 1, (2, 1)), part_held(a, 0, 5, 0, (2, 1))]
    rest = held(c, 5, NUM_LAYERS)
    assert kept([*group, rest], NUM_LAYERS) == (group[1], group[0], rest)
    plan = keep_and_fill(kept([*group, rest], NUM_LAYERS), [], COST)
    assert plan is not None
    assert [(each.node_id, each.shard.part) for each in plan.stages] == [
        (a, GroupPart(member=0, shares=(2, 1))),
        (b, GroupPart(member=1, shares=(2, 1))),
        (c, None),
    ]
    assert [len(each) for each in groups_of(plan)] == [2, 1]
    assert {each.shard.has_embedding for each in groups_of(plan)[0]} == {True}


def test_a_group_without_all_of_its_members_is_not_kept() -> None:
    a, b, c, d = NODES
    rest = held(c, 5, NUM_LAYERS)
    for broken in (
        [part_held(a, 0, 5, 0, (2, 1))],
        [part_held(b, 0, 5, 1, (2, 1))],
        [part_held(a, 0, 5, 0, (2, 1)), part_held(b, 0, 5, 1, (1, 1))],
        [part_held(a, 0, 5, 0, (2, 1)), part_held(a, 0, 5, 1, (2, 1))],
        [part_held(a, 0, 5, 0, (2, 1)), part_held(b, 1, 5, 1, (2, 1))],
    ):
        assert kept([*broken, rest], NUM_LAYERS) == (rest,)
    offer = UnitOffer(node_id=d, unit_id=UNIT, usable_bytes=_bytes(0, 5))
    plan = keep_and_fill(kept([part_held(a, 0, 5, 0, (2, 1)), rest], NUM_LAYERS), [offer], COST)
    assert plan is not None
    assert [(each.node_id, each.shard.part) for each in plan.stages] == [(d, None), (c, None)]


def test_a_spare_takes_the_place_of_a_lost_member() -> None:
    a, b, c, _ = NODES
    leader, member = part_held(a, 0, 8, 0, (1, 1)), part_held(b, 0, 8, 1, (1, 1))
    spare = part_held(c, 0, 8, 1, (1, 1))
    in_use = {(a, UNIT, 0, 8), (b, UNIT, 0, 8)}
    assert kept([spare, member, leader], NUM_LAYERS, in_use) == (leader, member)
    assert kept([spare, leader], NUM_LAYERS, in_use) == (leader, spare)


def test_a_part_is_another_stage_than_the_whole() -> None:
    holding = part_held(NODES[0], 0, 8, 0, (1, 1))
    shard = shard_of(0, NUM_LAYERS + 2, NUM_LAYERS)
    assert not holding.is_stage(holding.unit, shard, SIZE)
    for part, is_same in (
        (GroupPart(member=0, shares=(1, 1)), True),
        (GroupPart(member=1, shares=(1, 1)), False),
        (GroupPart(member=0, shares=(2, 1)), False),
    ):
        assert holding.is_stage(holding.unit, replace(shard, part=part), SIZE) is is_same


def test_memory_that_is_promised_is_not_usable_until_it_is_released() -> None:
    gpu = UnitId("gpu/tinygrad:CUDA")
    report = node_report(
        NODES[0],
        unit_report(UNIT, usable_bytes=1000, is_shared=True),
        unit_report(gpu, usable_bytes=500, is_shared=False),
        usable_bytes=1000,
    )
    on_host = MemoryPlan(
        weights=(("bf16", 200),),
        cache_bytes=10,
        rope_bytes=0,
        scratch_bytes=0,
        staging_bytes=0,
        process_bytes=20,
    )
    on_device = replace(on_host, is_on_device=True)
    promised = reserved(report, [(UNIT, on_host), (gpu, on_device)])
    units = {unit.unit_id: unit.usable_bytes for unit in promised.units}
    assert units == {UNIT: 1000 - 230 - 20, gpu: 500 - 210}
    assert promised.usable_bytes == 1000 - 230 - 20
    assert promised.untaken_bytes == 250

    stages = [
        msgspec.structs.replace(
            held(NODES[0], 0, 1).stage,
            unit_id=unit_id,
            num_bytes=memory.host_bytes,
            device_bytes=memory.device_bytes,
        )
        for unit_id, memory in ((UNIT, on_host), (gpu, on_device))
    ]
    assert released(promised, stages) == report


def unit_report(unit_id: UnitId, *, usable_bytes: int, is_shared: bool) -> UnitReport:
    return UnitReport(
        unit_id=unit_id,
        backend="native",
        description="",
        usable_bytes=usable_bytes,
        is_shared=is_shared,
        num_threads=1,
        max_threads=1,
    )
