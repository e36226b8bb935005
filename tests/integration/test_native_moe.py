"""Mixtures of experts on the native engine: which experts, and what they make of a token.

The router's matrix has ones on its diagonal, so that a token's first numbers are its logits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.pools import pool_of
from support.models.random_weights import as_bytes, stored_rows
from support.reference.engine import ReferenceEngine

from potluck.engines.native.backend import COST
from potluck.engines.native.engine import NativeEngine
from potluck.types.engine import Engine
from potluck.types.program import (
    HIDDEN,
    Activation,
    Head,
    Linear,
    Moe,
    Program,
    Register,
    Shard,
    WeightRole,
    WeightSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat, TensorInfo

WIDTH, EXPERT_WIDTH, NUM_EXPERTS, NUM_CHOSEN = 256, 512, 5, 2
NUM_TOKENS = 23

Floats = NDArray[np.float32]

MOE = Moe(
    x=HIDDEN,
    logits="logits",
    gate="gate",
    up="up",
    down="down",
    out=HIDDEN,
    num_experts=NUM_EXPERTS,
    num_experts_per_token=NUM_CHOSEN,
    expert_width=EXPERT_WIDTH,
    norm_topk_prob=True,
)
PROGRAM = Program(
    shard=Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=False, has_head=False),
    registers=(Register(name=HIDDEN, width=WIDTH), Register(name="logits", width=NUM_EXPERTS)),
    ops=(Linear(x=HIDDEN, weight="router", out="logits"), MOE),
    weights=(
        WeightSpec(name="router", shape=(NUM_EXPERTS, WIDTH), role=WeightRole.ROUTER),
        WeightSpec(name="gate", shape=(NUM_EXPERTS, EXPERT_WIDTH, WIDTH)),
        WeightSpec(name="up", shape=(NUM_EXPERTS, EXPERT_WIDTH, WIDTH)),
        WeightSpec(name="down", shape=(NUM_EXPERTS, WIDTH, EXPERT_WIDTH)),
    ),
    caches=(),
    ropes=(),
    hidden_size=WIDTH,
    vocab_size=10,
    context_tokens=NUM_TOKENS,
)
NOT_NORMALIZED = replace(PROGRAM, ops=(PROGRAM.ops[0], replace(MOE, norm_topk_prob=False)))


WITHOUT_GATE = replace(
    PROGRAM,
    ops=(PROGRAM.ops[0], replace(MOE, gate=None, activation=Activation.RELU_SQUARED)),
    weights=tuple(weight for weight in PROGRAM.weights if weight.name != "gate"),
)


def load(
    engine: Engine, program: Program, formats: dict[str, TensorFormat], broken: tuple[int, ...] = ()
) -> None:
    """Random weights, the same for the same formats; those of ``broken`` experts are NaN."""
    sink = engine.sink()
    for number, spec in enumerate(program.weights):
        fmt = formats.get(spec.name, TensorFormat.F32)
        info = TensorInfo(name=spec.name, shape=spec.shape, format=fmt)
        rows = stored_rows(np.random.default_rng(number), fmt, info.num_rows, info.num_columns)
        if spec.role is WeightRole.ROUTER:
            rows = as_bytes(np.eye(*spec.shape, dtype=np.float32))
        for expert in broken if len(spec.shape) == 3 else ():
            rows.reshape(NUM_EXPERTS, -1)[expert] = 0xFF
        sink.begin(info)
        sink.write_rows(spec.name, 0, info.num_rows, memoryview(rows.tobytes()))
        sink.finish(spec.name)


def native(
    formats: dict[str, TensorFormat],
    *,
    program: Program = PROGRAM,
    num_threads: int = 1,
    broken: tuple[int, ...] = (),
) -> NativeEngine:
    engine = NativeEngine(
        program, num_blocks=0, max_step_tokens=NUM_TOKENS, pool=pool_of(num_threads)
    )
    load(engine, program, formats, broken)
    return engine


def reference(formats: dict[str, TensorFormat], program: Program) -> ReferenceEngine:
    engine = ReferenceEngine(program, num_blocks=2)
    load(engine, program, formats)
    return engine


def step(num_tokens: int, *, sample: bool = False) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1,) * num_tokens,
        start_position=0,
        block_table=(0, 1),
        sample=sample,
    )
    return Step(step_id=StepId(0), slices=(part,))


def run(engine: Engine, hidden: Floats) -> Floats:
    out = engine.step(step(len(hidden)), hidden).hidden
    assert out is not None
    return out


def hidden_with(logits: Floats | None = None, num_tokens: int = NUM_TOKENS) -> Floats:
    """Random rows that begin with ``logits``, or with others that are well apart."""
    rng = np.random.default_rng(5)
    hidden = rng.standard_normal((num_tokens, WIDTH)).astype(np.float32)
    apart = rng.permuted(np.tile(np.linspace(-1, 1, NUM_EXPERTS), (num_tokens, 1)), axis=1)
    hidden[:, :NUM_EXPERTS] = apart if logits is None else logits
    return hidden


def of(fmt: TensorFormat) -> dict[str, TensorFormat]:
    return dict.fromkeys(("gate", "up", "down"), fmt)


def assert_agree(actual: Floats, wanted: Floats, *formats: TensorFormat) -> None:
    """Three products one after another, whose error is that of the least exact of ``formats``.

    Integers are wrong by half a percent each (``test_native_against_reference``), and float32 sums
    of up to 512 by that many roundings.
    """
    limit = 512 * 2.0**-24
    if any(fmt.is_quantized for fmt in formats):
        limit = 3 * 0.005
    assert np.std(actual - wanted) < limit * np.std(wanted)


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda fmt: fmt.label)
def test_formats(fmt: TensorFormat) -> None:
    hidden = hidden_with()
    actual = run(native(of(fmt), num_threads=2), hidden)
    assert_agree(actual, run(reference(of(fmt), PROGRAM), hidden), fmt)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        (TensorFormat.F32, TensorFormat.F32),
        (TensorFormat.Q8_0, TensorFormat.Q4_K),
        (TensorFormat.Q4_K, TensorFormat.BF16),
        (TensorFormat.BF16, TensorFormat.Q8_0),
    ],
)
def test_experts_without_a_gate(up: TensorFormat, down: TensorFormat) -> None:
    hidden, formats = hidden_with(), {"up": up, "down": down}
    actual = run(native(formats, program=WITHOUT_GATE, num_threads=2), hidden)
    assert_agree(actual, run(reference(formats, WITHOUT_GATE), hidden), up, down)
    # They take no memory for a gate's products: of every token and expert that it goes to.
    saved = scratch_of(PROGRAM) - scratch_of(WITHOUT_GATE)
    assert saved == NUM_TOKENS * NUM_CHOSEN * EXPERT_WIDTH * 4


def scratch_of(program: Program) -> int:
    return COST.scratch_bytes(program, NUM_TOKENS, num_threads=1)


@pytest.mark.parametrize(
    "formats",
    [
        {"gate": TensorFormat.Q8_0, "up": TensorFormat.F16, "down": TensorFormat.Q6_K},
        {"gate": TensorFormat.F32, "up": TensorFormat.Q4_K, "down": TensorFormat.F32},
        {"gate": TensorFormat.Q4_0, "up": TensorFormat.Q4_0, "down": TensorFormat.BF16},
        {"gate": TensorFormat.BF16, "up": TensorFormat.Q8_0, "down": TensorFormat.F16},
    ],
    ids=["float up", "quantized up", "float down", "all forms"],
)
def test_mixed_formats(formats: dict[str, TensorFormat]) -> None:
    hidden = hidden_with()
    actual = run(native(formats), hidden)
    assert_agree(actual, run(reference(formats, PROGRAM), hidden), *formats.values())


def test_shares_that_are_not_normalized() -> None:
    hidden, formats = hidden_with(), of(TensorFormat.F32)
    wanted = run(reference(formats, NOT_NORMALIZED), hidden)
    assert_agree(run(native(formats, program=NOT_NORMALIZED), hidden), wanted)
    assert np.std(run(native(formats), hidden) - wanted) > 0.1 * np.std(wanted)


@pytest.mark.parametrize(
    ("logits", "chosen"),
    [
        ([0, 0, 0, 0, 0], (0, 1)),
        ([-1, 2, 0, 2, 2], (1, 3)),
        ([3, 1, 1, 1, 0], (0, 1)),
        ([0.0, -0.0, -1, -1, -1], (0, 1)),
        ([-5, -4, -3, -2, -1], (3, 4)),
    ],
)
def test_of_equal_logits_the_first_are_chosen(logits: list[float], chosen: tuple[int, ...]) -> None:
    """The experts that are not are broken: were one read, the result would be NaN."""
    hidden, formats = hidden_with(np.array(logits, np.float32)), of(TensorFormat.F32)
    broken = tuple({*range(NUM_EXPERTS)} - {*chosen})
    actual = run(native(formats, broken=broken), hidden)
    assert_agree(actual, run(reference(formats, PROGRAM), hidden))


@pytest.mark.parametrize(
    "fmt", [TensorFormat.Q4_0, TensorFormat.F16, TensorFormat.BF16], ids=lambda fmt: fmt.label
)
def test_some_experts_get_all_tokens_and_some_none(fmt: TensorFormat) -> None:
    """As computed alone, bit for bit; a token that differs has other experts all to itself."""
    logits = np.tile(np.array([0, 0, 7, 0, 5], np.float32), (NUM_TOKENS, 1))
    logits[11] = [4, 9, 0, 0, 0]
    hidden = hidden_with(logits)
    together = run(native(of(fmt), num_threads=2), hidden)
    alone = native(of(fmt))
    for token in range(NUM_TOKENS):
        row = run(alone, hidden[token : token + 1])
        np.testing.assert_array_equal(row[0].view(np.uint32), together[token].view(np.uint32))


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_a_token_that_no_expert_can_be_chosen_for_is_nan(bad: float) -> None:
    hidden, formats = hidden_with(), of(TensorFormat.Q8_0)
    wanted = run(native(formats), hidden)
    hidden[4, 2] = bad
    engine = native(formats)
    actual = run(engine, hidden)
    assert np.isnan(actual[4]).all()
    others = np.arange(NUM_TOKENS) != 4
    np.testing.assert_array_equal(actual[others].view(np.uint32), wanted[others].view(np.uint32))
    with np.errstate(invalid="ignore"):
        assert np.isnan(run(reference(formats, PROGRAM), hidden)[4]).all()
    # All of a step, too, and nothing is left of it in the next.
    assert np.isnan(run(engine, hidden[4:5])).all()
    hidden[4, 2] = 0
    assert np.isfinite(run(engine, hidden)).all()


def test_such_a_token_has_no_logits() -> None:
    program = replace(
        PROGRAM,
        shard=replace(PROGRAM.shard, has_head=True),
        ops=(*PROGRAM.ops, Head(x=HIDDEN, weight="head", vocab_size=10)),
        weights=(*PROGRAM.weights, WeightSpec(name="head", shape=(10, WIDTH))),
    )
    engine = native(of(TensorFormat.Q8_0), program=program)
    hidden = hidden_with()
    assert np.isfinite(engine.logits(step(NUM_TOKENS, sample=True), hidden)).all()
    hidden[-1, 0] = np.nan
    assert np.isnan(engine.logits(step(NUM_TOKENS, sample=True), hidden)).all()
