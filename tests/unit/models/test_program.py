"""Programs of small models, op by op."""

from __future__ import annotations

import pytest
from support.models.configs import make_config

from potluck.errors import ParameterError
from potluck.models.program import build_program, weight_specs
from potluck.models.rope import rope_tables
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.program import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Moe,
    Op,
    Program,
    RmsNorm,
    Rope,
    Shard,
    WeightRole,
)


def program_of(config: ModelConfig, shard: Shard | None = None) -> Program:
    return build_program(
        config,
        shard or Shard.whole(config.num_layers),
        context_tokens=16,
        ropes=rope_tables(config, 16),
    )


def shard(start: int, end: int, *, embedding: bool = False, head: bool = False) -> Shard:
    return Shard(
        start_layer=start, end_layer=end, num_layers=2, has_embedding=embedding, has_head=head
    )


def linears(program: Program) -> dict[str, Linear]:
    return {op.weight: op for op in program.ops if isinstance(op, Linear)}


LAYER: list[type[Op]] = [
    RmsNorm, Linear, Linear, Linear, Rope, Rope, Attention, Linear, Add,
    RmsNorm, Linear, Linear, GatedActivation, Linear, Add,
]  # fmt: skip


def test_ops_of_a_whole_model() -> None:
    program = program_of(make_config())
    assert [type(op) for op in program.ops] == [Embed, *LAYER, *LAYER, RmsNorm, Head]
    assert len(program.caches) == 2
    assert len(program.ropes) == 1


EXPERTS = ExpertsConfig(
    num_experts=5,
    num_experts_per_token=2,
    width=48,
    norm_topk_prob=False,
)


def test_experts_in_one_layer() -> None:
    program = program_of(make_config(experts=EXPERTS, expert_layers=(1,)))
    mixed: list[type[Op]] = [*LAYER[:10], Linear, Moe, Add]
    assert [type(op) for op in program.ops] == [Embed, *LAYER, *mixed, RmsNorm, Head]
    assert [op for op in program.ops if isinstance(op, Moe)] == [
        Moe(
            x="branch",
            logits="router_logits",
            gate="layers.1.mlp.experts.gate.weight",
            up="layers.1.mlp.experts.up.weight",
            down="layers.1.mlp.experts.down.weight",
            out="branch",
            num_experts=5,
            num_experts_per_token=2,
            expert_width=48,
            norm_topk_prob=False,
        )
    ]
    weights = {weight.name: weight for weight in program.weights}
    assert weights["layers.1.mlp.experts.gate.weight"].shape == (5, 48, 32)
    assert weights["layers.1.mlp.experts.up.weight"].shape == (5, 48, 32)
    assert weights["layers.1.mlp.experts.down.weight"].shape == (5, 32, 48)
    assert weights["layers.1.mlp.router.weight"].shape == (5, 32)
    assert [name for name, weight in weights.items() if weight.role is WeightRole.ROUTER] == [
        "layers.1.mlp.router.weight"
    ]


@pytest.mark.parametrize(("layer", "is_dense"), [(0, True), (1, False)])
def test_registers_are_of_the_layers_there_are(layer: int, is_dense: bool) -> None:
    program = program_of(make_config(experts=EXPERTS, expert_layers=(1,)), shard(layer, layer + 1))
    names = {register.name for register in program.registers}
    assert ({"gate", "up"} <= names) == is_dense
    assert ("router_logits" in names) == (not is_dense)


