"""A group of native engines gives the bits of one engine, in whatever form members exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.groups import GroupEngine, divided
from support.engines.native_pipeline import VOCAB_SIZE, make_program, small_config
from support.engines.pools import pool_of
from support.models.random_weights import load_random_weights

from potluck import kernels
from potluck.engines.native.backend import COST
from potluck.engines.native.engine import NativeEngine
from potluck.errors import EngineError
from potluck.models.layers import with_layers
from potluck.types.arithmetic import Arithmetic
from potluck.types.engine import NO_MASKS, Engine
from potluck.types.model import LayerConfig
from potluck.types.program import (
    Add,
    AllGather,
    Attention,
    Embed,
    Head,
    Linear,
    Moe,
    Op,
    Program,
    Register,
    Shard,
    WeightSpec,
)
from potluck.types.step import (
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat, TensorInfo, TensorSink

if TYPE_CHECKING:
    from potluck.types.engine import TokenMasks

SHARES = ((3, 1), (4, 2, 3))
NUM_LAYERS = 3  # of which the second has experts
MAX_STEP_TOKENS = 200
FAST = [each for each in Arithmetic if each.isa in kernels.available_isas() and each.fast_formats]

Floats = NDArray[np.float32]


def program(num_layers: int = NUM_LAYERS) -> Program:
    config = small_config(num_layers, num_kv_heads=4)
    return make_program(config, Shard.whole(num_layers))


def engine_of(
    part: Program, arithmetic: Arithmetic = Arithmetic.EXACT, num_threads: int = 1
) -> NativeEngine:
    return NativeEngine(
        part,
        num_blocks=40,
        max_step_tokens=MAX_STEP_TOKENS,
        pool=pool_of(num_threads),
        isa=arithmetic.isa,
        arithmetic=arithmetic,
    )


def group_of(
    whole: Program,
    shares: Sequence[int],
    arithmetic: Arithmetic = Arithmetic.EXACT,
    num_threads: int = 1,
) -> GroupEngine:
    parts = divided(whole, shares)
    return GroupEngine(parts, [engine_of(each, arithmetic, num_threads) for each in parts])


def slice_of(sequence: int, start: int, count: int, **changes: Any) -> SequenceSlice:
    tokens = tuple(
        (31 * position + 7 * sequence) % VOCAB_SIZE for position in range(start, start + count)
    )
    part = SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=tokens,
        start_position=start,
        block_table=tuple(range(10 * sequence, 10 * sequence + 10)),
        sample=True,
    )
    return replace(part, **changes)


def scored(sequence: int, start: int, count: int) -> SequenceSlice:
    return slice_of(sequence, start, count, sample=False, score_from=0, next_token=1)


def steps_of_logits() -> list[tuple[SequenceSlice, ...]]:
    """Prefills alone and beside decodes, and slices with drafts, in several orders."""
    return [
        (scored(0, 0, 19),),
        (scored(0, 19, 1), scored(1, 0, 7), slice_of(2, 0, 1)),
        (scored(1, 7, 5), slice_of(0, 20, 4, num_drafts=3), slice_of(2, 1, 1), scored(3, 0, 2)),
        (slice_of(0, 24, 2, num_drafts=2), scored(1, 12, 3)),
        # So many tokens that halves take turns; the first ends within a slice.
        (slice_of(0, 26, 3, num_drafts=2), scored(1, 15, 120), slice_of(2, 2, 1), scored(3, 2, 60)),
        (scored(0, 29, 128),),
    ]


def logits_of(engine: Engine) -> list[Floats]:
    return [
        engine.logits(Step(step_id=StepId(number), slices=slices), None)
        for number, slices in enumerate(steps_of_logits())
    ]


def assert_same(
    whole: Program,
    fmt: TensorFormat,
    arithmetic: Arithmetic,
    shares: Sequence[int],
    exceptions: dict[str, TensorFormat] | None = None,
    num_threads: int = 1,
) -> GroupEngine:
    single = engine_of(whole, arithmetic)
    group = group_of(whole, shares, arithmetic, num_threads)
    for each in (single, group):
        load_random_weights(each, whole, fmt, exceptions=exceptions or {})
    for wanted, found in zip(logits_of(single), logits_of(group), strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_array_equal(found, wanted)
    group.close()
    return group


@pytest.mark.slow
@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda each: each.label)
@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_a_group_gives_the_same_bits_in_every_format(
    fmt: TensorFormat, shares: Sequence[int]
) -> None:
    group = assert_same(program(), fmt, Arithmetic.EXACT, shares)
    ops = [op for part in group.programs for op in part.ops]
    assert all(op.bounds for op in ops if isinstance(op, Embed | Head))
    assert all(op.expert_widths for op in ops if isinstance(op, Moe))
    assert len(set(group.mesh.num_exchanges)) == 1


@pytest.mark.parametrize(
    "fmt",
    [TensorFormat.BF16, TensorFormat.Q8_0, TensorFormat.Q4_K, TensorFormat.F16],
    ids=lambda each: each.label,
)
@pytest.mark.parametrize("arithmetic", FAST, ids=lambda each: each.value)
@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_a_group_gives_the_same_bits_in_fast_arithmetic(
    fmt: TensorFormat, arithmetic: Arithmetic, shares: Sequence[int]
) -> None:
    assert_same(program(), fmt, arithmetic, shares)


MIXED = {"layers.0.attn.o.weight": TensorFormat.F32, "layers.0.mlp.down.weight": TensorFormat.F16}
"""Of a quantized model: what reads these products' inputs reads float32."""


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", [Arithmetic.EXACT, *FAST], ids=lambda each: each.value)
def test_matrices_of_several_formats_read_what_was_gathered(arithmetic: Arithmetic) -> None:
    whole = program()
    names = {each.name for each in whole.weights}
    exceptions = {name: fmt for name, fmt in MIXED.items() if name in names}
    assert len(exceptions) == 2
    assert_same(whole, TensorFormat.Q8_0, arithmetic, (3, 1), exceptions)
    assert_same(whole, TensorFormat.BF16, arithmetic, (1, 2), exceptions)


