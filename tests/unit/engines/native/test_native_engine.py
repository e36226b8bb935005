"""Steps on the native engine: what they give, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.native_pipeline import (
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    Part,
    Pipeline,
    cut,
    make_program,
    small_config,
)
from support.engines.pools import pool_of
from support.models.random_weights import load_random_weights
from support.text.token_masks import mask_rows

from potluck.engines.native.engine import NativeEngine
from potluck.errors import EngineError, ParameterError
from potluck.types.program import (
    Program,
)
from potluck.types.step import (
    BlockCopy,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat

GREEDY = SamplingParams(temperature=0.0)
CONFIG = small_config(2)


def opening(sequence: int, params: SamplingParams = GREEDY) -> SequenceOpening:
    return SequenceOpening(sequence_id=SequenceId(sequence), sampling=params, prompt_tokens=(1, 2))


def pipeline(fmt: TensorFormat = TensorFormat.Q8_0, num_threads: int = 1) -> Pipeline:
    return Pipeline.make(CONFIG, fmt, num_threads=num_threads, max_step_tokens=64)


def engine_for(program: Program, num_threads: int = 1) -> NativeEngine:
    return NativeEngine(program, num_blocks=10, max_step_tokens=64, pool=pool_of(num_threads))


# Steps that are refused


def edit_slice(**changes: Any) -> Callable[[Step], Step]:
    return lambda step: replace(step, slices=(replace(step.slices[0], **changes),))


def twice(step: Step) -> Step:
    return replace(step, slices=step.slices * 2)


def share_a_written_block(step: Step) -> Step:
    other = replace(step.slices[0], sequence_id=SequenceId(99))
    return replace(step, slices=(*step.slices, other))


def read_a_written_block(step: Step) -> Step:
    """The block that sequence 0 writes is the first, and only read, of another sequence."""
    written = step.slices[0].block_table[-1]
    free = tuple(block for block in range(100) if block not in step.slices[0].block_table)
    other = replace(
        step.slices[0],
        sequence_id=SequenceId(99),
        start_position=16,
        tokens=(1,),
        block_table=(written, free[0]),
    )
    return replace(step, slices=(*step.slices, other))


def copy_block(source: int, target: int) -> Callable[[Step], Step]:
    return lambda step: replace(step, copies=(BlockCopy(source=source, target=target),))


BAD_STEPS: dict[str, tuple[Callable[[Step], Step], str]] = {
    "no tokens": (edit_slice(tokens=()), "sequence 0: the slice has no tokens"),
    "token": (edit_slice(tokens=(VOCAB_SIZE,)), f"token {VOCAB_SIZE} is not within"),
    "negative token": (edit_slice(tokens=(-1,)), "token -1 is not within"),
    "position": (edit_slice(start_position=CONTEXT_TOKENS), "not within the context"),
    "negative position": (edit_slice(start_position=-1), "not within the context"),
    "huge position": (edit_slice(start_position=2**63 - 1), "not within the context"),
    "end position": (
        edit_slice(start_position=CONTEXT_TOKENS - 1, tokens=(1, 1)),
        "not within the context",
    ),
    "short table": (edit_slice(block_table=(1,)), "does not reach position 20"),
    "no such block": (edit_slice(block_table=(1, 100)), "no cache block 100"),
    "negative block": (edit_slice(block_table=(-1, 1)), "no cache block -1"),
    "block twice": (edit_slice(block_table=(1, 1)), "used elsewhere"),
    "sequence twice": (twice, "appears twice"),
    "block written twice": (share_a_written_block, "used elsewhere"),
    "block written and read": (read_a_written_block, "used elsewhere"),
    "too many tokens": (
        edit_slice(tokens=(1,) * 65, start_position=0, block_table=tuple(range(5))),
        "65 tokens is more than the 64",
    ),
    "scores from beyond": (edit_slice(score_from=1), "no token 1 to score from"),
    "scores from before": (edit_slice(score_from=-1), "no token -1 to score from"),
    "scored and sampled": (edit_slice(score_from=0, next_token=3), "either sampled or known"),
    "neither": (edit_slice(score_from=0, sample=False), "either sampled or known"),
    "next token alone": (edit_slice(next_token=3), "nothing is scored"),
    "next token": (
        edit_slice(score_from=0, sample=False, next_token=VOCAB_SIZE),
        f"token {VOCAB_SIZE} is not within",
    ),
    "scored and not open": (
        edit_slice(score_from=0, sample=False, next_token=3),
        "sequence 0: it is not open",
    ),
    "copy of no block": (copy_block(100, 1), "no cache block 100 to copy"),
    "copy to no block": (copy_block(1, -1), "no cache block -1 to copy"),
    "copy to itself": (copy_block(3, 3), "block 3 is copied to itself"),
    "copy before an error": (
        lambda step: copy_block(90, step.slices[0].block_table[0])(twice(step)),
        "appears twice",
    ),
    "not open": (lambda step: step, "sequence 0: it is not open"),
    "open already": (lambda step: replace(step, opened=(opening(7),)), "sequence 7: it is open"),
    "opened twice": (lambda step: replace(step, opened=(opening(8),) * 2), "sequence 8: it is op"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_refused_step_changes_nothing(name: str) -> None:
    """The logits of the next token are those of a pipeline that never saw the bad step."""
    edit, message = BAD_STEPS[name]
    good, untouched = pipeline(), pipeline()
    tokens = list(range(20))
    for one in (good, untouched):
        one.logits([Part(sequence=0, tokens=tokens, start=0)])
        one.engines[0].logits(Step(step_id=StepId(1), slices=(), opened=(opening(7),)), None)
    next_part = [Part(sequence=0, tokens=[20], start=20)]
    with pytest.raises(EngineError, match=message):
        good.engines[0].step(edit(good.step_of(next_part)), None)
    after = [Part(sequence=0, tokens=[30], start=20)]
    np.testing.assert_array_equal(good.logits(after), untouched.logits(after))


def test_parameters_that_are_not_allowed_name_themselves() -> None:
    step = replace(
        pipeline().step_of([Part(sequence=0, tokens=[1], start=0)]),
        opened=(opening(0, SamplingParams(top_p=2.0)),),
    )
    with pytest.raises(ParameterError, match="top_p"):
        pipeline().engines[0].step(step, None)


def test_blocks_that_are_only_read_may_be_shared() -> None:
    """Two sequences with a common prefix of 16 tokens, each with its own last block."""
    prefix, one, other = list(range(16)), [50, 51], [60]
    shared = pipeline()
    shared.logits([Part(sequence=0, tokens=prefix, start=0)])
    shared.tables[1] = [shared.tables[0][0]]
    together = shared.logits(
        [Part(sequence=0, tokens=one, start=16), Part(sequence=1, tokens=other, start=16)]
    )
    for i, tail in enumerate((one, other)):
        alone = pipeline().logits([Part(sequence=0, tokens=prefix + tail, start=0)])
        np.testing.assert_array_equal(together[i], alone[0])


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_sequence_goes_on_from_a_copied_block(num_stages: int) -> None:
    """A fork within a block; both write to the same positions, in blocks of their own."""
    prefix, one, other = list(range(25)), [50, 51], [60]
    stages = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=num_stages)
    stages.logits([Part(sequence=0, tokens=prefix, start=0)])
    first, last = stages.tables[0]
    between, fork = stages.free_blocks.pop(), stages.free_blocks.pop()
    stages.tables[1] = [first, fork]
    copies = (BlockCopy(source=last, target=between), BlockCopy(source=between, target=fork))
    parts = [Part(sequence=0, tokens=one, start=25), Part(sequence=1, tokens=other, start=25)]
    step = replace(stages.step_of(parts), copies=copies)
    hidden = None
    for engine in stages.engines[:-1]:
        hidden = engine.step(step, hidden).hidden
    together = stages.engines[-1].logits(step, hidden)
    for i, tail in enumerate((one, other)):
        alone = pipeline().logits([Part(sequence=0, tokens=prefix + tail, start=0)])
        np.testing.assert_array_equal(together[i], alone[0])


def test_blocks_are_copied_by_a_step_without_slices() -> None:
    one = pipeline()
    one.logits([Part(sequence=0, tokens=list(range(20)), start=0)])
    copies = tuple(BlockCopy(source=block, target=one.free_blocks.pop()) for block in one.tables[0])
    one.engines[0].step(Step(step_id=StepId(9), slices=(), copies=copies), None)
    one.tables[1] = [copy.target for copy in copies]
    logits = [one.logits([Part(sequence=i, tokens=[70], start=20)]) for i in range(2)]
    np.testing.assert_array_equal(logits[0], logits[1])


# Hidden states


def hidden_of(value: NDArray[np.float64] | NDArray[np.float32]) -> NDArray[np.float32]:
    return value  # type: ignore[return-value]


def test_hidden_states_are_checked() -> None:
    stages = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=2)
    step = stages.step_of([Part(sequence=0, tokens=[1, 2], start=0)])
    first, last = stages.engines
    hidden = first.step(step, None).hidden
    assert hidden is not None
    assert hidden.shape == (2, 256)
    with pytest.raises(EngineError, match="takes no hidden states"):
        first.step(step, hidden)
    with pytest.raises(EngineError, match="has no logits"):
        first.logits(step, None)
    with pytest.raises(EngineError, match="needs hidden states"):
        last.logits(step, None)
    with pytest.raises(EngineError, match=r"\[1, 256\], and \[2, 256\]"):
        last.logits(step, hidden[:1])
    with pytest.raises(EngineError, match="float32 matrix"):
        last.logits(step, hidden_of(hidden.astype(np.float64)))
    with pytest.raises(EngineError, match="float32 matrix"):
        last.logits(step, hidden.reshape(-1))
    expected = last.logits(step, hidden)
    np.testing.assert_array_equal(last.logits(step, np.asfortranarray(hidden)), expected)
    hidden[0] = np.nan  # the caller's: the stage kept no reference
    np.testing.assert_array_equal(
        expected,
        Pipeline.make(CONFIG, TensorFormat.Q8_0).logits([Part(sequence=0, tokens=[1, 2], start=0)]),
    )


# Sampling


def test_greedy_steps_take_the_largest_logit() -> None:
    sampled, raw = pipeline(), pipeline()
    parts = [Part(sequence=i, tokens=range(3 + i), start=0, sample=i != 1) for i in range(3)]
    step = replace(sampled.step_of(parts), opened=(opening(0), opening(2)))
    result = sampled.engines[0].step(step, None)
    assert result.hidden is None
    logits = raw.logits(parts)
    assert [(one.sequence_id, one.position, one.token) for one in result.sampled] == [
        (0, 3, int(np.argmax(logits[0]))),
        (2, 5, int(np.argmax(logits[1]))),
    ]


def test_masks_are_of_the_sequences_that_are_sampled() -> None:
    many, raw = pipeline(num_threads=2), pipeline()
    parts = [Part(sequence=i, tokens=[i], start=0) for i in range(40)]
    step = replace(many.step_of(parts), opened=tuple(opening(i) for i in range(40)))
    allowed = {i: [i, 63 + i] for i in range(1, 40, 2)}
    masks = {SequenceId(i): mask_rows(VOCAB_SIZE, tokens) for i, tokens in allowed.items()}
    sampled = many.engines[0].step(step, None, masks).sampled
    assert [one.sequence_id for one in sampled] == list(range(40))
    for i, one in enumerate(sampled):
        logits = raw.logits([parts[i]])[0]
        candidates = allowed.get(i, range(VOCAB_SIZE))
        assert one.token == max(candidates, key=lambda token: (logits[token], -token))


def test_masks_that_make_no_sense_change_nothing() -> None:
    one = pipeline()
    engine = one.engines[0]
    parts = [Part(sequence=0, tokens=[1], start=0), Part(sequence=1, tokens=[1], start=0)]
    parts[1].sample = False
    step = replace(one.step_of(parts), opened=(opening(0),))
    good = mask_rows(VOCAB_SIZE, [1])
    for sequence, mask, message in (
        (0, good[:, :-1], "the masks of sequence 0 are uint32"),
        (0, good[0], "the masks of sequence 0 are uint32"),
        (0, np.repeat(good, 2, axis=0), "the masks of sequence 0 are uint32"),
        (0, good.astype(np.int32), "the masks of sequence 0 are int32"),
        (0, mask_rows(VOCAB_SIZE, []), "a mask of sequence 0 allows no token"),
        (1, good, "sequence 1 has a mask but is not sampled"),
        (2, good, "sequence 2 has a mask but is not sampled"),
    ):
        masks: Any = {SequenceId(sequence): mask}
        with pytest.raises(EngineError, match=message):
            engine.step(step, None, masks)
    strided = np.repeat(good, 2, axis=1)[:, ::2]
    (token,) = engine.step(step, None, {SequenceId(0): strided}).sampled
    assert token.token == 1
    first = engine_for(make_program(CONFIG, cut(2, 2)[0]))
    load_random_weights(first, make_program(CONFIG, cut(2, 2)[0]), TensorFormat.Q8_0)
    with pytest.raises(EngineError, match="a stage without the head does not accept masks"):
        first.step(step, None, {SequenceId(0): good})


def test_more_sequences_than_the_head_takes_at_a_time() -> None:
    many = Pipeline.make(CONFIG, TensorFormat.Q4_0, num_threads=2, max_step_tokens=64)
    parts = [Part(sequence=i, tokens=[i % VOCAB_SIZE], start=0) for i in range(50)]
    step = replace(many.step_of(parts), opened=tuple(opening(i) for i in range(50)))
    tokens = [one.token for one in many.engines[0].step(step, None).sampled]
    one_by_one = Pipeline.make(CONFIG, TensorFormat.Q4_0, max_step_tokens=64)
    logits = np.concatenate([one_by_one.logits([part]) for part in parts])
    assert tokens == [int(token) for token in logits.argmax(axis=1)]
    np.testing.assert_array_equal(many.logits(parts), logits)


def test_a_sequence_is_open_from_its_step_until_it_is_closed() -> None:
    one = pipeline()
    engine = one.engines[0]
    first = one.step_of([Part(sequence=0, tokens=[1], start=0)])
    engine.step(replace(first, opened=(opening(0),)), None)
    second = one.step_of([Part(sequence=0, tokens=[2], start=1)])
    # Closed after the computation; a sequence that was never opened may be closed as well.
    engine.step(replace(second, closed=(SequenceId(0), SequenceId(77))), None)
    with pytest.raises(EngineError, match="not open"):
        engine.step(one.step_of([Part(sequence=0, tokens=[3], start=2)]), None)


def test_logits_that_are_not_finite_are_an_error() -> None:
    program = make_program(CONFIG, cut(2, 2)[1])
    engine = engine_for(program)
    load_random_weights(engine, program, TensorFormat.F32)
    part = SequenceSlice(
        sequence_id=SequenceId(4), tokens=(1,), start_position=0, block_table=(0,), sample=True
    )
    step = Step(step_id=StepId(0), slices=(part,), opened=(opening(4),))
    with pytest.raises(EngineError, match="sequence 4: its logits are not finite") as caught:
        engine.step(step, np.full((1, 256), np.nan, np.float32))
    assert "weights are damaged" in caught.value.hint


def test_a_step_without_slices_does_nothing() -> None:
    result = pipeline().engines[0].step(Step(step_id=StepId(0), slices=()), None)
    assert result.sampled == ()


# Threads and life time


@pytest.mark.slow
def test_calls_from_two_threads_are_refused_and_not_mixed() -> None:
    """The step computes without the GIL; a call that meets it gets an error."""
    slow = Pipeline.make(CONFIG, TensorFormat.F32, isa="scalar", max_step_tokens=600)
    part = [Part(sequence=0, tokens=[i % VOCAB_SIZE for i in range(150)], start=0)]
    step = slow.step_of(part)
    results: list[NDArray[np.float32]] = []

    def compute() -> None:
        while not results:
            with suppress(EngineError):  # it was this call that met one of the empty steps
                results.append(slow.engines[0].logits(step, None))

    thread = threading.Thread(target=compute)
    thread.start()
    refused: list[str] = []
    empty = Step(step_id=StepId(1), slices=())
    while thread.is_alive() and not refused:
        try:
            slow.engines[0].step(empty, None)
        except EngineError as error:
            refused.append(error.message)
    thread.join()
    assert refused == ["the stage is busy with a call from another thread"]
    np.testing.assert_array_equal(results[0], slow.logits(part))


def test_stages_share_a_pool_from_several_threads() -> None:
    stages = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=2, num_threads=2)
    step = stages.step_of([Part(sequence=0, tokens=range(100), start=0)])
    first, last = stages.engines
    hidden = first.step(step, None).hidden
    wanted = last.logits(step, hidden)
    failures: list[str] = []

    def repeat(call: Callable[[], NDArray[np.float32] | None], expected: object) -> None:
        for _ in range(20):
            if not np.array_equal(call(), expected):  # type: ignore[arg-type]
                failures.append("another result")

    threads = [
        threading.Thread(target=repeat, args=(lambda: first.step(step, None).hidden, hidden)),
        threading.Thread(target=repeat, args=(lambda: last.logits(step, hidden), wanted)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_closed_engine_refuses_calls() -> None:
    one = pipeline()
    sink = one.engines[0].sink()
    one.engines[0].close()
    one.engines[0].close()
    with pytest.raises(EngineError, match="closed"):
        one.logits([Part(sequence=0, tokens=[1], start=0)])
    with pytest.raises(EngineError, match="closed"):
        sink.finish("any")


@pytest.mark.parametrize("num_stages", [1, 2])
def test_a_reset_forgets_sequences_and_keeps_the_weights(num_stages: int) -> None:
    """The same ids can be opened again, with the very tokens of the first time."""
    params = SamplingParams(temperature=0.8, repetition_penalty=1.4, seed=3)
    stages = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=num_stages, max_step_tokens=64)

    def sampled() -> list[int]:
        part = [Part(sequence=0, tokens=list(range(20)), start=0)]
        tokens = []
        for position in range(20, 25):
            step = stages.step_of(part)
            if position == 20:
                step = replace(step, opened=(opening(0, params), opening(1)))
            hidden = None
            for engine in stages.engines:
                result = engine.step(step, hidden)
                hidden = result.hidden
            tokens.append(result.sampled[0].token)
            part = [Part(sequence=0, tokens=tokens[-1:], start=position)]
        return tokens

    first = sampled()
    with pytest.raises(EngineError, match="it is open"):
        sampled()
    for _ in range(2):
        for engine in stages.engines:
            engine.reset()
            engine.reset()
        assert sampled() == first
