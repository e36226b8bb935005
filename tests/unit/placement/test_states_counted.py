"""Layers with state and with latent attention: their memory, their work and their times."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from support.cluster.node_reports import node_report
from support.engines import reference_backend
from support.models.recurrent_configs import (
    GATED_DELTA,
    LATENT,
    MAMBA,
    RECURRENCES,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)
from support.placement.units import candidate, profile_of, rates, work_of

from potluck.engines.backends import BACKENDS, cost_of
from potluck.errors import InsufficientMemoryError
from potluck.models.states import slot_bytes
from potluck.placement.costs import Counting, model_cost
from potluck.placement.model_counting import counting_of
from potluck.placement.placing import Placement
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.work import ModelWork
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeId, UnitId
from potluck.types.model import LayerConfig, ModelConfig
from potluck.types.node import UnitReport
from potluck.types.placement import Preferences
from potluck.types.program import Shard
from potluck.types.stage import StageSize

SIZE = StageSize(
    context_tokens=64,
    num_blocks=16,
    max_step_tokens=32,
    num_threads=2,
    backend=reference_backend.SPEC.name,
    num_states=10,
)
HIDDEN = latent_config().hidden_size
CONFIGS = {
    **{name: hybrid_config(recurrence) for name, recurrence in RECURRENCES.items()},
    "parallel": parallel_config(),
    "halves": halves_config(),
    "latent": latent_config(),
}


def counting_for(config: ModelConfig) -> Counting:
    table = (*BACKENDS, reference_backend.SPEC)
    return counting_of(profile_of(config), partial(cost_of, backends=table))


def pure_config() -> ModelConfig:
    """No layer has keys and values (Mamba-2)."""
    config = hybrid_config(MAMBA)
    return replace(config, layers=(LayerConfig(attention=None, recurrence=MAMBA),) * 3)


def work_in_f32(config: ModelConfig) -> ModelWork:
    return work_of(config, Quantization.NONE)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parts_add_up_to_the_whole(config: ModelConfig) -> None:
    counting = counting_for(config)
    last = config.num_layers
    cost = model_cost(counting, SIZE)
    whole = counting.stage(Shard.whole(last), SIZE).memory
    assert whole.state_bytes == SIZE.num_states * slot_bytes(config)
    held = sum(cost.layer_bytes) + cost.embedding_bytes + cost.head_bytes
    assert whole.weights_bytes + whole.cache_bytes + whole.state_bytes <= held
    for layer in range(last):
        shard = Shard(
            start_layer=layer,
            end_layer=layer + 1,
            num_layers=last,
            has_embedding=False,
            has_head=False,
        )
        memory = counting.stage(shard, SIZE).memory
        assert cost.layer_bytes[layer] == (
            memory.weights_bytes + memory.cache_bytes + memory.state_bytes
        )
        mixes = config.layers[layer]
        assert (memory.cache_bytes > 0) == (mixes.attention is not None)
        assert (memory.state_bytes > 0) == (mixes.recurrence is not None)


def test_a_model_of_states_alone_needs_no_memory_for_blocks() -> None:
    counting = counting_for(pure_config())
    memory = counting.stage(Shard.whole(3), SIZE).memory
    assert memory.cache_bytes == 0
    assert counting.stage(Shard.whole(3), replace(SIZE, num_blocks=9999)).memory == memory
    more = counting.stage(Shard.whole(3), replace(SIZE, num_states=11)).memory
    assert more.total_bytes - memory.total_bytes == slot_bytes(pure_config())


def test_a_layer_has_the_work_of_its_own_ops() -> None:
    layers = work_in_f32(hybrid_config(GATED_DELTA)).layers
    assert [each.cache_bytes > 0 for each in layers] == [False, True, False]
    assert [each.attention_multiply_adds > 0 for each in layers] == [False, True, False]
    channels = 2 * 2 * 8 + 4 * 16
    matrices = 4 * 8 * 16
    assert layers[0].state_bytes == layers[2].state_bytes == 4 * (3 * channels + matrices)
    assert layers[0].state_multiply_adds == 4 * channels + 4 * matrices
    assert layers[1].state_bytes == layers[1].state_multiply_adds == 0


def test_halves_of_layers_are_told_apart() -> None:
    mamba, experts, attention, mlp = work_in_f32(halves_config()).layers
    assert (mamba.state_bytes > 0, mamba.cache_bytes) == (True, 0)
    by_experts = [each for each in experts.products if each.num_experts > 1]
    # No gate: up and down of four experts, of which a token has two.
    assert [(each.num_weights, each.num_chosen) for each in by_experts] == [
        (4 * 2 * 32 * HIDDEN, 2)
    ]
    assert (attention.cache_bytes > 0, attention.state_bytes) == (True, 0)
    (up_and_down,) = mlp.products
    assert up_and_down.num_weights == 2 * 48 * HIDDEN
    assert (mlp.cache_bytes, mlp.state_bytes) == (0, 0)


def test_attention_beside_a_recurrence_has_both() -> None:
    for layer in work_in_f32(parallel_config()).layers:
        assert layer.cache_bytes > 0
        assert layer.state_multiply_adds == 4 * (4 * 8 + 2 * 2 * 16) + 3 * 4 * 16 * 8


def test_latent_rows_are_read_once() -> None:
    work = work_in_f32(latent_config())
    key_dim = LATENT.rope_dim + LATENT.latent_rank
    layer = work.layers[0]
    assert layer.cache_bytes == key_dim * 2
    assert layer.attention_multiply_adds == 4 * (key_dim + LATENT.latent_rank)
    num_weights = sum(each.num_weights for each in layer.products)
    up = 4 * LATENT.latent_rank * (LATENT.nope_dim + LATENT.value_dim)
    projections = HIDDEN * (24 + LATENT.latent_rank + LATENT.rope_dim)
    heads = 4 * (LATENT.nope_dim + LATENT.rope_dim) * 24 + HIDDEN * 4 * LATENT.value_dim
    mlp = 3 * HIDDEN * latent_config().layers[0].mlp.width  # type: ignore[union-attr]
    assert num_weights == up + projections + heads + mlp


def test_only_attention_takes_longer_in_longer_contexts() -> None:
    times = candidate("a", work_in_f32(hybrid_config(GATED_DELTA))).times
    short, long = times.decode(1, 16).item_seconds, times.decode(1, 8000).item_seconds
    changed = [a != b for a, b in zip(short, long, strict=True)]
    assert changed == [False, False, True, False, False]
    prompt, late = times.prefill(32, 32).item_seconds, times.prefill(32, 8000).item_seconds
    assert [a != b for a, b in zip(prompt, late, strict=True)] == changed


def test_states_take_time_by_the_token_and_by_the_sequence() -> None:
    work = work_in_f32(hybrid_config(GATED_DELTA))
    idle = replace(work.layers[0], state_bytes=0, state_multiply_adds=0)
    without = replace(work, layers=(idle,) * 3)
    with_states = replace(work, layers=(work.layers[0],) * 3)

    def extra(num_sequences: int) -> float:
        taken, bare = (
            candidate("a", each).times.decode(num_sequences).item_seconds[1]
            for each in (with_states, without)
        )
        return taken - bare

    assert extra(1) > 0
    assert extra(8) == pytest.approx(8 * extra(1))
    prompt, bare = (
        candidate("a", each).times.prefill(8).item_seconds[1] for each in (with_states, without)
    )
    # A prompt's states are read and written once.
    assert 0 < prompt - bare < extra(8)


def test_fewer_states_are_proposed_where_memory_is_short() -> None:
    config = hybrid_config(GATED_DELTA)
    counting = counting_for(config)
    usable = counting.stage(Shard.whole(3), replace(SIZE, num_states=600)).memory.total_bytes

    def hint(preferences: Preferences) -> str:
        unit = UnitReport(
            unit_id=UnitId("cpu/reference"),
            backend=reference_backend.SPEC.name,
            description="",
            usable_bytes=usable,
            is_shared=True,
            num_threads=2,
            max_threads=2,
            rates=rates(50.0, 500.0),
        )
        node = node_report("n0", unit, usable_bytes=usable)
        snapshot = ClusterSnapshot(
            reports=(node,), able=(node,), coordinator=NodeId("n0"), preferences=preferences
        )
        with pytest.raises(InsufficientMemoryError) as caught:
            Placement(counting, snapshot).of(replace(SIZE, num_states=1000), may_quantize=False)
        return caught.value.hint

    assert "--states 500 would fit" in hint(Preferences())
    assert "--states 534 would fit" in hint(Preferences(num_streams=400))
    assert "--states" not in hint(Preferences(num_streams=480))
