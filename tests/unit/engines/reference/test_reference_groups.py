"""Groups of reference engines: what the leader gives, and what ends a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.engines.groups import GroupEngine, divided, group_factory, reference_member
from support.models.canonical_weights import load_canonical_weights
from support.models.configs import make_config
from support.reference.ops import product, row_wise_product
from support.text.token_masks import mask_rows

from potluck.errors import EngineError
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import Engine
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard
from potluck.types.step import (
    Pooling,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

CONFIG = make_config(hidden_size=96, intermediate_size=160, num_heads=6, num_kv_heads=3)
SHARES = (2, 1, 3)
NUM_BLOCKS = 4
SEQUENCE = SequenceId(0)
PROMPT = (3, 1, 4, 1, 5)


def program_of(config: ModelConfig) -> Program:
    shard = Shard.whole(config.num_layers)
    return build_program(config, shard, context_tokens=32, ropes=rope_tables(config, 32))


def engines(config: ModelConfig) -> Iterator[Engine]:
    """One unit, and a group."""
    program = program_of(config)
    for make in (reference_member, group_factory(SHARES)):
        engine = make(program, NUM_BLOCKS)
        load_canonical_weights(engine, program)
        with closing(engine):
            yield engine


def slice_of(tokens: tuple[int, ...], start: int, **options: Any) -> SequenceSlice:
    plain = SequenceSlice(
        sequence_id=SEQUENCE,
        tokens=tokens,
        start_position=start,
        block_table=(2, 0),
        sample=True,
    )
    return replace(plain, **options)


def step_of(number: int, *slices: SequenceSlice, opened: tuple[SequenceOpening, ...] = ()) -> Step:
    return Step(step_id=StepId(number), slices=slices, opened=opened)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.5, seed=7, top_p=0.9, logprobs=True, top_logprobs=3),
        SamplingParams(temperature=0.0, repetition_penalty=1.7, logit_bias=((9, 2.0),)),
    ],
)
def test_the_leader_samples_what_one_unit_does(sampling: SamplingParams) -> None:
    texts = []
    for engine in engines(CONFIG):
        opening = SequenceOpening(sequence_id=SEQUENCE, sampling=sampling, prompt_tokens=PROMPT)
        (first,) = engine.step(step_of(0, slice_of(PROMPT, 0), opened=(opening,)), None).sampled
        sampled = [first]
        for number in range(1, 6):
            part = slice_of((sampled[-1].token,), len(PROMPT) + number - 1)
            sampled += engine.step(step_of(number, part), None).sampled
        # A right guess and a wrong one, of which what follows the right one is given.
        drafts = (sampled[-1].token, 50 - 1)
        part = slice_of(drafts, len(PROMPT) + 5, num_drafts=1)
        sampled += engine.step(step_of(6, part), None).sampled
        texts.append(sampled)
    assert texts[0] == texts[1]


def test_masks_bind_the_leader() -> None:
    for engine in engines(CONFIG):
        greedy = SamplingParams(temperature=0.0)
        opening = SequenceOpening(sequence_id=SEQUENCE, sampling=greedy, prompt_tokens=PROMPT)
        masks = {SEQUENCE: mask_rows(CONFIG.vocab_size, [17])}
        step = step_of(0, slice_of(PROMPT, 0), opened=(opening,))
        assert [each.token for each in engine.step(step, None, masks).sampled] == [17]


@pytest.mark.parametrize("pooling", Pooling)
def test_vectors(pooling: Pooling) -> None:
    config = replace(CONFIG, has_logits=False)
    vectors = []
    for engine in engines(config):
        part = slice_of(PROMPT, 0, sample=False, pooling=pooling, ends_pooling=True)
        (result,) = engine.step(step_of(0, part), None).sampled
        vectors.append(result.vector)
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_nothing_is_exchanged_of_steps_without_tokens_or_logits() -> None:
    group = group_of(CONFIG)
    with closing(group):
        group.step(Step(step_id=StepId(0), slices=(), closed=(SEQUENCE,)), None)
        assert group.mesh.num_exchanges == [0, 0, 0]
        group.step(step_of(1, slice_of(PROMPT, 0, sample=False)), None)
        without_head = group.mesh.num_exchanges[0]
        group.logits(step_of(2, slice_of(PROMPT, 0)), None)
        assert group.mesh.num_exchanges == [2 * without_head + 1] * 3


def group_of(config: ModelConfig) -> GroupEngine:
    program = program_of(config)
    programs = divided(program, SHARES)
    group = GroupEngine(programs, [reference_member(each, NUM_BLOCKS) for each in programs])
    load_canonical_weights(group, program)
    return group


def test_a_member_computes_nothing_alone() -> None:
    program = divided(program_of(CONFIG), SHARES)[1]
    engine = reference_member(program, NUM_BLOCKS)
    load_canonical_weights(engine, program)
    with pytest.raises(EngineError, match="cannot compute alone"):
        engine.step(step_of(0, slice_of(PROMPT, 0)), None)


def test_a_member_that_fails_ends_the_step_for_all() -> None:
    group = group_of(CONFIG)
    with closing(group):
        good = step_of(0, slice_of(PROMPT, 0, sample=False))
        group.step(good, None)
        failing = FailingExchange(group)
        group.engines[1].join_group(failing)
        with pytest.raises(EngineError, match="this member fails"):
            group.step(good, None)
        group.engines[1].join_group(group.mesh.exchange_of(1))
        group.step(good, None)


class FailingExchange:
    """Fails at the third exchange."""

    def __init__(self, group: GroupEngine) -> None:
        self._exchange = group.mesh.exchange_of(1)
        self._num_left = 2

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        if self._num_left == 0:
            raise EngineError("this member fails")
        self._num_left -= 1
        self._exchange.exchange(sent, received)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 17, 64])
def test_rows_of_products_do_not_depend_on_others(num_rows: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 200)).astype(np.float32)
    weight = rng.standard_normal((100, 200)).astype(np.float32)
    expected = row_wise_product(x, weight)
    np.testing.assert_allclose(expected, product(x, weight), atol=1e-4)
    for start in (0, 1, 36):
        part = row_wise_product(x[2:4], weight[start : start + num_rows])
        np.testing.assert_array_equal(part, expected[2:4, start : start + num_rows])
