"""Plans around what is held: every layer once, what is kept unchanged, no memory overdrawn."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.loading import StageSize
from potluck.placement.keeping import Holding, is_of_size, keep_and_fill, kept
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.node import HeldStage
from potluck.types.placement import ModelCost, UnitOffer
from potluck.types.quantization import Quantization

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
    has_embedding, has_head = start == 0, end == NUM_LAYERS
    return Holding(
        node_id=node,
        stage=HeldStage(
            deployment=DeploymentId("d"),
            epoch=Epoch(number=epoch, coordinator=NODES[0]),
            unit_id=UNIT,
            start_layer=start,
            end_layer=end,
            has_embedding=has_embedding,
            has_head=has_head,
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


@settings(max_examples=300, deadline=None)
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
    kept_stages = [
        (each.node_id, each.stage.start_layer, each.stage.end_layer, each.stage.num_bytes)
        for each in keeping
    ]
    assert Counter(planned) >= Counter(kept_stages), "what is kept is as it was"
    taken = Counter[NodeId]()
    for node, start, end, num_bytes in (Counter(planned) - Counter(kept_stages)).elements():
        assert num_bytes >= _bytes(start, end)
        taken[node] += num_bytes
    usable = {offer.node_id: offer.usable_bytes for offer in left}
    assert all(num_bytes <= usable.get(node, 0) for node, num_bytes in taken.items())


@settings(max_examples=200, deadline=None)
@given(offers(), st.frozensets(st.integers(1, NUM_LAYERS - 1)))
def test_a_gap_is_filled_without_cutting_what_belongs_together(
    left: list[UnitOffer], no_cuts: frozenset[int]
) -> None:
    keeping = [held(NODES[3], 2, 4)]
    cost = replace(COST, no_cuts=no_cuts)
    plan = keep_and_fill(keeping, left, cost)
    if plan is not None:
        assert not no_cuts - {2, 4} & {each.shard.start_layer for each in plan.stages[1:]}


@settings(max_examples=300, deadline=None)
@given(holdings())
def test_what_is_kept_overlaps_nowhere_and_is_as_much_as_possible(some: list[Holding]) -> None:
    keeping = kept(some, NUM_LAYERS)
    spans = [(each.stage.start_layer, each.stage.end_layer) for each in keeping]
    assert spans == sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert sum(map(_weight, spans)) == _most([_span(each) for each in some])


@settings(max_examples=100, deadline=None)
@given(holdings(), st.randoms(use_true_random=False))
def test_the_order_of_reports_changes_nothing(some: list[Holding], draws: object) -> None:
    shuffled = list(some)
    draws.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [_span(each) for each in kept(shuffled, NUM_LAYERS)] == [
        _span(each) for each in kept(some, NUM_LAYERS)
    ]


def _span(holding: Holding) -> tuple[int, int]:
    return holding.stage.start_layer, holding.stage.end_layer


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
