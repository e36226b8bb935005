"""Models of which some layers share keys and values: counted once, and never cut between them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cluster.node_reports import node_report
from support.engines import reference_backend
from support.placement.units import llama_config, profile_of, rates

from potluck.engines.backends import BACKENDS, cost_of
from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.models.layers import with_attention
from potluck.models.program import build_program, program_to_count
from potluck.models.rope import empty_rope_tables
from potluck.placement.costs import Counting, model_cost
from potluck.placement.model_counting import counting_of
from potluck.placement.placing import Placed, Placement
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.work import model_work
from potluck.types.choices import Objective, Quantization
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import LayoutStage
from potluck.types.model import AttentionConfig, ModelConfig, PerLayerInputs
from potluck.types.node import UnitReport
from potluck.types.placement import Preferences
from potluck.types.program import Shard
from potluck.types.stage import StageSize

NUM_LAYERS = 8
UNIT = UnitId("gpu/reference")
SIZE = StageSize(
    context_tokens=256,
    num_blocks=16,
    max_step_tokens=64,
    num_threads=2,
    backend=reference_backend.SPEC.name,
)
FASTEST = Preferences()
TABLE = (*BACKENDS, reference_backend.SPEC)
ON_BACKENDS = pytest.mark.parametrize(
    "size", [replace(SIZE, backend=spec.name) for spec in TABLE], ids=lambda size: size.backend
)


def sharing(shared: dict[int, int], **values: Any) -> ModelConfig:
    """Layers of ``shared`` read the keys and values of another one."""

    def changed(index: int, attention: AttentionConfig) -> AttentionConfig:
        return replace(attention, shared_layer=shared.get(index))

    return with_attention(llama_config(NUM_LAYERS, **values), changed)


def with_inputs(config: ModelConfig) -> ModelConfig:
    return replace(config, per_layer_inputs=PerLayerInputs(width=32))


def counting_for(config: ModelConfig) -> Counting:
    return counting_of(profile_of(config), partial(cost_of, backends=TABLE))


SHARED = sharing({3: 2, 4: 1, 7: 6})
"""May be cut before the layers 1, 5 and 6."""


def placed(config: ModelConfig, usable: list[int], preferences: Preferences = FASTEST) -> Placed:
    nodes = [
        node_report(
            f"n{index}",
            UnitReport(
                unit_id=UNIT,
                backend=reference_backend.SPEC.name,
                description="",
                usable_bytes=num_bytes,
                is_shared=True,
                num_threads=2,
                max_threads=2,
                rates=rates(50.0 + index, 500.0),
            ),
            usable_bytes=num_bytes,
        )
        for index, num_bytes in enumerate(usable)
    ]
    snapshot = ClusterSnapshot(
        reports=nodes, able=nodes, coordinator=NodeId("n0"), preferences=preferences
    )
    return Placement(counting_for(config), snapshot).of(SIZE, may_quantize=False)


@ON_BACKENDS
def test_parts_add_up_to_the_whole(size: StageSize) -> None:
    counting = counting_for(SHARED)
    cost = model_cost(counting, size)
    assert cost.no_cuts == SHARED.no_cuts == {2, 3, 4, 7}
    whole = counting.stage(Shard.whole(NUM_LAYERS), size).memory
    held = sum(cost.layer_bytes) + cost.embedding_bytes + cost.head_bytes
    assert whole.weights_bytes + whole.cache_bytes <= held
    for start, end in ((0, 1), (1, 5), (5, 6), (6, 8)):
        shard = Shard(
            start_layer=start, end_layer=end, num_layers=8, has_embedding=False, has_head=False
        )
        memory = counting.stage(shard, size).memory
        assert sum(cost.layer_bytes[start:end]) == memory.weights_bytes + memory.cache_bytes


@ON_BACKENDS
def test_a_shared_cache_takes_its_memory_once(size: StageSize) -> None:
    own, shared = (
        counting_for(each).stage(Shard.whole(NUM_LAYERS), size).memory.cache_bytes
        for each in (llama_config(NUM_LAYERS), SHARED)
    )
    assert shared * 8 == own * 5


def test_caches_of_several_sizes_take_what_each_needs() -> None:
    def changed(index: int, attention: AttentionConfig) -> AttentionConfig:
        is_large = index % 4 == 3
        return replace(attention, head_dim=128 if is_large else 64, rope=None)

    mixed = with_attention(llama_config(NUM_LAYERS), changed)
    plain = llama_config(NUM_LAYERS)
    caches = [
        counting_for(each).stage(Shard.whole(NUM_LAYERS), SIZE).memory.cache_bytes
        for each in (mixed, plain)
    ]
    assert caches[0] * 8 == caches[1] * 10
    work = model_work(profile_of(mixed), Quantization.NONE, lambda info: info.num_bytes)
    assert work.layers[3].cache_bytes == 2 * work.layers[0].cache_bytes
    assert work.layers[3].attention_multiply_adds == 2 * work.layers[0].attention_multiply_adds


def test_a_shared_cache_is_read_by_every_layer_that_has_no_other() -> None:
    work = model_work(profile_of(SHARED), Quantization.NONE, lambda info: info.num_bytes)
    plain = model_work(
        profile_of(llama_config(NUM_LAYERS)), Quantization.NONE, lambda info: info.num_bytes
    )
    assert [each.cache_bytes for each in work.layers] == [each.cache_bytes for each in plain.layers]
    saved = plain.layers[3].products[0].num_weights - work.layers[3].products[0].num_weights
    assert saved == 2 * 256 * 1024, "no keys and values are made"


def test_what_all_layers_get_from_the_embedding_is_counted_with_layers() -> None:
    config = with_inputs(llama_config(NUM_LAYERS))
    work = model_work(profile_of(config), Quantization.NONE, lambda info: info.num_bytes)
    assert work.head.products == work_head(llama_config(NUM_LAYERS))
    per_layer = 2 * 32 * 1024
    more = work.layers[0].products[0].num_weights - work.layers[1].products[0].num_weights
    assert more == 32 * NUM_LAYERS * 1024
    plain = model_work(
        profile_of(llama_config(NUM_LAYERS)), Quantization.NONE, lambda info: info.num_bytes
    )
    assert (
        work.layers[1].products[0].num_weights - plain.layers[1].products[0].num_weights
        == per_layer
    )
    assert work.embedding_row_bytes == (1024 + 32 * NUM_LAYERS) * 2


def work_head(config: ModelConfig) -> Any:
    return model_work(
        profile_of(config), Quantization.NONE, lambda info: info.num_bytes
    ).head.products


shared_layers = st.dictionaries(st.integers(1, NUM_LAYERS - 1), st.integers(0, 100), max_size=5)


@pytest.mark.slow
@settings(max_examples=30)
@given(
    shared_layers,
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(100, 500), min_size=2, max_size=5),
    st.sampled_from(Objective),
)
def test_no_plan_separates_layers_that_share_a_cache(
    wanted: dict[int, int],
    has_inputs: bool,
    is_tied: bool,
    usable: list[int],
    objective: Objective,
) -> None:
    shared: dict[int, int] = {}
    for layer, number in sorted(wanted.items()):
        sources = [each for each in range(layer) if each not in shared]
        shared[layer] = sources[number % len(sources)]
    config = sharing(shared, tied_head=is_tied)
    if has_inputs:
        config = with_inputs(config)
    try:
        result = placed(config, [each << 20 for each in usable], Preferences(objective=objective))
    except InsufficientMemoryError:
        cost = model_cost(counting_for(config), SIZE)
        alone = sum(cost.layer_bytes) + cost.embedding_bytes + cost.head_bytes
        alone += cost.scratch_bytes + cost.process_bytes
        assert max(usable) << 20 < alone + (64 << 20), "one unit alone could hold it"
        return
    shards = [stage.shard for stage in result.plan.stages]
    assert not config.no_cuts & {shard.start_layer for shard in shards[1:]}
    assert [shard.end_layer for shard in shards[:-1]] == [s.start_layer for s in shards[1:]]
    for shard in shards:
        program = build_program(config, shard, context_tokens=8, ropes=empty_rope_tables(config, 8))
        assert program.shard == shard


@pytest.mark.slow
@pytest.mark.parametrize("objective", Objective)
def test_a_model_larger_than_any_unit_is_cut_where_it_can_be(objective: Objective) -> None:
    result = placed(SHARED, [300 << 20] * 4, Preferences(objective=objective))
    shards = [stage.shard for stage in result.plan.stages]
    assert len(shards) > 1
    assert {shard.start_layer for shard in shards[1:]} <= {0, 1, 5, 6, 8}
    with pytest.raises(InsufficientMemoryError):
        placed(with_inputs(SHARED), [300 << 20] * 4, Preferences(objective=objective))
    whole = placed(with_inputs(SHARED), [300 << 20, 900 << 20], Preferences(objective=objective))
    assert whole.plan.stages[-1].shard.num_layers == NUM_LAYERS
    assert {stage.shard.start_layer for stage in whole.plan.stages} <= {0, NUM_LAYERS}


def test_a_layout_by_hand_that_separates_them_is_refused() -> None:
    def with_layout(*counts: int) -> Placed:
        layout = tuple(
            LayoutStage(node_id=NodeId(f"n{index}"), unit_id=UNIT, num_layers=count)
            for index, count in enumerate(counts)
        )
        return placed(SHARED, [1 << 30] * len(counts), Preferences(layout=layout))

    with_layout(5, 3)
    with_layout(1, 5, 2)
    with pytest.raises(ParameterError, match="begins with layer 3, which uses keys") as caught:
        with_layout(3, 5)
    assert caught.value.hint == "begin the stage with layer 1 or 5"


def test_no_program_is_built_of_a_shard_that_separates_them() -> None:
    for start, end in ((0, 3), (3, 8)):
        shard = Shard(
            start_layer=start,
            end_layer=end,
            num_layers=8,
            has_embedding=start == 0,
            has_head=end == 8,
        )
        with pytest.raises(ValueError, match="share a cache"):
            program_to_count(SHARED, shard, 8)