def with_narrow_experts(_: int, layer: LayerConfig) -> LayerConfig:
    if layer.experts is None:
        return layer
    return replace(layer, experts=replace(layer.experts, width=32))


def test_experts_too_narrow_for_whole_groups_of_columns() -> None:
    """Their inner activations are exchanged as floats, and quantized by every member."""
    config = with_layers(small_config(2, num_kv_heads=4), with_narrow_experts)
    whole = make_program(config, Shard.whole(2))
    group = assert_same(whole, TensorFormat.Q8_0, Arithmetic.EXACT, (1, 1))
    moes = [op for part in group.programs for op in part.ops if isinstance(op, Moe)]
    assert [op.expert_widths for op in moes] == [(16, 16)] * 2


def test_threads_of_a_member_change_nothing() -> None:
    assert_same(program(), TensorFormat.Q4_K, Arithmetic.EXACT, (2, 1), num_threads=3)


def attended(whole: Program) -> tuple[int, str]:
    """The index of the first attention, and the register that it writes."""
    return next((i, op.out) for i, op in enumerate(whole.ops) if isinstance(op, Attention))


def with_ops_after(whole: Program, index: int, *ops: Op) -> Program:
    return replace(whole, ops=(*whole.ops[: index + 1], *ops, *whole.ops[index + 1 :]))


