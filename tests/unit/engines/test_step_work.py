"""What steps read and compute, counted by hand."""

from __future__ import annotations

import pytest

from potluck.engines.op_labels import label_of
from potluck.engines.products import Operands, operands_of
from potluck.engines.step_work import work_of
from potluck.types.program import (
    Add,
    Attention,
    Head,
    Linear,
    Moe,
    Op,
    Program,
    RmsNorm,
    Shard,
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


def program(*ops: Op) -> Program:
    return Program(
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
        normalize_shares=True,
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
