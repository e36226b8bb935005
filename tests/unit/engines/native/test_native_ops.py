"""Programs of every op and every field: the native engine gives what the reference engine does."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.pools import pool_of
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine

from potluck.engines.native.engine import NativeEngine
from potluck.types.program import (
    Activation,
    Add,
    Attention,
    CacheSpec,
    CopyColumns,
    Embed,
    ExpertScore,
    GatedActivation,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Scale,
    Shard,
    SigmoidGate,
    WeightRole,
    WeightSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

WIDTH = 64
VOCAB = 50
CONTEXT = 64
EXPERTS = 8
NUM_TOKENS = 21

F32 = NDArray[np.float32]

REGISTERS = {
    "hidden": WIDTH,
    "x": WIDTH,
    "y": WIDTH,
    "wide": 2 * WIDTH,
    "one": 1,
    "q": WIDTH,
    "k": WIDTH // 2,
    "v": WIDTH // 2,
    "a": WIDTH,
    "logits": EXPERTS,
    "narrow": 16,
    "few": 44,
    "many": 96,
    "many_v": 48,
}
WEIGHTS = {
    "embed": (VOCAB, WIDTH),
    "square": (WIDTH, WIDTH),
    "half": (WIDTH // 2, WIDTH),
    "double": (2 * WIDTH, WIDTH),
    "row": (1, WIDTH),
    "vector": (WIDTH,),
    "scalar": (1,),
    "sinks": (4,),
    "router": (EXPERTS, WIDTH),
    "stack": (EXPERTS, 48, WIDTH),
    "down": (EXPERTS, WIDTH, 48),
    "stack_bias": (EXPERTS, 48),
    "down_bias": (EXPERTS, WIDTH),
    "correction": (EXPERTS,),
    "expert_scale": (EXPERTS,),
    "quarter": (16, WIDTH),
    "more": (48, WIDTH),
    "heads": (4, 16, 16),
    "ragged_heads": (4, 11, 13),
    "from_few": (4, 16, 11),
    "from_many": (4, 16, 24),
}


def table(rotary_dim: int, seed: int) -> RopeTable:
    angles = np.random.default_rng(seed).uniform(0, 6, (CONTEXT, rotary_dim // 2))
    return RopeTable(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))


def program_of(*ops: Op, head: Head) -> Program:
    """Embed, then ``ops``, then ``head``, with the weights that they name."""
    every = (
        Embed(weight="embed", out="hidden"),
        RmsNorm(x="hidden", weight=None, out="x", group=WIDTH, epsilon=1e-5),
        *ops,
        head,
    )
    named = {getattr(op, name) for op in every for name in op.__dataclass_fields__}
    attentions = [op for op in every if isinstance(op, Attention)]
    return Program(
        shard=Shard.whole(1),
        registers=tuple(Register(name=name, width=width) for name, width in REGISTERS.items()),
        ops=every,
        weights=tuple(
            WeightSpec(
                name=name,
                shape=shape,
                role=WeightRole.ROUTER if name == "router" else WeightRole.OTHER,
            )
            for name, shape in WEIGHTS.items()
            if name in named
        ),
        caches=tuple(
            CacheSpec(
                num_kv_heads=op.num_kv_heads,
                head_dim=op.head_dim,
                value_dim=0 if op.value_start is not None else op.value_dim or op.head_dim,
            )
            for op in attentions
            if op.k is not None
        ),
        ropes=(table(16, 1), table(8, 2)),
        hidden_size=WIDTH,
        vocab_size=VOCAB,
        context_tokens=CONTEXT,
    )


HEAD = Head(x="hidden", weight="embed", vocab_size=VOCAB)
QKV = (
    Linear(x="x", weight="square", out="q"),
    Linear(x="x", weight="half", out="k"),
    Linear(x="x", weight="half", out="v"),
)
ATTENTION = Attention(
    q="q",
    k="k",
    v="v",
    out="a",
    cache_index=0,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    scale=0.7,
)
ADD = Add(x="hidden", y="a")
GATE = (
    Linear(x="x", weight="square", out="y"),
    Linear(x="x", weight="double", out="wide"),
    GatedActivation(gate="y", up="wide", out="a", up_start=40),
    ADD,
)
MOE = Moe(
    x="x",
    logits="logits",
    gate="stack",
    up="stack",
    down="down",
    out="a",
    num_experts=EXPERTS,
    num_experts_per_token=3,
    expert_width=48,
    norm_topk_prob=True,
)
ROUTER = Linear(x="x", weight="router", out="logits")


RELU_SQUARED = GatedActivation(
    gate=None, up="wide", out="a", activation=Activation.RELU_SQUARED, up_start=40
)
HEADS = HeadLinear(
    x="y",
    weight="heads",
    out="a",
    num_heads=4,
    rows=16,
    columns=16,
    x_stride=16,
    out_stride=16,
)
COPY = CopyColumns(
    x="x",
    out="y",
    num_groups=4,
    count=5,
    x_stride=11,
    out_stride=13,
    x_start=7,
    out_start=3,
)
LATENT = replace(
    ATTENTION, k="narrow", v=None, out="few", num_kv_heads=1, value_dim=11, value_start=3
)
FROM_LATENT = replace(HEADS, x="few", weight="from_few", columns=11, x_stride=11)


def gated(activation: Activation) -> Program:
    ops = (
        replace(op, activation=activation) if isinstance(op, GatedActivation) else op for op in GATE
    )
    return program_of(*ops, head=HEAD)


def with_experts(op: Moe) -> Program:
    return program_of(ROUTER, op, ADD, head=HEAD)


PROGRAMS = {
    "norm without a weight": program_of(Add(x="hidden", y="x"), head=HEAD),
    "norm without a weight per head": program_of(
        RmsNorm(x="x", weight=None, out="y", group=16, epsilon=1e-6),
        Add(x="hidden", y="y"),
        head=HEAD,
    ),
    "layer norm": program_of(
        LayerNorm(x="hidden", weight="vector", out="x", epsilon=1e-5),
        Add(x="hidden", y="x"),
        head=HEAD,
    ),
    "second embed": program_of(
        Embed(weight="embed", out="y"), Add(x="hidden", y="y", scale=-0.3), head=HEAD
    ),
    "scale": program_of(Scale(x="hidden", factor=0.37), head=HEAD),
    "multiply": program_of(Multiply(x="hidden", weight="vector"), head=HEAD),
    "multiply by a scalar": program_of(Multiply(x="hidden", weight="scalar"), head=HEAD),
    "sigmoid gate": program_of(
        Linear(x="x", weight="square", out="y"), SigmoidGate(x="hidden", gate="y"), head=HEAD
    ),
    "sigmoid gate per token": program_of(
        Linear(x="x", weight="row", out="one"), SigmoidGate(x="hidden", gate="one"), head=HEAD
    ),
    **{f"gated {each.value}": gated(each) for each in Activation if each.has_gate},
    "relu squared": program_of(
        Linear(x="x", weight="double", out="wide"), RELU_SQUARED, ADD, head=HEAD
    ),
    "relu squared in place": program_of(
        Linear(x="x", weight="square", out="a"),
        replace(RELU_SQUARED, up="a", up_start=0),
        ADD,
        head=HEAD,
    ),
    "gate in place of up": program_of(
        Linear(x="x", weight="square", out="y"),
        Linear(x="x", weight="square", out="a"),
        GatedActivation(gate="y", up="a", out="a", activation=Activation.PRODUCT),
        ADD,
        head=HEAD,
    ),
    "heads": program_of(Linear(x="x", weight="square", out="y"), HEADS, ADD, head=HEAD),
    "heads of some columns": program_of(
        Linear(x="x", weight="double", out="wide"),
        Linear(x="x", weight="square", out="a"),
        replace(
            HEADS,
            x="wide",
            weight="ragged_heads",
            rows=11,
            columns=13,
            x_start=9,
            x_stride=31,
            out_start=2,
            out_stride=14,
        ),
        ADD,
        head=HEAD,
    ),
    "copied columns": program_of(
        Linear(x="x", weight="square", out="y"), COPY, Add(x="hidden", y="y"), head=HEAD
    ),
    "rope tables": program_of(
        *QKV,
        Rope(x="q", num_heads=4, head_dim=16, rotary_dim=8, table=1),
        Rope(x="k", num_heads=2, head_dim=16, rotary_dim=16, table=0),
        ATTENTION,
        ADD,
        head=HEAD,
    ),
    "wide values": program_of(
        Linear(x="x", weight="square", out="q"),
        Linear(x="x", weight="half", out="k"),
        Linear(x="x", weight="more", out="many_v"),
        replace(ATTENTION, v="many_v", out="many", value_dim=24),
        replace(HEADS, x="many", weight="from_many", columns=24, x_stride=24),
        ADD,
        head=HEAD,
    ),
    "values in keys": program_of(
        Linear(x="x", weight="square", out="q"),
        Linear(x="x", weight="quarter", out="narrow"),
        LATENT,
        FROM_LATENT,
        ADD,
        head=HEAD,
    ),
    "values in shared keys": program_of(
        Linear(x="x", weight="square", out="q"),
        Linear(x="x", weight="quarter", out="narrow"),
        LATENT,
        FROM_LATENT,
        ADD,
        replace(LATENT, q="x", k=None, window=7, softcap=0.8, sinks="sinks"),
        FROM_LATENT,
        ADD,
        head=HEAD,
    ),
    "attention soft cap": program_of(*QKV, replace(ATTENTION, softcap=0.8), ADD, head=HEAD),
    "attention sinks": program_of(
        *QKV, replace(ATTENTION, sinks="sinks", window=5), ADD, head=HEAD
    ),
    "shared cache": program_of(
        *QKV,
        ATTENTION,
        ADD,
        replace(ATTENTION, q="x", k=None, v=None, window=7),
        ADD,
        head=HEAD,
    ),
    "logit scale and cap": program_of(head=replace(HEAD, scale=0.3, softcap=1.5)),
    "experts": with_experts(MOE),
    "experts sigmoid": with_experts(replace(MOE, score=ExpertScore.SIGMOID)),
    "experts corrected": with_experts(
        replace(
            MOE, score=ExpertScore.SIGMOID, e_score_correction_bias="correction", share_scale=2.5
        )
    ),
    "experts softmax corrected": with_experts(replace(MOE, e_score_correction_bias="correction")),
    "experts in groups": with_experts(
        replace(
            MOE,
            score=ExpertScore.SIGMOID,
            e_score_correction_bias="correction",
            num_groups=4,
            num_groups_used=2,
        )
    ),
    "experts in groups by logits": with_experts(replace(MOE, num_groups=2, num_groups_used=1)),
    "experts with scales": with_experts(
        replace(MOE, expert_scale="expert_scale", norm_topk_prob=False)
    ),
    "experts with biases": with_experts(
        replace(
            MOE,
            gate_bias="stack_bias",
            up_bias="stack_bias",
            down_bias="down_bias",
            activation=Activation.CLAMPED_SWIGLU,
        )
    ),
    "experts without a gate": with_experts(
        replace(MOE, gate=None, up_bias="stack_bias", activation=Activation.RELU_SQUARED)
    ),
    "experts gelu": with_experts(replace(MOE, activation=Activation.GELU_TANH)),
}


def slice_of(first: int, end: int, *, sequence: int = 0) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=tuple((7 * i + sequence) % VOCAB for i in range(first, end)),
        start_position=first,
        block_table=tuple(2 * sequence + block for block in range(2)),
        sample=True,
        score_from=0,
    )


def step_of(*slices: SequenceSlice) -> Step:
    return Step(step_id=StepId(0), slices=slices)


def native(program: Program, *, num_threads: int = 1) -> NativeEngine:
    engine = NativeEngine(
        program, num_blocks=8, max_step_tokens=NUM_TOKENS * 2, pool=pool_of(num_threads)
    )
    load_random_weights(engine, program, TensorFormat.F32)
    return engine


def reference_logits(program: Program) -> F32:
    engine = ReferenceEngine(program, num_blocks=8)
    load_random_weights(engine, program, TensorFormat.F32)
    return engine.logits(step_of(slice_of(0, NUM_TOKENS)), None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_the_reference_does(name: str) -> None:
    program = PROGRAMS[name]
    expected = reference_logits(program)
    made = native(program).logits(step_of(slice_of(0, NUM_TOKENS)), None)
    assert np.abs(expected).max() > 0.05
    # Keys and values are float16 here.
    np.testing.assert_allclose(made, expected, atol=2e-3 * float(np.abs(expected).max()))


OTHER_VALUES = {"value_start": 0}
"""Of fields without whose value the registers would have other widths."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_field_matters(name: str) -> None:
    """That a field were ignored, the test above would show."""
    program = PROGRAMS[name]
    expected = reference_logits(program)
    for index, op in enumerate(program.ops):
        for field in fields(op):
            if field.default is MISSING or getattr(op, field.name) == field.default:
                continue
            # Without a width of their own values do not fit the registers; without a gate there is
            # one activation only.
            if field.name == "value_dim" or (
                field.name == "activation" and getattr(op, "gate", None) is None
            ):
                continue
            change: Any = {field.name: OTHER_VALUES.get(field.name, field.default)}
            ops = (*program.ops[:index], replace(op, **change), *program.ops[index + 1 :])
            difference = np.abs(reference_logits(replace(program, ops=ops)) - expected).max()
            assert difference > 2e-2 * np.abs(expected).max(), field.name


@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_threads_and_neighbours_do_not_matter(name: str) -> None:
    program = PROGRAMS[name]
    whole = native(program).logits(step_of(slice_of(0, NUM_TOKENS)), None)
    engine = native(program, num_threads=3)
    parts = []
    for number, (first, end) in enumerate(((0, 1), (1, 9), (9, NUM_TOKENS)), 1):
        step = step_of(slice_of(0, 13, sequence=number), slice_of(first, end))
        parts.append(engine.logits(step, None)[13:])
    assert np.concatenate(parts).tobytes() == whole.tobytes()
