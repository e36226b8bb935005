"""Programs of models with state, with latent attention, and of layers that lack a half."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engines.stages import cut
from support.models.configs import make_config
from support.models.recurrent_configs import (
    GATED_DELTA,
    LATENT,
    MAMBA,
    RECURRENCES,
    SHORT_CONV,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)

from potluck.models.layers import with_layers
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.model import LayerConfig, MambaScales, ModelConfig
from potluck.types.program import (
    Attention,
    CacheSpec,
    CopyColumns,
    GatedActivation,
    Linear,
    Moe,
    Program,
    RmsNorm,
    Scale,
    Shard,
    SigmoidGate,
    StateScan,
    StateSpec,
)


def program_of(config: ModelConfig, shard: Shard | None = None) -> Program:
    whole = shard or Shard.whole(config.num_layers)
    return build_program(config, whole, context_tokens=16, ropes=rope_tables(config, 16))


def test_what_is_kept_of_a_sequence() -> None:
    conv = program_of(hybrid_config(SHORT_CONV))
    assert conv.states == (StateSpec(rows=2, width=32),) * 2
    assert conv.caches == (CacheSpec(num_kv_heads=2, head_dim=8, value_dim=8),)
    delta = program_of(hybrid_config(GATED_DELTA))
    assert delta.states == (StateSpec(rows=3, width=96), StateSpec(rows=32, width=16)) * 2
    assert delta.states[1].num_bytes == 4 * 32 * 16
    mamba = program_of(hybrid_config(MAMBA))
    assert mamba.states == (StateSpec(rows=3, width=96), StateSpec(rows=64, width=8)) * 2


def test_latent_attention_keeps_one_row_for_all_heads() -> None:
    program = program_of(latent_config())
    assert program.caches == (CacheSpec(num_kv_heads=1, head_dim=24, value_dim=0),) * 2
    assert program.states == ()
    attention = next(op for op in program.ops if isinstance(op, Attention))
    assert (attention.value_start, attention.value_dim, attention.v) == (8, 16, None)
    assert attention.scale == LATENT.scale
    shapes = {spec.name: spec.shape for spec in program.weights}
    assert shapes["layers.0.attn.k_up.weight"] == (4, 16, 12)
    assert shapes["layers.0.attn.v_up.weight"] == (4, 20, 16)
    direct = {spec.name for spec in program_of(latent_config(query_rank=None)).weights}
    assert "layers.0.attn.q_down.weight" not in direct


@pytest.mark.parametrize("recurrence", RECURRENCES.values(), ids=RECURRENCES)
def test_every_stage_numbers_its_states_from_zero(recurrence: object) -> None:
    config = hybrid_config(recurrence)  # type: ignore[arg-type]
    whole = program_of(config)
    stages = [program_of(config, shard) for shard in cut(3, (1, 2))]
    assert sum((stage.states for stage in stages), ()) == whole.states
    for program in (whole, *stages):
        indices = [op.state_index for op in program.ops if hasattr(op, "state_index")]
        assert indices == list(range(len(program.states)))


def test_an_output_gate_has_rows_beside_the_queries() -> None:
    program = program_of(hybrid_config(GATED_DELTA))
    shapes = {spec.name: spec.shape for spec in program.weights}
    assert shapes["layers.1.attn.q.weight"] == (2 * 32, 32)
    assert shapes["layers.1.attn.o.weight"] == (32, 32)
    assert sum(isinstance(op, SigmoidGate) for op in program.ops) == 1


def test_layers_may_lack_a_half() -> None:
    program = program_of(halves_config())
    names = [spec.name for spec in program.weights]
    assert "layers.0.attn_norm.weight" in names
    assert "layers.0.mlp_norm.weight" not in names
    assert "layers.1.attn_norm.weight" not in names
    assert not any(".gate." in name and "layers.0" not in name for name in names)
    assert [op.gate for op in program.ops if isinstance(op, Moe)] == [None]
    ungated = [op for op in program.ops if isinstance(op, GatedActivation) and op.gate is None]
    assert len(ungated) == 2
    norms = [op for op in program.ops if isinstance(op, RmsNorm) and op.weight is not None]
    assert len(norms) == 4 + 1  # one a layer, and the last


def test_attention_beside_a_recurrence_reads_the_same_input() -> None:
    program = program_of(parallel_config())
    names = [spec.name for spec in program.weights if spec.name.startswith("layers.0")]
    assert sum(name.endswith("attn_norm.weight") for name in names) == 1
    assert any(".mamba." in name for name in names)
    assert any(".attn.q." in name for name in names)


def test_multipliers_are_ops_where_they_are_used() -> None:
    scales = MambaScales(gate=2.0, x=3.0, b=1.0, c=5.0, step=7.0)
    recurrence = replace(MAMBA, scales=scales, output_scale=11.0)

    def changed(_: int, layer: LayerConfig) -> LayerConfig:
        assert layer.mlp is not None
        return replace(
            layer,
            attention=replace(layer.grouped_attention, key_scale=13.0, output_scale=17.0),
            recurrence=recurrence,
            mlp=replace(layer.mlp, gate_scale=19.0, output_scale=23.0),
        )

    program = program_of(with_layers(make_config(num_layers=1), changed))
    factors = {op.x: op.factor for op in program.ops if isinstance(op, Scale) and op.x != "branch"}
    assert factors == {
        "mamba_x": 3.0,
        "mamba_c": 5.0,
        "step": 7.0,
        "recurrence_gate": 2.0,
        "beside": 11.0,
        "k": 13.0,
        "gate": 19.0,
    }
    of_branch = [op.factor for op in program.ops if isinstance(op, Scale) and op.x == "branch"]
    assert of_branch == [17.0, 23.0]


def test_the_parts_of_a_scaled_mixer_lie_side_by_side() -> None:
    scales = MambaScales(gate=2.0, x=3.0, b=4.0, c=5.0, step=7.0)
    config = hybrid_config(replace(MAMBA, scales=scales))
    shard = Shard(
        start_layer=0,
        end_layer=1,
        num_layers=config.num_layers,
        has_embedding=True,
        has_head=False,
    )
    program = program_of(config, shard)
    copies = [op for op in program.ops if isinstance(op, CopyColumns)]
    assert [(op.out_start, op.count) for op in copies] == [(0, 32), (32, 32), (64, 32)]
    scan = next(op for op in program.ops if isinstance(op, StateScan))
    assert {op.out for op in copies} == {scan.x}
    first = [type(op) for op in program.ops].index(Scale)
    assert sum(isinstance(op, Linear) for op in program.ops[:first]) == 5
