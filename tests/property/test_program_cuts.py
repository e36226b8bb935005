"""However a model is cut, its stages are the whole model's program, piece by piece."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines.stages import cut
from support.models.configs import make_config

from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.model import ModelConfig
from potluck.types.program import (
    HIDDEN,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedActivation,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    Shard,
)

CONFIGS = st.builds(
    make_config,
    num_layers=st.integers(0, 6),
    tied_head=st.booleans(),
    qkv_bias=st.booleans(),
    output_bias=st.booleans(),
    mlp_bias=st.booleans(),
    qk_norm=st.booleans(),
)


@cache
def table() -> tuple[RopeTable, ...]:
    return rope_tables(make_config(), 8)


def programs(config: ModelConfig, boundaries: list[int]) -> list[Program]:
    return [
        build_program(config, shard, context_tokens=8, ropes=table())
        for shard in cut(config.num_layers, boundaries)
    ]


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[ModelConfig, list[int]]:
    config = draw(CONFIGS)
    boundaries = draw(st.lists(st.integers(0, config.num_layers), max_size=5))
    return config, sorted(boundaries)


@pytest.mark.slow
@given(cut_models())
def test_every_op_and_weight_exactly_once(model: tuple[ModelConfig, list[int]]) -> None:
    config, boundaries = model
    (whole,) = programs(config, [])
    pieces = programs(config, boundaries)
    assert [op for piece in absolute(pieces) for op in piece] == list(whole.ops)
    names = [weight.name for piece in pieces for weight in piece.weights]
    if config.tied_head and len(pieces) > 1:
        assert names.count("embed.weight") == 2
        names.remove("embed.weight")
    assert sorted(names) == sorted(weight.name for weight in whole.weights)
    assert sum(len(piece.caches) for piece in pieces) == config.num_layers


@given(cut_models())
def test_registers_are_written_before_they_are_read(
    model: tuple[ModelConfig, list[int]],
) -> None:
    for program in programs(*model):
        declared = {register.name for register in program.registers}
        assert len(declared) == len(program.registers)
        written = set() if program.shard.has_embedding else {HIDDEN}
        for op in program.ops:
            reads, writes = registers_of(op)
            assert set(reads) <= written
            written.update(writes)
        assert written <= declared
        assert program.shard.has_head or HIDDEN in written


@given(cut_models())
def test_ops_name_weights_and_caches_that_the_program_lists(
    model: tuple[ModelConfig, list[int]],
) -> None:
    for program in programs(*model):
        listed = [weight.name for weight in program.weights]
        assert len(set(listed)) == len(listed)
        named = {
            name
            for op in program.ops
            for name in (getattr(op, "weight", None), getattr(op, "bias", None))
            if name is not None
        }
        assert named == set(listed)
        caches = [op.cache_index for op in program.ops if isinstance(op, Attention)]
        assert caches == list(range(len(program.caches)))
        assert set(program.caches) <= {CacheSpec(num_kv_heads=2, head_dim=8, value_dim=8)}


def absolute(pieces: list[Program]) -> list[list[Op]]:
    """The ops with cache indices counted over the whole model."""
    return [
        [
            replace(op, cache_index=op.cache_index + piece.shard.start_layer)
            if isinstance(op, Attention)
            else op
            for op in piece.ops
        ]
        for piece in pieces
    ]


def registers_of(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an op reads and writes."""
    match op:
        case Embed():
            return (), (op.out,)
        case RmsNorm() | Linear():
            return (op.x,), (op.out,)
        case Rope():
            return (op.x,), (op.x,)
        case Attention():
            return tuple(each for each in (op.q, op.k, op.v) if each), (op.out,)
        case GatedActivation():
            return tuple(each for each in (op.gate, op.up) if each), (op.out,)
        case Add():
            return (op.x, op.y), (op.x,)
        case _:
            return (op.x,), ()


def test_the_whole_model_is_one_shard() -> None:
    assert cut(4, []) == [Shard.whole(4)]
