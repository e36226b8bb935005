"""Log-probabilities of a given text are those of the same tokens when they are generated.

Bit for bit, whatever the chunks of the text, the stages, the threads and the sequences beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.engine_dispatcher import dispatcher, received, start
from support.engines.native_pipeline import (
    VOCAB_SIZE,
    Part,
    Pipeline,
    cut,
    make_program,
    small_config,
)
from support.models.random_weights import load_random_weights
from support.processes.held_memory import held_bytes
from support.reference.engine import ReferenceEngine

from potluck.engines.native.backend import COST
from potluck.errors import ParameterError, PromptTooLongError
from potluck.local import Model
from potluck.scheduling.blocks import blocks_for
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceOpening,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat

NUM_LAYERS = 3
TEXT = tuple(int(token) for token in np.random.default_rng(7).integers(0, VOCAB_SIZE, 120))
GREEDY = SamplingParams(temperature=0.0, logprobs=True, top_logprobs=3)

Scored = tuple[int, float | None, tuple[tuple[int, float], ...]]


def plain(tokens: Sequence[CommittedToken]) -> list[Scored]:
    return [(t.token, t.logprob, tuple((o.token, o.logprob) for o in t.top)) for t in tokens]


def scoring(tokens: Sequence[int], num_new: int = 0) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(tokens), sampling=GREEDY, max_new_tokens=num_new, score_prompt=True
    )


@cache
def forced(fmt: TensorFormat) -> list[Scored]:
    """Each token of the text generated after those before it: a bias leaves no other choice."""
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt)
    tokens: list[CommittedToken] = []
    with dispatcher(pipeline.engines, 600) as opened:
        for position in range(1, len(TEXT)):
            sampling = SamplingParams(
                temperature=0.0,
                logprobs=True,
                top_logprobs=3,
                logit_bias=((TEXT[position], 100.0),),
            )
            request = SequenceRequest(
                prompt_tokens=TEXT[:position], sampling=sampling, max_new_tokens=1
            )
            tokens += received(start(opened, request))
    return plain(tokens)


@pytest.mark.parametrize("fmt", [TensorFormat.Q4_K, TensorFormat.BF16], ids=lambda fmt: fmt.label)
@pytest.mark.parametrize(("chunk", "num_stages"), [(1, 1), (7, 3), (32, 2), (600, 1)])
def test_scores_are_those_of_forced_decoding(
    fmt: TensorFormat, chunk: int, num_stages: int
) -> None:
    pipeline = Pipeline.make(
        small_config(NUM_LAYERS), fmt, num_stages=num_stages, num_threads=2, block_seed=1
    )
    with dispatcher(pipeline.engines, chunk) as opened:
        assert plain(received(start(opened, scoring(TEXT)))) == forced(fmt)


def test_scores_of_generated_text_are_its_log_probabilities() -> None:
    pipeline = Pipeline.make(small_config(NUM_LAYERS), TensorFormat.Q8_0)
    with dispatcher(pipeline.engines, 16) as opened:
        both = received(start(opened, scoring(TEXT[:40], num_new=30)))
        assert [token.position for token in both] == list(range(1, 70))
        text = TEXT[:40] + tuple(token.token for token in both[39:])
        assert plain(received(start(opened, scoring(text)))) == plain(both)


@settings(max_examples=15)
@given(data=st.data())
def test_scores_depend_on_their_own_text_alone(data: st.DataObject) -> None:
    """Other sequences come and go beside it, and take its blocks away."""
    chunk = data.draw(st.integers(1, 40), "chunk")
    lengths = data.draw(st.lists(st.integers(2, 60), min_size=1, max_size=5), "lengths")
    num_new = data.draw(st.integers(0, 20), "new")
    num_blocks = data.draw(st.integers(blocks_for(80), 12), "blocks")
    pipeline = Pipeline.make(small_config(2), TensorFormat.Q4_0, num_blocks=num_blocks)
    with dispatcher(pipeline.engines, chunk, num_blocks) as opened:
        # What is generated beside them takes blocks, and preempts the youngest.
        beside = [
            start(opened, SequenceRequest(prompt_tokens=(n,), sampling=GREEDY, max_new_tokens=40))
            for n in range(2)
        ]
        running = [start(opened, scoring(TEXT[:length], num_new)) for length in lengths]
        for updates, length in zip(running, lengths, strict=True):
            tokens = received(updates)
            assert len(tokens) == length - 1 + num_new
            assert plain(tokens)[: length - 1] == small_scores()[: length - 1]
        for updates in beside:
            received(updates)


@cache
def small_scores() -> list[Scored]:
    pipeline = Pipeline.make(small_config(2), TensorFormat.Q4_0)
    with dispatcher(pipeline.engines, 600) as opened:
        return plain(received(start(opened, scoring(TEXT[:60]))))


def test_scores_of_a_large_vocabulary_take_no_more_memory_than_samples() -> None:
    """All logits of the step at once would be 160 MB."""
    config = replace(small_config(1), vocab_size=80_000)
    pipeline = Pipeline.make(config, TensorFormat.Q4_0, num_threads=2)
    tokens = TEXT * 4 + TEXT[:20]
    part = replace(
        pipeline.step_of([Part(sequence=0, tokens=tokens, start=0, sample=False)]).slices[0],
        score_from=0,
        next_token=5,
    )
    opening = SequenceOpening(sequence_id=part.sequence_id, sampling=GREEDY, prompt_tokens=tokens)
    step = Step(step_id=StepId(9), slices=(part,), opened=(opening,))
    with ThreadPoolExecutor(1) as pool, Path("/proc/self/status").open("rb") as status:
        before = held_bytes(status.fileno())
        running = pool.submit(pipeline.engines[0].step, step, None)
        most = before
        while not running.done():
            most = max(most, held_bytes(status.fileno()))
            time.sleep(0.005)
    assert len(running.result().sampled) == len(tokens) == 500
    scratch = COST.scratch_bytes(make_program(config, cut(1, 1)[0]), 600, num_threads=2)
    assert scratch < 80 * 2**20
    assert most - before < scratch + 8 * 2**20


def test_the_reference_engine_scores_alike() -> None:
    config = small_config(2)
    native = Pipeline.make(config, TensorFormat.F32)
    program = make_program(config, cut(2, 1)[0])
    reference = ReferenceEngine(program, num_blocks=100)
    load_random_weights(reference, program, TensorFormat.F32)
    results = []
    for engine in (native.engines[0], reference):
        with dispatcher([engine], 32) as opened:
            results.append(received(start(opened, scoring(TEXT, num_new=2))))
    for ours, theirs in zip(*results, strict=True):
        assert (ours.position, ours.token) == (theirs.position, theirs.token)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=2e-3)


def test_a_model_scores_texts() -> None:
    with Model.open("demo", stages=2) as model:
        scores = model.score("Once upon a time there was a fox.", top=2)
        tokens = [each.token for each in scores.tokens]
        assert tokens == model.tokenizer.encode("Once upon a time there was a fox.")
        assert "".join(each.text for each in scores.tokens) == "Once upon a time there was a fox."
        assert scores.tokens[0].logprob is None
        assert scores.num_scored == len(tokens) - 1
        assert all(len(each.top) == 2 for each in scores.tokens[1:])
        logprobs = [each.logprob for each in scores.tokens[1:] if each.logprob is not None]
        assert scores.total_logprob == pytest.approx(sum(logprobs))
        assert scores.perplexity == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))
        assert model.score(tokens, top=2) == scores
        # A text fills the whole context, and no more; one token has nothing to be scored by.
        full = (tokens * model.context_tokens)[: model.context_tokens]
        assert model.score(full).num_scored == model.context_tokens - 1
        alone = model.score(tokens[:1])
        assert (alone.num_scored, alone.total_logprob, alone.perplexity) == (0, 0.0, None)
        with pytest.raises(PromptTooLongError):
            model.score([*full, 1])
        wrongs: list[Any] = [21, -1, 1.5]
        for wrong in wrongs:
            with pytest.raises(ParameterError, match="top is"):
                model.score(tokens, top=wrong)
        no_tokens: Any = [1.0] * KV_BLOCK_TOKENS
        with pytest.raises(ParameterError, match="neither text nor"):
            model.score(no_tokens)
        with pytest.raises(ParameterError, match="empty"):
            model.score([])
        with pytest.raises(ParameterError, match="vocabulary"):
            model.score([1, 10**9])