def test_what_is_multiplied_and_also_added_is_gathered_as_floats() -> None:
    """Here the output of attention is added to the residual stream, too."""
    whole = program(1)
    index, out = attended(whole)
    changed = with_ops_after(whole, index, Add(x="hidden", y=out, scale=0.5))
    assert_same(changed, TensorFormat.Q8_0, Arithmetic.EXACT, (1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", [Arithmetic.EXACT, *FAST], ids=lambda each: each.value)
@pytest.mark.parametrize("fmt", [TensorFormat.F32, TensorFormat.BF16], ids=lambda each: each.label)
def test_what_matrices_of_two_formats_multiply_is_gathered_as_floats(
    fmt: TensorFormat, arithmetic: Arithmetic
) -> None:
    """Here two products read the output of attention, in their own forms."""
    whole = program(1)
    index, out = attended(whole)
    changed = with_ops_after(
        whole, index, Linear(x=out, weight="other", out="made"), Add(x="hidden", y="made")
    )
    changed = replace(
        changed,
        registers=(*whole.registers, Register(name="made", width=256)),
        weights=(*whole.weights, WeightSpec(name="other", shape=(256, 256))),
    )
    for first, second in ((TensorFormat.Q8_0, fmt), (fmt, TensorFormat.Q8_0)):
        assert_same(changed, first, arithmetic, (1, 1), {"other": second})


@pytest.mark.parametrize(
    ("fmt", "arithmetic", "bytes_of_a_value"),
    [
        (TensorFormat.Q8_0, Arithmetic.EXACT, 36 / 32),
        (TensorFormat.F32, Arithmetic.EXACT, 4),
        (TensorFormat.BF16, Arithmetic.EXACT, 4),
        *((TensorFormat.BF16, each, 2) for each in FAST),
    ],
)
def test_what_products_read_is_sent_as_they_read_it(
    fmt: TensorFormat, arithmetic: Arithmetic, bytes_of_a_value: float
) -> None:
    """Of one token; the residual stream is float32 always, as are embedding and logits."""
    whole = program(1)
    group = group_of(whole, (1, 1), arithmetic)
    load_random_weights(group, whole, fmt)
    group.logits(Step(step_id=StepId(0), slices=(slice_of(0, 0, 1, tokens=(150,)),)), None)
    leader, other = group.mesh.exchanged_bytes
    of_products = (256 + 512) // 2 * bytes_of_a_value  # what attention and activation give
    of_residual = (256 + 256) // 2 * 4
    assert leader == of_products + of_residual
    assert other == of_products + of_residual + 4 * 256 + 4 * program_rows(group.programs[1])


def program_rows(part: Program) -> int:
    """Of the vocabulary, that a member has."""
    head = part.head
    assert head is not None
    return head.bounds[2] - head.bounds[1]


GREEDY = SamplingParams(temperature=0.0)
PARAMS = {
    0: GREEDY,
    1: SamplingParams(temperature=0.8, top_p=0.9, seed=3),
    2: SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3),
    3: SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4),
}


def opening(sequence: int, params: SamplingParams, grammar: str | None = None) -> SequenceOpening:
    return SequenceOpening(
        sequence_id=SequenceId(sequence), sampling=params, prompt_tokens=(1, 2), grammar=grammar
    )


