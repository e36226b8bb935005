"""What the programs of a group's members consist of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engines.groups import divided
from support.models.configs import make_config
from support.models.recurrent_configs import GATED_DELTA, LATENT, hybrid_config, latent_config

from potluck.models.layers import with_attention, with_layers
from potluck.models.program import build_program, weight_specs
from potluck.models.rope import rope_tables
from potluck.models.shares import head_bounds, unit_bounds, vocabulary_bounds
from potluck.types.groups import GroupPart
from potluck.types.model import ExpertsConfig, HeadNorm, ModelConfig
from potluck.types.program import (
    HIDDEN,
    Add,
    AllGather,
    Attention,
    CacheSpec,
    CopyColumns,
    Embed,
    GatedActivation,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    Shard,
    WeightRows,
    WeightSpec,
)

WIDE = make_config(
    num_layers=1,
    hidden_size=128,
    intermediate_size=192,
    num_heads=8,
    num_kv_heads=4,
    head_dim=16,
    qkv_bias=True,
)


def whole(config: ModelConfig) -> Program:
    shard = Shard.whole(config.num_layers)
    return build_program(config, shard, context_tokens=8, ropes=rope_tables(config, 8))


def of_kind(program: Program, kind: type[Op]) -> list[Op]:
    return [op for op in program.ops if isinstance(op, kind)]


def test_a_layer_is_divided_by_heads_and_rows() -> None:
    first, second = divided(whole(WIDE), (3, 1))
    assert [type(op) for op in second.ops] == [
        Embed,
        RmsNorm,
        *(Linear, Linear, Linear, Rope, Rope, Attention),
        *(AllGather, Linear, AllGather, Add),
        RmsNorm,
        *(Linear, Linear, GatedActivation),
        *(AllGather, Linear, AllGather, Add),
        RmsNorm,
        Head,
    ]
    assert [op.widths for op in second.ops if isinstance(op, AllGather)] == [
        (96, 32),  # three of four key-value heads, each with two query heads
        (96, 32),
        (160, 32),  # of six groups of 32
        (96, 32),
    ]
    assert first.caches == (CacheSpec(num_kv_heads=3, head_dim=16, value_dim=16),)
    assert second.caches == (CacheSpec(num_kv_heads=1, head_dim=16, value_dim=16),)
    rows = {each.name: (each.shape, each.rows) for each in second.weights}
    assert rows["layers.0.attn.q.weight"] == ((32, 128), WeightRows(start=96, total=128))
    assert rows["layers.0.attn.q.bias"] == ((32,), WeightRows(start=96, total=128))
    assert rows["layers.0.attn.k.weight"] == ((16, 128), WeightRows(start=48, total=64))
    assert rows["layers.0.attn_norm.weight"] == ((128,), None)
    assert rows["embed.weight"] == ((2, 128), WeightRows(start=48, total=50))
    assert rows["head.weight"] == rows["embed.weight"]
    assert second.shard.part == GroupPart(member=1, shares=(3, 1))


def test_a_shard_with_a_part_gives_the_member_s_program() -> None:
    shard = Shard.whole(1)
    members = [
        build_program(WIDE, each, context_tokens=8, ropes=rope_tables(WIDE, 8))
        for each in shard.divided((2, 5))
    ]
    for made, expected in zip(members, divided(whole(WIDE), (2, 5)), strict=True):
        assert (made.ops, made.weights, made.shard) == (
            expected.ops,
            expected.weights,
            expected.shard,
        )
    (_, part) = shard.divided((2, 5))
    assert weight_specs(WIDE, part) == weight_specs(WIDE, shard)


def test_members_share_a_key_value_head_if_there_are_too_few() -> None:
    members = divided(whole(WIDE), (1, 1, 1, 1, 1))
    expected = zip(members, (1, 1, 2, 2, 2), (0, 0, 16, 32, 48), strict=True)
    for member, num_heads, first_row in expected:
        (attention,) = of_kind(member, Attention)
        assert isinstance(attention, Attention)
        assert (attention.num_heads, attention.num_kv_heads) == (num_heads, 1)
        assert member.caches[0].num_kv_heads == 1
        rows = {each.name: each.rows for each in member.weights}
        for part in ("k", "v"):
            assert rows[f"layers.0.attn.{part}.weight"] == WeightRows(start=first_row, total=64)


def test_attention_of_fewer_heads_than_members_is_whole() -> None:
    for member in divided(whole(WIDE), (1,) * 9):
        (attention,) = of_kind(member, Attention)
        assert isinstance(attention, Attention)
        assert (attention.num_heads, attention.num_kv_heads) == (8, 4)
        assert member.caches == whole(WIDE).caches


def test_query_heads_share_one_key_value_head() -> None:
    config = with_attention(WIDE, lambda _, each: replace(each, num_kv_heads=1))
    first, second = divided(whole(config), (3, 1))
    for member, num_heads in ((first, 6), (second, 2)):
        (attention,) = of_kind(member, Attention)
        assert isinstance(attention, Attention)
        assert (attention.num_heads, attention.num_kv_heads) == (num_heads, 1)
        rows = {each.name: each.rows for each in member.weights}
        assert rows["layers.0.attn.k.weight"] is None
        assert rows["layers.0.attn.q.weight"] is not None


def test_what_is_normed_over_its_width_is_gathered_and_taken_apart() -> None:
    config = with_attention(WIDE, lambda _, each: replace(each, head_norm=HeadNorm.WIDTH))
    _, second = divided(whole(config), (3, 1))
    names = [op.x for op in second.ops if isinstance(op, AllGather)][:2]
    assert names == ["q.part", "k.part"]
    index = next(i for i, op in enumerate(second.ops) if isinstance(op, AllGather))
    assert isinstance(second.ops[index + 1], AllGather)  # one exchange does for both
    slices = [op for op in second.ops if isinstance(op, CopyColumns)]
    assert [(op.x, op.x_start, op.count) for op in slices] == [("q", 96, 32), ("k", 48, 16)]


def test_gates_of_recurrences_take_their_columns_of_what_is_whole() -> None:
    config = replace(hybrid_config(GATED_DELTA), hidden_size=128)
    first, second = divided(whole(config), (1, 1))
    gates = [op for op in second.ops if isinstance(op, GatedActivation) and op.up_start]
    assert gates
    assert all(op.up_start == first.width(op.out) for op in gates)
    assert first.states == second.states == whole(config).states


def test_latent_attention_is_divided_by_query_heads() -> None:
    latent = replace(LATENT, value_dim=16)
    config = with_layers(latent_config(), lambda _, each: replace(each, attention=latent))
    first, second = divided(whole(config), (1, 1))
    assert first.caches == second.caches == whole(config).caches
    for op in second.ops:
        if isinstance(op, Attention | HeadLinear):
            assert op.num_heads == 2
    spec = next(each for each in second.weights if each.name == "layers.0.attn.k_up.weight")
    assert spec.rows == WeightRows(start=2, total=4)
    assert spec.whole_shape == (4, 16, 12)


def test_every_expert_is_divided() -> None:
    experts = ExpertsConfig(
        num_experts=4, num_experts_per_token=2, width=96, norm_topk_prob=True, has_bias=True
    )
    config = make_config(num_layers=1, hidden_size=128, experts=experts)
    _, second = divided(whole(config), (2, 1))
    (moe,) = of_kind(second, Moe)
    assert isinstance(moe, Moe)
    assert moe.expert_widths == (64, 32)
    specs = {each.name: each for each in second.weights}
    assert specs["layers.0.mlp.experts.up.weight"].shape == (4, 32, 128)
    assert specs["layers.0.mlp.experts.up.bias"].rows == WeightRows(start=64, total=96, axis=1)
    assert specs["layers.0.mlp.experts.down.weight"].shape == (4, 32, 96)
    assert specs["layers.0.mlp.experts.down.bias"].whole_shape == (4, 128)
    assert specs["layers.0.mlp.router.weight"].rows is None


def through(hidden_size: int, width: int, group: int) -> Program:
    """A branch through ``width`` columns, which are normed by groups."""
    return program_of(
        {HIDDEN: hidden_size, "made": width, "out": hidden_size},
        Linear(x=HIDDEN, weight="up", out="made"),
        RmsNorm(x="made", weight=None, out="made", group=group, epsilon=0.0),
        Linear(x="made", weight="down", out="out"),
        Add(x=HIDDEN, y="out"),
    )


def gathered(program: Program) -> list[tuple[int, str]]:
    return [(index, op.out) for index, op in enumerate(program.ops) if isinstance(op, AllGather)]


@pytest.mark.parametrize(
    ("hidden_size", "width", "is_exchanged"),
    [
        (256, 64, False),
        (256, 96, True),
        (4096, 1024, False),
        (8192, 1024, True),  # eight million weights
    ],
)
def test_narrow_values_are_not_exchanged(hidden_size: int, width: int, is_exchanged: bool) -> None:
    first, _ = divided(through(hidden_size, width, width), (1, 1))
    names = [name for _, name in gathered(first)]
    assert names == (["made", "out"] if is_exchanged else ["out"])


def test_what_has_too_few_groups_is_gathered_before_its_norm() -> None:
    program = through(256, 384, 192)
    of_two, _ = divided(program, (1, 1))
    of_three, *_ = divided(program, (1, 1, 1))
    assert gathered(of_two) == [(2, "made"), (4, "out")]
    assert gathered(of_three) == [(1, "made"), (4, "out")]
    assert of_three.width("made.part") == 128


def test_parts_of_a_register_from_different_products_are_divided_alike() -> None:
    program = program_of(
        {HIDDEN: 64, "a": 96, "b": 96, "both": 192, "out": 64},
        Linear(x=HIDDEN, weight="wa", out="a"),
        Linear(x=HIDDEN, weight="wb", out="b"),
        RmsNorm(x="b", weight=None, out="b", group=48, epsilon=0.0),
        *(
            CopyColumns(
                x=x, out="both", num_groups=6, count=16, x_stride=16, out_stride=32, out_start=start
            )
            for x, start in (("a", 0), ("b", 16))
        ),
        Multiply(x="both", weight="factors"),
        Linear(x="both", weight="wo", out="out"),
        Add(x=HIDDEN, y="out"),
    )
    first, second = divided(program, (2, 1))
    # Two groups of 48 columns are all that can be divided.
    assert first.width("a.part") == first.width("b.part") == 48
    assert [op.num_groups for op in second.ops if isinstance(op, CopyColumns)] == [3, 3]
    factors = next(each for each in second.weights if each.name == "factors")
    assert (factors.shape, factors.rows) == ((96,), WeightRows(start=96, total=192))


def program_of(widths: dict[str, int], *ops: Op) -> Program:
    """A stage within a model, with these registers; matrices as the ops need them."""
    weights: dict[str, tuple[int, ...]] = {}
    for op in ops:
        if isinstance(op, Linear):
            weights[op.weight] = (widths[op.out], widths[op.x])
        if isinstance(op, Multiply):
            weights[op.weight] = (widths[op.x],)
    return Program(
        shard=Shard(start_layer=1, end_layer=2, num_layers=4, has_embedding=False, has_head=False),
        registers=tuple(Register(name=name, width=width) for name, width in widths.items()),
        ops=ops,
        weights=tuple(WeightSpec(name=name, shape=shape) for name, shape in weights.items()),
        caches=(),
        ropes=(),
        hidden_size=widths[HIDDEN],
        vocab_size=50,
        context_tokens=8,
    )


def test_a_divided_program_is_not_divided_again() -> None:
    first, _ = divided(whole(WIDE), (1, 1))
    with pytest.raises(ValueError, match="already divided"):
        divided(first, (1, 1))


@pytest.mark.parametrize(
    ("num_units", "shares", "expected"),
    [
        (8, (1, 1), (0, 4, 8)),
        (8, (3, 2), (0, 5, 8)),
        (8, (2, 1, 1), (0, 4, 6, 8)),
        (3, (100, 1, 1), (0, 1, 2, 3)),
        (4, (100, 1, 1), (0, 2, 3, 4)),
        (7, (1, 1), (0, 4, 7)),
        (10, (1, 2, 3), (0, 2, 5, 10)),
    ],
)
def test_units_follow_shares(
    num_units: int, shares: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert unit_bounds(num_units, shares) == expected


@pytest.mark.parametrize(
    ("num_units", "num_heads", "together", "shares", "expected"),
    [
        (8, 4, 1, (1, 1), (0, 4, 8)),
        (8, 4, 1, (3, 1), (0, 6, 8)),
        (8, 2, 1, (3, 1), (0, 4, 8)),  # not 6 of one and a half
        (8, 2, 1, (2, 1, 1), (0, 4, 6, 8)),
        (8, 2, 1, (1, 2, 1), (0, 1, 4, 8)),
        (12, 2, 2, (1, 1, 1), (0, 2, 6, 12)),  # 4, 4 and 4 would leave 2 and 2 to one
        (12, 4, 2, (1, 1), (0, 6, 12)),
        (12, 4, 2, (1, 1, 1), ()),  # three queries of a head are no whole steps
        (4, 2, 1, (1, 1, 1, 1, 1), ()),
    ],
)
def test_heads_follow_shares(
    num_units: int,
    num_heads: int,
    together: int,
    shares: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert head_bounds(num_units, num_heads, together, shares) == expected


def test_fewer_units_than_members_are_not_divided() -> None:
    with pytest.raises(ValueError, match="2 units cannot be divided among 3 members"):
        unit_bounds(2, (1, 1, 1))
    assert vocabulary_bounds(32, (1, 1, 1)) == ()


def test_large_vocabularies_are_divided_in_larger_units() -> None:
    assert vocabulary_bounds(128_256, (1, 1)) == (0, 64_256, 128_256)
    assert vocabulary_bounds(50, (1, 1)) == (0, 32, 50)
