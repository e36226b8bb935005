"""Ops with a state in the native engine: against the reference, and bit for bit against itself.

The shapes are ragged on purpose: heads and columns are no multiples of the kernels' lanes.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.pools import pool_of
from support.models.canonical_weights import load_canonical_weights
from support.reference.engine import ReferenceEngine

from potluck.engines.native.backend import COST
from potluck.engines.native.engine import NativeEngine, available_isas
from potluck.errors import EngineError
from potluck.types.program import (
    Add,
    CausalConv,
    Embed,
    GatedDelta,
    Head,
    Linear,
    Op,
    Program,
    Register,
    RmsNorm,
    Shard,
    StateScan,
    StateSpec,
    WeightSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, StateCopy, Step, StepId

WIDTH = 64
VOCAB = 50
CONTEXT = 64
NUM_TOKENS = 37
NUM_STATES = 5
TOKENS = tuple(np.random.default_rng(3).integers(0, VOCAB, CONTEXT).tolist())

F32 = NDArray[np.float32]

CONV = CausalConv(x="x", weight="kernel", out="y", state_index=0, kernel=4)
DELTA = GatedDelta(
    x="x",
    decay="decay",
    beta="beta",
    rate="rate",
    decay_bias="bias",
    out="y",
    state_index=0,
    num_heads=6,
    num_key_heads=3,
    key_dim=24,
    value_dim=20,
    epsilon=1e-6,
)
SCAN = StateScan(
    x="x",
    step="decay",
    rate="rate",
    step_bias="bias",
    skip="skip",
    out="y",
    state_index=0,
    num_heads=6,
    head_dim=20,
    num_groups=3,
    state_dim=24,
)


def widths(op: Op) -> tuple[int, int]:
    """Of ``x`` and ``y``."""
    match op:
        case GatedDelta():
            values = op.num_heads * op.value_dim
            return 2 * op.num_key_heads * op.key_dim + values, values
        case StateScan():
            inputs = op.num_heads * op.head_dim
            return inputs + 2 * op.num_groups * op.state_dim, inputs
    return 40, 40


def state_of(op: Op) -> StateSpec:
    match op:
        case CausalConv():
            return StateSpec(rows=op.kernel - 1, width=widths(op)[0])
        case GatedDelta():
            return StateSpec(rows=op.num_heads * op.key_dim, width=op.value_dim)
        case StateScan():
            return StateSpec(rows=op.num_heads * op.state_dim, width=op.head_dim)
    raise AssertionError(op)


def program_of(op: CausalConv | GatedDelta | StateScan) -> Program:
    """The op between products of its input and of its output."""
    x, y = widths(op)
    num_heads = 1 if isinstance(op, CausalConv) else op.num_heads
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (VOCAB, WIDTH),
        "x_weight": (x, WIDTH),
        "decay_weight": (num_heads, WIDTH),
        "beta_weight": (num_heads, WIDTH),
        "y_weight": (WIDTH, y),
    }
    if isinstance(op, CausalConv):
        shapes |= {"kernel": (x * op.kernel,), "conv_bias": (x,)}
    vectors = {"rate": num_heads, "bias": num_heads, "skip": num_heads}
    shapes |= {name: (size,) for name, size in vectors.items()}
    ops = (
        Embed(weight="embed", out="hidden"),
        RmsNorm(x="hidden", weight=None, out="normed", group=WIDTH, epsilon=1e-5),
        Linear(x="normed", weight="x_weight", out="x"),
        Linear(x="normed", weight="decay_weight", out="decay"),
        Linear(x="normed", weight="beta_weight", out="beta"),
        op,
        Linear(x=op.out, weight="y_weight", out="normed"),
        Add(x="hidden", y="normed"),
        Head(x="hidden", weight="embed", vocab_size=VOCAB),
    )
    named = {getattr(each, field.name) for each in ops for field in fields(each)}
    return Program(
        shard=Shard.whole(1),
        registers=tuple(
            Register(name=name, width=width)
            for name, width in {
                "hidden": WIDTH,
                "normed": WIDTH,
                "x": x,
                "y": y,
                "decay": num_heads,
                "beta": num_heads,
            }.items()
        ),
        ops=ops,
        weights=tuple(
            WeightSpec(name=name, shape=shape) for name, shape in shapes.items() if name in named
        ),
        caches=(),
        ropes=(),
        hidden_size=WIDTH,
        vocab_size=VOCAB,
        context_tokens=CONTEXT,
        states=(state_of(op),),
    )


PROGRAMS = {
    "conv": program_of(CONV),
    "conv in place": program_of(replace(CONV, out="x", bias="conv_bias", has_silu=True)),
    "conv over two": program_of(replace(CONV, kernel=2, has_silu=True)),
    "conv over sixteen": program_of(replace(CONV, kernel=16, bias="conv_bias")),
    "delta": program_of(DELTA),
    "delta tiled": program_of(replace(DELTA, is_tiled=True)),
    "delta of five strips": program_of(
        replace(DELTA, num_heads=2, num_key_heads=1, key_dim=33, value_dim=80, epsilon=0.5)
    ),
    "delta of eight strips": program_of(
        replace(DELTA, num_heads=1, num_key_heads=1, key_dim=128, value_dim=128)
    ),
    "scan": program_of(SCAN),
    "scan within limits": program_of(replace(SCAN, least_step=0.5, largest_step=1.0)),
    "scan of five strips": program_of(
        replace(SCAN, num_heads=2, num_groups=1, head_dim=80, state_dim=33)
    ),
}


def part(sequence: int, start: int, end: int, *, slot: int | None = None) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=TOKENS[start:end],
        start_position=start,
        block_table=(),
        sample=True,
        score_from=0,
        state=sequence if slot is None else slot,
    )


def step_of(*slices: SequenceSlice, copies: tuple[StateCopy, ...] = ()) -> Step:
    return Step(step_id=StepId(0), slices=slices, state_copies=copies)


def native_engine(
    program: Program, *, num_threads: int = 1, isa: str | None = None, num_states: int = NUM_STATES
) -> NativeEngine:
    engine = NativeEngine(
        program,
        num_blocks=0,
        num_states=num_states,
        max_step_tokens=2 * CONTEXT,
        pool=pool_of(num_threads),
        isa=isa,
    )
    load_canonical_weights(engine, program)
    return engine


def reference_logits(program: Program) -> F32:
    engine = ReferenceEngine(program, num_blocks=0, num_states=NUM_STATES)
    load_canonical_weights(engine, program)
    return engine.logits(step_of(part(0, 0, NUM_TOKENS)), None)


def whole_of(program: Program) -> F32:
    return native_engine(program).logits(step_of(part(0, 0, NUM_TOKENS)), None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_the_reference_does(name: str) -> None:
    program = PROGRAMS[name]
    expected = reference_logits(program)
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(
        whole_of(program), expected, atol=2e-5 * float(np.abs(expected).max())
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_field_matters(name: str) -> None:
    """That a field were ignored, the test above would show."""
    program = PROGRAMS[name]
    expected = reference_logits(program)
    index, op = next(
        (i, each) for i, each in enumerate(program.ops) if hasattr(each, "state_index")
    )
    changes: list[dict[str, Any]] = [
        {field.name: field.default}
        for field in fields(op)
        if field.default is not MISSING and getattr(op, field.name) != field.default
    ]
    if isinstance(op, GatedDelta) and op.epsilon > 1e-3:
        changes.append({"epsilon": 1e-6})
    for change in changes:
        ops = (*program.ops[:index], replace(op, **change), *program.ops[index + 1 :])
        difference = np.abs(reference_logits(replace(program, ops=ops)) - expected).max()
        assert difference > 1e-3 * np.abs(expected).max(), change


@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_threads_and_neighbours_do_not_matter(name: str) -> None:
    program = PROGRAMS[name]
    whole = whole_of(program)
    engine = native_engine(program, num_threads=3)
    cuts = (0, 1, 2, 5, 6, 20, 36, NUM_TOKENS)
    parts = []
    for first, end in pairwise(cuts):
        # Beside prompts and decodes of other sequences, which begin anew in a used slot.
        step = step_of(part(1, 0, 13), part(2, 0, 1), part(0, first, end), part(3, 0, 2))
        parts.append(engine.logits(step, None)[14 : 14 + end - first])
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("isa", available_isas())
def test_instruction_sets_give_the_same_bits(name: str, isa: str) -> None:
    program = PROGRAMS[name]
    expected = native_engine(program, isa="scalar").logits(step_of(part(0, 0, NUM_TOKENS)), None)
    engine = native_engine(program, isa=isa)
    first = engine.logits(step_of(part(0, 0, 20)), None)
    second = engine.logits(step_of(part(0, 20, NUM_TOKENS)), None)
    assert np.concatenate([first, second]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_checkpoint_is_restored_exactly(name: str) -> None:
    program = PROGRAMS[name]
    engine = native_engine(program, num_threads=2)
    engine.logits(step_of(part(0, 0, 20)), None)
    made = StateCopy(source=0, target=4)
    expected = engine.logits(step_of(part(0, 20, 30), copies=(made,)), None)
    saved = engine.read_states([4, 0])
    assert saved.shape == (2, engine.block_format.state_bytes)
    assert (saved[0] != saved[1]).any()
    # The slot went on to 30 tokens; what was copied of it did not.
    restored = StateCopy(source=4, target=0)
    again = engine.logits(step_of(part(0, 20, 30), copies=(restored,)), None)
    assert again.tobytes() == expected.tobytes()
    other = native_engine(program)
    other.write_states([2], saved[:1])
    assert other.logits(step_of(part(7, 20, 30, slot=2)), None).tobytes() == expected.tobytes()


def test_copies_are_made_in_order() -> None:
    engine = native_engine(PROGRAMS["scan"])
    data = np.arange(3 * engine.block_format.state_bytes, dtype=np.uint32).astype(np.uint8)
    data = data.reshape(3, -1) + np.arange(3, dtype=np.uint8)[:, None]
    engine.write_states([0, 1, 2], data)
    copies = (StateCopy(source=0, target=1), StateCopy(source=1, target=2))
    engine.logits(step_of(part(3, 0, 1), copies=copies), None)
    assert (engine.read_states([0, 1, 2]) == data[0]).all()


@pytest.mark.parametrize(
    ("slices", "copies", "problem"),
    [
        ((replace(part(0, 3, 4), state=None),), (), "sequence 0: it has no state slot"),
        ((part(0, 3, 4, slot=5),), (), r"there is no state slot 5 \(there are 5\)"),
        ((part(0, 3, 4, slot=-1),), (), "there is no state slot -1"),
        ((part(0, 3, 4), part(1, 3, 4, slot=0)), (), "state slot 0 is that of another sequence"),
        ((part(0, 3, 4),), (StateCopy(source=1, target=5),), "no state slot 5 to copy"),
        ((part(0, 3, 4),), (StateCopy(source=-1, target=2),), "no state slot -1 to copy"),
        ((part(0, 3, 4),), (StateCopy(source=1, target=1),), "state slot 1 is copied to itself"),
    ],
)
def test_a_step_that_is_refused_changes_nothing(
    slices: tuple[SequenceSlice, ...], copies: tuple[StateCopy, ...], problem: str
) -> None:
    engine = native_engine(PROGRAMS["delta"])
    engine.logits(step_of(part(0, 0, 3), part(1, 0, 3)), None)
    before = engine.read_states(range(NUM_STATES))
    good = StateCopy(source=0, target=3)
    with pytest.raises(EngineError, match=problem):
        engine.logits(step_of(*slices, copies=(good, *copies)), None)
    assert (engine.read_states(range(NUM_STATES)) == before).all()


def test_slots_that_are_not_there_are_refused() -> None:
    engine = native_engine(PROGRAMS["delta"])
    data = engine.read_states([0, 1])
    with pytest.raises(EngineError, match="there is no state slot 5"):
        engine.read_states([5])
    with pytest.raises(EngineError, match="there is no state slot -1"):
        engine.write_states([0, -1], data)
    with pytest.raises(EngineError, match="are not those of 1 state slots"):
        engine.write_states([0], data)
    with pytest.raises(EngineError, match=r"there is no state slot 0 \(there are 0\)"):
        native_engine(PROGRAMS["delta"], num_states=0).logits(step_of(part(0, 0, 1)), None)
    for number in (-1, 1 << 17):
        with pytest.raises(EngineError, match="num_states is"):
            native_engine(PROGRAMS["delta"], num_states=number)


def test_memory_is_counted() -> None:
    for program in PROGRAMS.values():
        engine = native_engine(program)
        state_bytes = engine.block_format.state_bytes
        assert COST.cache_bytes(program, 0, 3) == 3 * state_bytes
        assert COST.cache_bytes(program, 7) == 0
        (state,) = program.states
        # A cache line, and columns filled up to whole lanes.
        assert state.num_bytes <= state_bytes <= 2 * state.num_bytes + 64
    eight = PROGRAMS["delta of eight strips"]
    assert native_engine(eight).block_format.state_bytes == eight.states[0].num_bytes
    small, large = (COST.scratch_bytes(eight, tokens, num_threads=1) for tokens in (1, 129))
    inputs = 4 * (2 * 128 + 1 + 2)
    registers = 4 * sum(register.width for register in eight.registers)
    assert large - small >= 128 * (inputs + registers)


def test_models_without_state_have_no_slots() -> None:
    program = PROGRAMS["conv"]
    stateless = replace(
        program,
        ops=tuple(op for op in program.ops if not isinstance(op, CausalConv)),
        weights=tuple(weight for weight in program.weights if "kernel" not in weight.name),
        states=(),
    )
    last = stateless.ops[-3]
    assert isinstance(last, Linear)
    ops = (*stateless.ops[:-3], replace(last, x="x"), *stateless.ops[-2:])
    stateless = replace(stateless, ops=ops)
    engine = native_engine(stateless, num_states=3)
    assert engine.block_format.state_bytes == 0
    assert COST.cache_bytes(stateless, 0, 3) == 0
    # A stage of a model that keeps states on others: slots and copies are not its business.
    step = step_of(part(0, 0, 3, slot=9), copies=(StateCopy(source=7, target=8),))
    assert engine.logits(step, None).shape == (3, VOCAB)
    assert engine.read_states([11]).shape == (1, 0)


def with_state(*states: StateSpec) -> Program:
    return replace(PROGRAMS["delta"], states=states)


def with_op(op: Op) -> tuple[Op, ...]:
    ops = PROGRAMS["conv"].ops
    return (*ops[:5], op, *ops[6:])


_STATE = state_of(DELTA)
BAD: dict[str, tuple[Program, str]] = {
    "kernel of one": (
        replace(PROGRAMS["conv"], ops=with_op(replace(CONV, kernel=1))),
        "kernel is 1, but must be from 2 to 16",
    ),
    "long kernel": (program_of(replace(CONV, kernel=17)), "kernel is 17"),
    "no heads": (program_of(replace(DELTA, num_key_heads=0)), "num_key_heads is 0"),
    "key heads": (program_of(replace(DELTA, num_key_heads=4)), "does not divide num_heads"),
    "epsilon": (program_of(replace(DELTA, epsilon=float("nan"))), "epsilon must be finite"),
    "groups": (program_of(replace(SCAN, num_groups=4)), "num_groups does not divide num_heads"),
    "limits": (
        program_of(replace(SCAN, least_step=2.0, largest_step=1.0)),
        "largest_step is less than least_step",
    ),
    "limit": (program_of(replace(SCAN, least_step=float("inf"))), "least_step must be finite"),
    "no state": (with_state(), "there is no state 0"),
    "negative state": (program_of(replace(SCAN, state_index=-1)), "there is no state -1"),
    "another state": (
        with_state(replace(_STATE, rows=7)),
        r"state 0 is \[7, 20\], and \[144, 20\] is needed",
    ),
    "unused state": (with_state(_STATE, _STATE), "state 1 is never used"),
    "empty state": (with_state(replace(_STATE, rows=0)), "the rows of a state is 0"),
    "huge states": (
        with_state(*[StateSpec(rows=1 << 20, width=1 << 14)] * 5),
        r"more than 2\^36 numbers",
    ),
    "state of two": (
        replace(
            PROGRAMS["conv"],
            ops=(*PROGRAMS["conv"].ops[:6], CONV, *PROGRAMS["conv"].ops[6:]),
        ),
        "state 0 is that of another op",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_contradiction_is_refused(name: str) -> None:
    program, problem = BAD[name]
    with pytest.raises(EngineError, match=problem):
        native_engine(program)


@pytest.mark.parametrize(
    ("name", "register"),
    [
        ("conv", "y"),
        ("delta", "x"),
        ("delta", "y"),
        ("delta", "decay"),
        ("delta", "beta"),
        ("scan", "x"),
        ("scan", "y"),
        ("scan", "decay"),
    ],
)
def test_wrong_widths_are_refused(name: str, register: str) -> None:
    program = PROGRAMS[name]
    registers = tuple(
        replace(each, width=each.width + 1) if each.name == register else each
        for each in program.registers
    )
    weights = tuple(
        replace(each, shape=(each.shape[0] + 1, WIDTH))
        if each.name == f"{register}_weight"
        else each
        for each in program.weights
    )
    with pytest.raises(EngineError, match=r"op 5 \(.*is needed"):
        native_engine(replace(program, registers=registers, weights=weights))