def sampling_steps() -> list[tuple[Step, TokenMasks]]:
    """Sequences that are greedy, drawn, and all else, with right drafts, wrong ones and masks."""
    allowed = np.zeros((1, math.ceil(VOCAB_SIZE / 32)), np.uint32)
    allowed[0, 2] = 0b1010
    opened = tuple(opening(sequence, params) for sequence, params in PARAMS.items())
    return [
        (
            Step(
                step_id=StepId(0),
                slices=tuple(slice_of(sequence, 0, 3 + sequence) for sequence in PARAMS),
                opened=opened,
            ),
            NO_MASKS,
        ),
        (
            Step(
                step_id=StepId(1),
                slices=(
                    slice_of(0, 3, 1),
                    slice_of(1, 4, 3, num_drafts=2),
                    slice_of(2, 5, 2, sample=True, score_from=0),
                    slice_of(3, 6, 2, num_drafts=2),
                ),
                closed=(SequenceId(2),),
            ),
            NO_MASKS,
        ),
        (
            Step(
                step_id=StepId(2),
                slices=(slice_of(0, 4, 2, num_drafts=1), slice_of(2, 0, 4)),
                opened=(opening(2, GREEDY, grammar="a grammar"),),
            ),
            {SequenceId(2): allowed},
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize(
    "tail",
    [{}, {"softcap": 3.0, "scale": 0.25}, {"scale": 0.0}],
    ids=["plain", "capped", "tied"],
)
def test_the_leader_samples_what_one_engine_samples(
    shares: Sequence[int], tail: dict[str, float]
) -> None:
    whole = with_head(program(), **tail)
    single, group = engine_of(whole), group_of(whole, shares)
    for each in (single, group):
        load_random_weights(each, whole, TensorFormat.Q8_0)
    for step, masks in sampling_steps():
        wanted, found = (each.step(step, None, masks) for each in (single, group))
        assert wanted.sampled
        assert found == wanted
    group.close()


def with_head(whole: Program, **changes: Any) -> Program:
    return replace(whole, ops=(*whole.ops[:-1], replace(whole.ops[-1], **changes)))


def test_right_drafts_are_accepted() -> None:
    """Greedy rows are sampled from no more than their largest logits, drafts among them."""
    whole = program()
    single, group = engine_of(whole), group_of(whole, (1, 1))
    for each in (single, group):
        load_random_weights(each, whole, TensorFormat.Q8_0)
    first = Step(step_id=StepId(0), slices=(slice_of(0, 0, 5),), opened=(opening(0, GREEDY),))
    (token,) = (each.token for each in single.step(first, None).sampled)
    assert [each.token for each in group.step(first, None).sampled] == [token]
    tokens = [token]
    for number in range(3):
        step = Step(
            step_id=StepId(number + 1),
            slices=(slice_of(0, 5 + number, 1, tokens=(tokens[-1],)),),
        )
        tokens += [each.token for each in single.step(step, None).sampled]
    drafted = Step(
        step_id=StepId(5), slices=(slice_of(0, 5, 4, tokens=tuple(tokens), num_drafts=3),)
    )
    single.reset()
    again = replace(first, opened=first.opened)
    single.step(again, None)
    wanted, found = (each.step(drafted, None).sampled for each in (single, group))
    assert len(wanted) == 4
    assert found == wanted


def test_of_greedy_rows_the_largest_logit_alone_is_sent() -> None:
    whole = program()
    group = group_of(whole, (1, 1))
    load_random_weights(group, whole, TensorFormat.Q8_0)

    def sent(step: Step) -> int:
        before = group.mesh.exchanged_bytes[1]
        group.step(step, None)
        return group.mesh.exchanged_bytes[1] - before

    many = tuple(slice_of(sequence, 0, 2) for sequence in range(4))
    greedy = tuple(opening(sequence, GREEDY) for sequence in range(4))
    drawn = tuple(opening(each, SamplingParams(temperature=1.0)) for each in range(4))
    closed = tuple(SequenceId(each) for each in range(4))
    of_greedy = sent(Step(step_id=StepId(0), slices=many, opened=greedy, closed=closed))
    of_drawn = sent(Step(step_id=StepId(1), slices=many, opened=drawn, closed=closed))
    assert of_drawn - of_greedy == 4 * 4 * program_rows(group.programs[1]) - 4 * 8
    mixed = (*greedy[:2], *drawn[2:])
    of_mixed = sent(Step(step_id=StepId(2), slices=many, opened=mixed, closed=closed))
    assert 2 * of_mixed == of_drawn + of_greedy


def test_a_mask_of_a_sequence_without_a_grammar_is_refused() -> None:
    """The other members see no masks, and would send too little."""
    whole = program(1)
    group = group_of(whole, (1, 1))
    load_random_weights(group, whole, TensorFormat.Q8_0)
    masks = {SequenceId(0): np.full((1, math.ceil(VOCAB_SIZE / 32)), 1, np.uint32)}
    step = Step(step_id=StepId(0), slices=(slice_of(0, 0, 1),), opened=(opening(0, GREEDY),))
    with pytest.raises(EngineError, match="opened without a grammar"):
        group.engines[0].step(step, None, masks)


class Broken:
    """Raises at one of its calls, and fills what it should receive with zeros at others."""

    def __init__(self, error: Exception | None = None, after: int = 0) -> None:
        self.error = error
        self.left = after
        self.views: list[memoryview] = []

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        self.views += filter(None, [*sent, *received])
        assert all(each.readonly for each in sent if each.nbytes)
        if self.error is not None and self.left == 0:
            raise self.error
        self.left -= 1
        for each in received:
            each[:] = bytes(each.nbytes)


@pytest.mark.parametrize("num_tokens", [5, 150])
def test_what_an_exchange_raises_is_passed_on_and_the_stage_goes_on(num_tokens: int) -> None:
    whole = program()
    (_, part) = divided(whole, (1, 1))
    engine = engine_of(part, num_threads=2)
    load_random_weights_of_part(engine, whole, part)
    step = Step(step_id=StepId(0), slices=(slice_of(0, 0, num_tokens),))
    num_exchanges = 2 + 4 * NUM_LAYERS
    if num_tokens >= 128:
        num_exchanges += 1 + 4 * NUM_LAYERS  # but for the logits
    for after in range(num_exchanges):
        error = ConnectionResetError("gone")
        engine.join_group(Broken(error, after=after))
        with pytest.raises(ConnectionResetError) as raised:
            engine.step(step, None)
        assert raised.value is error
    engine.join_group(None)
    with pytest.raises(EngineError, match="has no exchange"):
        engine.step(step, None)
    engine.join_group(Broken(ConnectionResetError(), after=num_exchanges))
    assert engine.step(step, None).sampled == ()


def load_random_weights_of_part(engine: NativeEngine, whole: Program, part: Program) -> None:
    from support.engines.groups import _GroupSink

    group = GroupEngine.__new__(GroupEngine)
    group.programs, group.engines = (part,), (engine,)

    class OfPart:
        def sink(self) -> Any:
            return _GroupSink(group)

    load_random_weights(OfPart(), whole, TensorFormat.Q8_0)  # type: ignore[arg-type]


def test_views_are_of_no_use_after_the_call() -> None:
    whole = program(1)
    (_, part) = divided(whole, (1, 1))
    engine = engine_of(part)
    load_random_weights_of_part(engine, whole, part)
    exchange = Broken()
    engine.join_group(exchange)
    engine.step(Step(step_id=StepId(0), slices=(slice_of(0, 0, 2),)), None)
    assert exchange.views
    for view in exchange.views:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()


def test_a_step_without_tokens_exchanges_nothing() -> None:
    whole = program(1)
    group = group_of(whole, (1, 1))
    load_random_weights(group, whole, TensorFormat.Q8_0)
    group.step(Step(step_id=StepId(0), slices=()), None)
    group.reset()
    assert group.mesh.num_exchanges == [0, 0]


def test_logits_that_are_not_finite_are_an_error_of_the_leader() -> None:
    """After all has been exchanged: the next step finds nothing left over."""
    whole = with_head(program(1), scale=3e38)
    group = group_of(whole, (1, 1))
    load_random_weights(group, whole, TensorFormat.Q8_0)
    for params in (GREEDY, SamplingParams(temperature=1.0)):
        step = Step(
            step_id=StepId(0),
            slices=tuple(slice_of(each, 0, 13) for each in range(3)),
            opened=tuple(opening(each, params) for each in range(3)),
        )
        with pytest.raises(EngineError, match="not finite"):
            group.step(step, None)
        group.reset()
        while not group.mesh.is_empty():  # from the leader, which has given up
            group.mesh.receive(1, 0)


class _NoNumberSink:
    """Puts NaN in the place of one row of the head, in F32."""

    def __init__(self, sink: TensorSink, row: int) -> None:
        self._sink = sink
        self._row = row

    def begin(self, info: TensorInfo) -> None:
        self._sink.begin(info)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        values = np.frombuffer(data, np.float32).copy()
        if name == "embed.weight" and start_row <= self._row < end_row:
            values.reshape(end_row - start_row, -1)[self._row - start_row] = np.nan
        self._sink.write_rows(name, start_row, end_row, memoryview(values.tobytes()))

    def finish(self, name: str) -> None:
        self._sink.finish(name)


class _Damaged:
    def __init__(self, group: GroupEngine, row: int) -> None:
        self._group = group
        self._row = row

    def sink(self) -> TensorSink:
        return _NoNumberSink(self._group.sink(), self._row)


@pytest.mark.parametrize("row", [50, 150])
def test_one_member_with_logits_that_are_not_finite_is_enough(row: int) -> None:
    whole = program(1)
    group = group_of(whole, (1, 1))
    assert group.programs[1].head is not None
    assert 50 < group.programs[1].head.bounds[1] < 150
    load_random_weights(_Damaged(group, row), whole, TensorFormat.F32)  # type: ignore[arg-type]
    step = Step(
        step_id=StepId(0), slices=(slice_of(0, 0, 2, tokens=(1, 2)),), opened=(opening(0, GREEDY),)
    )
    with pytest.raises(EngineError, match="not finite"):
        group.step(step, None)


def test_hidden_states_come_from_the_leader_alone() -> None:
    whole = make_program(
        small_config(2),
        Shard(start_layer=0, end_layer=1, num_layers=2, has_embedding=False, has_head=False),
    )
    single, group = engine_of(whole), group_of(whole, (1, 3))
    for each in (single, group):
        load_random_weights(each, whole, TensorFormat.Q4_0)
    hidden = np.random.default_rng(1).standard_normal((9, 256)).astype(np.float32)
    step = Step(step_id=StepId(0), slices=(slice_of(0, 0, 9, sample=False),))
    wanted, found = (each.step(step, hidden).hidden for each in (single, group))
    assert wanted is not None
    np.testing.assert_array_equal(found, wanted)


def refused(part: Program, match: str) -> None:
    with pytest.raises(EngineError, match=match):
        engine_of(part)


def changed(part: Program, kind: type, **changes: Any) -> Program:
    """The first op of a kind with other values."""
    index = next(i for i, op in enumerate(part.ops) if isinstance(op, kind))
    op = replace(part.ops[index], **changes)
    return replace(part, ops=(*part.ops[:index], op, *part.ops[index + 1 :]))


def test_parts_that_contradict_themselves_are_refused() -> None:
    whole = program()
    part = divided(whole, (1, 1))[1]
    refused(replace(part, shard=whole.shard), "not for a member of a group")
    refused(changed(part, AllGather, widths=(256,)), "widths are not those of 2 members")
    refused(changed(part, AllGather, widths=(120, 136)), "multiples of 16")
    refused(changed(part, AllGather, widths=(128, 256)), "wide, and 384 is needed")
    refused(changed(part, AllGather, widths=(144, 112)), "wide, and 112 is needed")
    refused(changed(part, Embed, bounds=(0, 200)), "bounds are not those of 2 members")
    refused(changed(part, Embed, bounds=(0, 100, 201)), "from 0 to 200")
    refused(changed(part, Head, bounds=(0, 200, 200)), "bounds must ascend")
    refused(changed(part, Moe, expert_widths=(128, 144)), "the sum of expert_widths")
    refused(changed(part, Moe, expert_widths=(120, 136)), "multiples of 16")


def test_messages_are_counted_as_scratch_memory() -> None:
    whole = program(1)
    part = divided(whole, (1, 1))[1]
    registers = sum(each.width for each in part.registers) - sum(
        each.width for each in whole.registers
    )
    few, many = (
        COST.scratch_bytes(part, tokens, num_threads=1)
        - COST.scratch_bytes(whole, tokens, num_threads=1)
        - 4 * tokens * registers
        for tokens in (128, 256)
    )
    # The largest message, of the activation; attention is of fewer heads, at most so much less.
    assert 0 < many - few <= 4 * 128 * 512


def test_times_of_exchanges_have_a_label_of_their_own() -> None:
    whole = program(1)
    group = group_of(whole, (1, 1))
    load_random_weights(group, whole, TensorFormat.Q8_0)
    for engine in group.engines:
        engine.time_ops()  # type: ignore[attr-defined]
    group.logits(Step(step_id=StepId(0), slices=(slice_of(0, 0, 3),)), None)
    for engine in group.engines:
        assert engine.op_seconds()["exchange"] > 0  # type: ignore[attr-defined]
