"""A snapshot of a state takes back tokens that were drafted and rejected, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models.canonical_weights import load_canonical_weights
from support.models.recurrent_configs import RECURRENCES, hybrid_config
from support.reference.engine import ReferenceEngine

from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.program import Shard
from potluck.types.step import SequenceId, SequenceSlice, StateCopy, Step, StepId

CONTEXT = 64
LIVE, SNAPSHOT = 0, 1
PROMPT = tuple(range(3, 23))
DRAFT = (7, 30, 2, 41, 5)


def engine_of(name: str) -> ReferenceEngine:
    config = hybrid_config(RECURRENCES[name])
    program = build_program(
        config,
        Shard.whole(config.num_layers),
        context_tokens=CONTEXT,
        ropes=rope_tables(config, CONTEXT),
    )
    engine = ReferenceEngine(program, num_blocks=4, num_states=2)
    load_canonical_weights(engine, program)
    return engine


def logits(
    engine: ReferenceEngine, start: int, tokens: tuple[int, ...], *copies: StateCopy
) -> NDArray[np.float32]:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=tokens,
        start_position=start,
        block_table=(0, 1, 2, 3),
        sample=True,
        state=LIVE,
    )
    return engine.logits(Step(step_id=StepId(0), slices=(part,), state_copies=copies), None)


@pytest.mark.parametrize("num_accepted", [0, 1, 3])
@pytest.mark.parametrize("name", ["short_conv", "gated_delta", "mamba"])
def test_tokens_that_were_drafted_leave_nothing(name: str, num_accepted: int) -> None:
    following = (*DRAFT[:num_accepted], 11)
    plain, drafted = engine_of(name), engine_of(name)
    logits(plain, 0, PROMPT)
    expected = logits(plain, 20, following), logits(plain, 20 + len(following), (9,))

    logits(drafted, 0, PROMPT)
    logits(drafted, 20, DRAFT, StateCopy(source=LIVE, target=SNAPSHOT))
    got = logits(drafted, 20, following, StateCopy(source=SNAPSHOT, target=LIVE))
    assert np.array_equal(got, expected[0])
    assert np.array_equal(logits(drafted, 20 + len(following), (9,)), expected[1])


def test_without_the_snapshot_they_would() -> None:
    engine = engine_of("gated_delta")
    logits(engine, 0, PROMPT)
    expected = logits(engine, 20, (11,), StateCopy(source=LIVE, target=SNAPSHOT))
    logits(engine, 20, DRAFT, StateCopy(source=SNAPSHOT, target=LIVE))
    assert not np.array_equal(logits(engine, 20, (11,)), expected)
