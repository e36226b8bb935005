"""What steps read and compute, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from potluck.engines.native.products import Operands, operands_of
from potluck.engines.native.program import label_of
from potluck.engines.native.step_work import work_of
from potluck.types.program import (
    Add,
    Attention,
    CausalConv,
    CopyColumns,
    GatedDelta,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Op,
    Program,
    RmsNorm,
    Shard,
    StateScan,
    StateSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

NORM = RmsNorm(x="hidden", weight="norm.weight", out="x", group=64, epsilon=1e-5)
Q = Linear(x="x", weight="layers.3.attn.q.weight", out="q")
K = Linear(x="x", weight="layers.3.attn.k.weight", out="k")
HEAD = Head(x="x", weight="head.weight", vocab_size=96)


def attention(window: int | None) -> Attention:
    return Attention(
        q="q",
        k="k",
        v="k",
        out="x",
        cache_index=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        scale=1.0,
        window=window,
    )


def program(*ops: Op, states: tuple[StateSpec, ...] = ()) -> Program:
    return Program(
        states=states,
        shard=Shard.whole(4),
        registers=(),
        ops=ops,
        weights=(),
        caches=(),
        ropes=(),
        hidden_size=64,
        vocab_size=96,
        context_tokens=64,
    )


def step(*parts: tuple[int, int, bool]) -> Step:
    """Slices of (tokens, start, sample)."""
    return Step(
        step_id=StepId(0),
        slices=tuple(
            SequenceSlice(
                sequence_id=SequenceId(index),
                tokens=(0,) * count,
                start_position=start,
                block_table=(),
                sample=sample,
            )
            for index, (count, start, sample) in enumerate(parts)
        ),
    )


WEIGHTS = {
    info.name: info
    for info in (
        TensorInfo(name="norm.weight", shape=(64,), format=TensorFormat.F32),
        TensorInfo(name=Q.weight, shape=(80, 64), format=TensorFormat.Q8_0),
        TensorInfo(name="head.weight", shape=(96, 64), format=TensorFormat.F16),
    )
}
ARITHMETIC = {TensorFormat.Q8_0: Operands.INT8, TensorFormat.F16: Operands.F32}


def test_weights_are_read_once_a_step_and_multiplied_with_every_token() -> None:
    steps = [step((3, 0, False), (1, 9, True)), step((1, 3, False))]
    work = work_of(program(NORM, Q, HEAD), ("a", "b", "c"), WEIGHTS, steps, ARITHMETIC)
    assert work.read_bytes == {"b": 2 * 80 * 64 // 32 * 34, "c": 96 * 64 * 2}
    assert work.multiply_adds == {
        ("b", Operands.INT8): 5 * 80 * 64,
        ("c", Operands.F32): 96 * 64,
    }


@pytest.mark.parametrize(("window", "visible"), [(None, 5 + 6 + 7 + 1), (6, 5 + 6 + 6 + 1)])
def test_a_token_reads_the_cache_that_it_sees(window: int | None, visible: int) -> None:
    """Two heads of 24 keys and 32 padded values, of two bytes."""
    labels = ("attention",)
    steps = [step((3, 4, True), (1, 0, True))]
    work = work_of(program(attention(window)), labels, WEIGHTS, steps, ARITHMETIC)
    assert work.read_bytes == {"attention": visible * 2 * (24 + 32) * 2}
    assert not work.multiply_adds


def test_a_window_that_a_slice_begins_beyond() -> None:
    work = work_of(program(attention(4)), ("a",), WEIGHTS, [step((3, 10, True))], ARITHMETIC)
    assert work.read_bytes == {"a": 3 * 4 * 2 * (24 + 32) * 2}


def test_labels() -> None:
    assert label_of([Q]) == "attn.q"
    assert label_of([Q, K]) == "attn.q+k"
    assert label_of([Add(x="hidden", y="x"), NORM, NORM]) == "add+norms"
    assert label_of([HEAD]) == "head"
    assert label_of([]) == "rounding"


def test_what_formats_are_multiplied_in() -> None:
    assert operands_of(TensorFormat.Q4_K, is_fast=False) is Operands.INT8
    assert operands_of(TensorFormat.BF16, is_fast=False) is Operands.F32
    assert operands_of(TensorFormat.F16, is_fast=False) is Operands.F32
    assert operands_of(TensorFormat.BF16, is_fast=True) is Operands.BF16
    assert operands_of(TensorFormat.Q4_K, is_fast=True) is Operands.BF16


@pytest.mark.parametrize("num_tokens", [1, 16])
def test_experts_are_read_as_far_as_tokens_choose_them(num_tokens: int) -> None:
    """An expert that a token has with a chance of 2 in 7 is read but for a chance of (5/7)^n."""
    moe = Moe(
        x="x",
        logits="logits",
        gate="layers.3.mlp.experts.gate.weight",
        up="layers.3.mlp.experts.up.weight",
        down="layers.3.mlp.experts.down.weight",
        out="x",
        num_experts=7,
        num_experts_per_token=2,
        expert_width=32,
        norm_topk_prob=True,
    )
    assert moe.gate is not None
    shapes = {moe.gate: (7, 32, 64), moe.up: (7, 32, 64), moe.down: (7, 64, 32)}
    weights = {
        name: TensorInfo(name=name, shape=shape, format=TensorFormat.Q8_0)
        for name, shape in shapes.items()
    }
    work = work_of(program(moe), ["experts"], weights, [step((num_tokens, 0, False))], ARITHMETIC)
    all_bytes = 3 * 7 * 32 * 64 // 32 * 34
    share = 1 - (5 / 7) ** num_tokens
    assert work.read_bytes == {"experts": pytest.approx(all_bytes * share, abs=3)}
    assert work.multiply_adds == {("experts", Operands.INT8): num_tokens * 2 * 3 * 32 * 64}


CONV = CausalConv(x="x", weight="layers.3.conv.kernel.weight", out="x", state_index=0, kernel=4)
DELTA = GatedDelta(
    x="x",
    decay="decay",
    beta="beta",
    rate="rate",
    decay_bias="decay_bias",
    out="y",
    state_index=1,
    num_heads=2,
    num_key_heads=2,
    key_dim=8,
    value_dim=16,
    epsilon=1e-6,
)
SCAN = StateScan(
    x="x",
    step="step",
    rate="rate",
    step_bias="step_bias",
    skip="skip",
    out="y",
    state_index=2,
    num_heads=3,
    head_dim=8,
    num_groups=1,
    state_dim=4,
)
STATES = (StateSpec(rows=3, width=64), StateSpec(rows=16, width=16), StateSpec(rows=12, width=8))


def test_states_are_read_once_for_each_sequence() -> None:
    steps = [step((5, 0, False), (1, 9, True))]
    ops = (CONV, DELTA, SCAN)
    work = work_of(program(*ops, states=STATES), ("c", "d", "s"), WEIGHTS, steps, ARITHMETIC)
    assert work.read_bytes == {
        "c": 2 * 3 * 64 * 4,
        "d": 2 * 16 * 16 * 4,
        "s": 2 * 12 * 8 * 4,
    }
    assert work.multiply_adds == {
        ("c", Operands.F32): 6 * 4 * 64,
        ("d", Operands.F32): 6 * 4 * 16 * 16,
        ("s", Operands.F32): 6 * 3 * 12 * 8,
    }


def test_matrices_of_heads_are_products_and_copies_are_nothing() -> None:
    up = HeadLinear(
        x="x",
        weight="layers.3.attn.k_up.weight",
        out="q",
        num_heads=4,
        rows=16,
        columns=32,
        x_stride=32,
        out_stride=16,
    )
    copy = CopyColumns(x="x", out="q", num_groups=1, count=8, x_stride=8, out_stride=8)
    info = TensorInfo(name=up.weight, shape=(4, 16, 32), format=TensorFormat.Q8_0)
    work = work_of(
        program(up, copy), ("u", "c"), {up.weight: info}, [step((3, 0, False))], ARITHMETIC
    )
    assert work.read_bytes == {"u": 4 * 16 * 34}
    assert work.multiply_adds == {("u", Operands.INT8): 3 * 4 * 16 * 32}


def test_latent_rows_are_read_once_for_keys_and_values() -> None:
    latent = replace(attention(None), v=None, num_kv_heads=1, value_dim=16, value_start=8)
    work = work_of(program(latent), ("a",), WEIGHTS, [step((1, 4, True))], ARITHMETIC)
    assert work.read_bytes == {"a": 5 * 24 * 2}


def test_labels_of_states_and_of_latent_attention() -> None:
    assert label_of([CONV, DELTA]) == "convolution+recurrence"
    assert label_of([SCAN]) == "recurrence"
