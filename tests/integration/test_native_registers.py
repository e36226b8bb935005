"""A register that is written again is quantized again, whichever op writes it.

Inputs that several products share are quantized once; a stale copy would go unnoticed in models
in which other inputs always come between.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.engines.pools import pool_of
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine

from potluck.engines.native.engine import NativeEngine
from potluck.types.program import (
    HIDDEN,
    Add,
    Attention,
    CacheSpec,
    GatedActivation,
    Linear,
    Moe,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Shard,
    WeightSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

WIDTH = 64
NUM_TOKENS = 20
MATRICES = ("first", "other", "second")

WRITERS: tuple[Op, ...] = (
    RmsNorm(x=HIDDEN, weight="norm", out="x", group=WIDTH, epsilon=1e-5),
    Linear(x=HIDDEN, weight="other", out="x"),
    Rope(x="x", num_heads=1, head_dim=WIDTH, rotary_dim=WIDTH),
    GatedActivation(gate="x", up=HIDDEN, out="x"),
    Add(x="x", y=HIDDEN),
    Moe(
        x="x",
        logits="y",
        gate="gate",
        up="up",
        down="down",
        out="x",
        num_experts=WIDTH,
        num_experts_per_token=WIDTH,  # a choice could hang on a rounding
        expert_width=32,
        norm_topk_prob=True,
    ),
    Attention(
        q=HIDDEN,
        k=HIDDEN,
        v=HIDDEN,
        out="x",
        cache_index=0,
        num_heads=1,
        num_kv_heads=1,
        head_dim=WIDTH,
        scale=1 / 8,
    ),
)


def program_with(writer: Op) -> Program:
    """``hidden += second(x)``, where ``x`` was ``first(hidden)`` before ``writer`` wrote it."""
    weights = {name: WeightSpec(name=name, shape=(WIDTH, WIDTH)) for name in MATRICES}
    weights["norm"] = WeightSpec(name="norm", shape=(WIDTH,))
    weights |= {
        name: WeightSpec(name=name, shape=(WIDTH, *shape))
        for name, shape in {"gate": (32, WIDTH), "up": (32, WIDTH), "down": (WIDTH, 32)}.items()
    }
    named = {"first", "second", getattr(writer, "weight", "second")}
    if isinstance(writer, Moe):
        named |= {"gate", "up", "down"}
    cache = CacheSpec(num_kv_heads=1, head_dim=WIDTH, value_dim=WIDTH)
    angles = np.random.default_rng(1).uniform(1, 5, (NUM_TOKENS, WIDTH // 2))
    return Program(
        shard=Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=False, has_head=False),
        registers=tuple(Register(name=name, width=WIDTH) for name in (HIDDEN, "x", "y")),
        ops=(
            Linear(x=HIDDEN, weight="first", out="x"),
            Linear(x="x", weight="second", out="y"),
            writer,
            Linear(x="x", weight="second", out="y"),
            Add(x=HIDDEN, y="y"),
        ),
        weights=tuple(weights[name] for name in sorted(named)),
        caches=(cache,) if isinstance(writer, Attention) else (),
        ropes=(
            RopeTable(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32)),
        ),
        hidden_size=WIDTH,
        vocab_size=10,
        context_tokens=NUM_TOKENS,
    )


@pytest.mark.parametrize("writer", WRITERS, ids=lambda op: type(op).__name__)
def test_written_again(writer: Op) -> None:
    program = program_with(writer)
    native = NativeEngine(program, num_blocks=2, max_step_tokens=NUM_TOKENS, pool=pool_of(1))
    reference = ReferenceEngine(program, num_blocks=2)
    for engine in (native, reference):
        # "other" is no quantized product, which would replace the copy by that of its own input.
        load_random_weights(
            engine, program, TensorFormat.Q8_0, exceptions={"other": TensorFormat.F32}
        )
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1,) * NUM_TOKENS,
        start_position=0,
        block_table=(0, 1),
        sample=False,
    )
    step = Step(step_id=StepId(0), slices=(part,))
    hidden = np.random.default_rng(2).standard_normal((NUM_TOKENS, WIDTH)).astype(np.float32)
    wanted = reference.step(step, hidden).hidden
    actual = native.step(step, hidden).hidden
    assert wanted is not None
    assert actual is not None
    # Up to three products, each wrong by half a percent (see test_native_against_reference).
    assert np.std(actual - wanted) < 0.03 * np.std(wanted - hidden)
