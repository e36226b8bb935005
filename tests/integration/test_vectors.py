"""Vectors of prompts: what pooling makes of the outputs of the last norm.

The same bits, whatever the chunks of the prompt, the stages, the threads and the sequences beside
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.engines.engine_dispatcher import dispatcher, received, start
from support.engines.native_pipeline import (
    VOCAB_SIZE,
    Pipeline,
    make_program,
    small_config,
)
from support.engines.parity import rms
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine

from potluck.errors import EngineError
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.ledger import Update
from potluck.types.engine import Engine
from potluck.types.model import ModelConfig
from potluck.types.program import Shard
from potluck.types.sequence import FinishReason, SequenceRequest
from potluck.types.step import (
    Pooling,
    SamplingParams,
    SequenceId,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat

NUM_LAYERS = 3
TEXT = tuple(int(token) for token in np.random.default_rng(11).integers(0, VOCAB_SIZE, 90))
GREEDY = SamplingParams(temperature=0.0)

Floats = NDArray[np.float32]


def headless(config: ModelConfig, num_labels: int = 0) -> ModelConfig:
    return replace(config, has_logits=False, tied_head=False, num_labels=num_labels)


def with_head(config: ModelConfig) -> ModelConfig:
    return replace(config, tied_head=False)


def pooled(tokens: Sequence[int], pooling: Pooling) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(tokens), sampling=GREEDY, max_new_tokens=0, pooling=pooling
    )


def vector(updates: SimpleQueue[Update]) -> Floats:
    (token,) = received(updates)
    assert token.finish_reason is FinishReason.LENGTH
    assert token.vector is not None
    return np.frombuffer(token.vector, "<f4")


@cache
def rows(fmt: TensorFormat, num_layers: int = NUM_LAYERS) -> Floats:
    """The output of the last norm of every token of ``TEXT``: the last one of each prefix."""
    pipeline = Pipeline.make(headless(small_config(num_layers)), fmt)
    with dispatcher(pipeline.engines, 600, num_blocks=100) as opened:
        updates = [
            start(opened, pooled(TEXT[: length + 1], Pooling.LAST)) for length in range(len(TEXT))
        ]
        return np.stack([vector(each) for each in updates])


def expected(of_tokens: Floats, pooling: Pooling) -> Floats:
    if pooling is not Pooling.MEAN:
        return np.array(of_tokens[-1 if pooling is Pooling.LAST else 0])
    total = np.zeros(of_tokens.shape[1], np.float32)
    for row in of_tokens:
        total += row
    total /= np.float32(len(of_tokens))
    return total


@pytest.mark.parametrize("fmt", [TensorFormat.Q4_K, TensorFormat.BF16], ids=lambda fmt: fmt.label)
@pytest.mark.parametrize(("chunk", "num_stages"), [(1, 1), (7, 3), (32, 2), (600, 1)])
@pytest.mark.parametrize("pooling", Pooling)
def test_chunks_stages_and_threads_change_no_bit(
    fmt: TensorFormat, chunk: int, num_stages: int, pooling: Pooling
) -> None:
    pipeline = Pipeline.make(
        with_head(small_config(NUM_LAYERS)),
        fmt,
        num_stages=num_stages,
        num_threads=2,
        block_seed=1,
    )
    with dispatcher(pipeline.engines, chunk) as opened:
        actual = vector(start(opened, pooled(TEXT, pooling)))
    np.testing.assert_array_equal(actual, expected(rows(fmt), pooling))


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("num_labels", [0, 1, 3])
def test_native_vectors_are_those_of_the_reference(pooling: Pooling, num_labels: int) -> None:
    config = headless(small_config(NUM_LAYERS), num_labels)
    native = Pipeline.make(config, TensorFormat.F32)
    program = make_program(config, Shard.whole(NUM_LAYERS))
    reference = ReferenceEngine(program, num_blocks=100)
    load_random_weights(reference, program, TensorFormat.F32)
    vectors = []
    engines: list[Engine] = [*native.engines, reference]
    for engine in engines:
        with dispatcher([engine], 20) as opened:
            vectors.append(vector(start(opened, pooled(TEXT, pooling))))
    actual, wanted = vectors
    assert actual.shape == wanted.shape == (num_labels or config.hidden_size,)
    assert rms(actual - wanted) / rms(wanted) < 2e-3


@settings(max_examples=15)
@given(data=st.data())
def test_a_vector_depends_on_its_own_prompt_alone(data: st.DataObject) -> None:
    """Other sequences come and go beside it, and take its blocks away."""
    chunk = data.draw(st.integers(1, 40), "chunk")
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=5), "lengths")
    poolings = data.draw(
        st.lists(st.sampled_from(Pooling), min_size=len(lengths), max_size=len(lengths)), "poolings"
    )
    num_new = data.draw(st.integers(1, 30), "new")
    num_blocks = data.draw(st.integers(blocks_for(100), 14), "blocks")
    cancelled = data.draw(st.integers(0, len(lengths)), "cancelled")
    config = with_head(small_config(NUM_LAYERS))
    pipeline = Pipeline.make(config, TensorFormat.Q4_0, num_blocks=num_blocks)
    with dispatcher(pipeline.engines, chunk, num_blocks) as opened:
        beside = SequenceRequest(prompt_tokens=TEXT[:30], sampling=GREEDY, max_new_tokens=num_new)
        texts = [start(opened, beside) for _ in range(2)]
        ignored: SimpleQueue[Update] = SimpleQueue()
        gone = [opened.add(pooled(TEXT, Pooling.MEAN), ignored.put) for _ in range(cancelled)]
        updates = [
            start(opened, pooled(TEXT[:length], pooling))
            for length, pooling in zip(lengths, poolings, strict=True)
        ]
        for sequence_id in gone:
            opened.cancel(sequence_id)
        for length, pooling, each in zip(lengths, poolings, updates, strict=True):
            wanted = expected(rows(TensorFormat.Q4_0)[:length], pooling)
            np.testing.assert_array_equal(vector(each), wanted)
        for text in texts:
            assert len(received(text)) == num_new
        assert opened.load.num_free_blocks == num_blocks


def part(
    start_position: int, count: int, pooling: Pooling, *, ends: bool = False, sequence: int = 0
) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=TEXT[start_position : start_position + count],
        start_position=start_position,
        block_table=tuple(range(sequence * 8, sequence * 8 + 8)),
        sample=False,
        pooling=pooling,
        ends_pooling=ends,
    )


def step(*slices: SequenceSlice, closed: Sequence[int] = ()) -> Step:
    return Step(step_id=StepId(0), slices=slices, closed=tuple(SequenceId(each) for each in closed))


@pytest.fixture(params=["native", "reference"])
def engine(request: pytest.FixtureRequest) -> Engine:
    config = headless(small_config(1))
    if request.param == "native":
        return Pipeline.make(config, TensorFormat.F32).engines[0]
    program = make_program(config, Shard.whole(1))
    reference = ReferenceEngine(program, num_blocks=100)
    load_random_weights(reference, program, TensorFormat.F32)
    return reference


def test_a_mean_has_every_token_once(engine: Engine) -> None:
    engine.step(step(part(0, 5, Pooling.MEAN)), None)
    for start_position in (4, 6):
        with pytest.raises(EngineError, match="the tokens before 5"):
            engine.step(step(part(start_position, 3, Pooling.MEAN)), None)
    (whole,) = engine.step(step(part(5, 4, Pooling.MEAN, ends=True)), None).sampled
    (again,) = engine.step(step(part(0, 9, Pooling.MEAN, ends=True)), None).sampled
    assert (whole.position, whole.token) == (8, TEXT[8])
    assert whole.vector is not None
    assert again.vector is not None
    np.testing.assert_allclose(
        np.frombuffer(whole.vector, "<f4"),
        np.frombuffer(again.vector, "<f4"),
        rtol=1e-4,
        atol=1e-5,
    )


def test_closed_and_reset_sequences_are_forgotten(engine: Engine) -> None:
    engine.step(step(part(0, 5, Pooling.MEAN)), None)
    engine.step(step(closed=[0]), None)
    with pytest.raises(EngineError, match="the tokens before 0"):
        engine.step(step(part(5, 3, Pooling.MEAN)), None)
    engine.step(step(part(0, 5, Pooling.MEAN)), None)
    engine.reset()
    with pytest.raises(EngineError, match="the tokens before 0"):
        engine.step(step(part(5, 3, Pooling.MEAN)), None)


def test_contradictions_are_refused(engine: Engine) -> None:
    sampled = replace(part(0, 5, Pooling.LAST, ends=True), sample=True)
    late = part(3, 2, Pooling.CLS, ends=True)
    unpooled = replace(part(0, 5, Pooling.LAST, ends=True), pooling=None)
    for wrong in (sampled, late, unpooled):
        with pytest.raises(EngineError):
            engine.step(step(wrong), None)
    without_pooling = replace(sampled, pooling=None, ends_pooling=False)
    with pytest.raises(EngineError, match="head"):
        engine.step(step(without_pooling), None)