def test_shapes() -> None:
    config = make_config(num_layers=1, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True)
    shapes = {weight.name: weight.shape for weight in program_of(config).weights}
    assert shapes == {
        "embed.weight": (50, 32),
        "layers.0.attn_norm.weight": (32,),
        "layers.0.attn.q.weight": (32, 32),
        "layers.0.attn.q.bias": (32,),
        "layers.0.attn.k.weight": (16, 32),
        "layers.0.attn.k.bias": (16,),
        "layers.0.attn.v.weight": (16, 32),
        "layers.0.attn.v.bias": (16,),
        "layers.0.attn.q_norm.weight": (8,),
        "layers.0.attn.k_norm.weight": (8,),
        "layers.0.attn.o.weight": (32, 32),
        "layers.0.attn.o.bias": (32,),
        "layers.0.mlp_norm.weight": (32,),
        "layers.0.mlp.gate.weight": (64, 32),
        "layers.0.mlp.gate.bias": (64,),
        "layers.0.mlp.up.weight": (64, 32),
        "layers.0.mlp.up.bias": (64,),
        "layers.0.mlp.down.weight": (32, 64),
        "layers.0.mlp.down.bias": (32,),
        "norm.weight": (32,),
        "head.weight": (50, 32),
    }


def test_biases_only_where_the_family_has_them() -> None:
    ops = linears(program_of(make_config(qkv_bias=True)))
    assert ops["layers.1.attn.v.weight"].bias == "layers.1.attn.v.bias"
    assert ops["layers.1.attn.o.weight"].bias is None
    assert ops["layers.1.mlp.down.weight"].bias is None


def test_heads_are_normed_before_they_turn() -> None:
    program = program_of(make_config(qk_norm=True))
    on_q = [op for op in program.ops if isinstance(op, RmsNorm | Rope) and op.x == "q"]
    assert on_q[:2] == [
        RmsNorm(x="q", weight="layers.0.attn.q_norm.weight", out="q", group=8, epsilon=1e-5),
        Rope(x="q", num_heads=4, head_dim=8, rotary_dim=8),
    ]


def test_windows_and_caches_belong_to_layers() -> None:
    config = make_config(num_layers=3, sliding_windows=(None, 7, 9))
    part = Shard(start_layer=1, end_layer=3, num_layers=3, has_embedding=False, has_head=False)
    attentions = [op for op in program_of(config, part).ops if isinstance(op, Attention)]
    assert [(op.cache_index, op.window) for op in attentions] == [(0, 7), (1, 9)]
    assert attentions[0].scale == 8**-0.5


def test_empty_layer_ranges() -> None:
    embedding = program_of(make_config(), shard(0, 0, embedding=True))
    assert [type(op) for op in embedding.ops] == [Embed]
    assert embedding.ropes == ()
    assert [register.name for register in embedding.registers] == ["hidden"]
    head = program_of(make_config(), shard(2, 2, head=True))
    assert [type(op) for op in head.ops] == [RmsNorm, Head]
    assert head.caches == ()
    nothing = program_of(make_config(), shard(1, 1))
    assert nothing.ops == ()
    assert nothing.weights == ()


def test_embedding_and_head_of_a_tied_model_without_layers_share_a_weight() -> None:
    config = make_config(num_layers=0, tied_head=True)
    program = program_of(config)
    assert [weight.name for weight in program.weights] == ["embed.weight", "norm.weight"]


def test_weights_are_known_before_the_context_is() -> None:
    config = make_config()
    assert weight_specs(config, shard(1, 2)) == program_of(config, shard(1, 2)).weights


@pytest.mark.parametrize("context_tokens", [0, 129])
def test_the_context_must_be_one_that_the_model_was_made_for(context_tokens: int) -> None:
    config = make_config()
    with pytest.raises(ParameterError, match="must have 1 to 128 tokens"):
        build_program(
            config,
            Shard.whole(2),
            context_tokens=context_tokens,
            ropes=rope_tables(config, context_tokens),
        )


def test_shard_and_table_must_be_the_models_own() -> None:
    config = make_config()
    with pytest.raises(ValueError, match="RoPE table"):
        build_program(config, Shard.whole(2), context_tokens=16, ropes=rope_tables(config, 8))
    for wrong in (Shard.whole(3), shard(1, 2, embedding=True), shard(0, 1, head=True)):
        with pytest.raises(ValueError, match="is not a shard of a model with 2 layers"):
            program_of(config, wrong)
