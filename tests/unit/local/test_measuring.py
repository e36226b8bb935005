"""What is measured of a model with state: every run begins with the same states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.engines.stages import cut
from support.models.canonical_weights import load_canonical_weights
from support.models.recurrent_configs import GATED_DELTA, hybrid_config
from support.reference.engine import ReferenceEngine

from potluck.local.measuring import Measurement, Workload
from potluck.local.model import Model
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import StepResult
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

CONTEXT = 64
MAX_STEP_TOKENS = 8
CONFIG = hybrid_config(GATED_DELTA)


class Recording(ReferenceEngine):
    """A reference engine that keeps what it was given and what it made of it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made: list[tuple[Step, StepResult]] = []

    def step(self, step: Step, *args: Any) -> StepResult:
        result = super().step(step, *args)
        self.made.append((step, result))
        return result


def engines(workload: Workload, boundaries: tuple[int, ...]) -> list[Recording]:
    made = []
    for shard in cut(CONFIG.num_layers, boundaries):
        ropes = rope_tables(CONFIG, CONTEXT)
        program = build_program(CONFIG, shard, context_tokens=CONTEXT, ropes=ropes)
        engine = Recording(
            program, num_blocks=workload.cache_tokens // 16, num_states=workload.num_states
        )
        load_canonical_weights(engine, program)
        made.append(engine)
    return made


def measurement(stages: list[Recording], workload: Workload) -> Measurement:
    size = SimpleNamespace(max_step_tokens=MAX_STEP_TOKENS, num_states=workload.num_states)
    model = SimpleNamespace(
        description=SimpleNamespace(config=CONFIG),
        stages=[SimpleNamespace(engine=engine) for engine in stages],
        plan=SimpleNamespace(size=size),
    )
    return Measurement(cast(Model, model), workload)


def decoded(made: list[tuple[Step, StepResult]]) -> dict[tuple[SequenceId, int], int]:
    """What was sampled after each position, in the greedy decode of one run."""
    return {
        (token.sequence_id, token.position): token.token
        for step, result in made
        if all(len(part.tokens) == 1 for part in step.slices)
        for token in result.sampled
    }


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [(), (1,)], ids=["one stage", "two stages"])
@pytest.mark.parametrize("depth", [0, 11])
def test_every_run_decodes_the_same(depth: int, boundaries: tuple[int, ...]) -> None:
    workload = Workload(prompt_tokens=10, decode_tokens=6, depth_tokens=depth, num_sequences=3)
    assert workload.num_states == (6 if depth else 3)
    stages = engines(workload, boundaries)
    measured = measurement(stages, workload)
    runs = []
    try:
        measured.fill(lambda done: None)
        for _ in range(2):
            stages[-1].made.clear()
            run = measured.run()
            greedy = stages[-1].made[: len(run.prefill.steps) + len(run.decode.steps)]
            runs.append(decoded(greedy[len(run.prefill.steps) :]))
    finally:
        measured.close()
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3 * 6
    assert len(set(runs[0].values())) > 3

    # One sequence computed by itself takes the same tokens.
    (alone,) = engines(workload, ())
    known = measured._tokens[1]
    first = known[: depth + 1]
    tokens = [*first]
    for index in range(6):
        logits = _last_logits(alone, tokens)
        tokens.append(int(np.argmax(logits)))
        assert runs[0][SequenceId(1), depth + index + 1] == tokens[-1]


@pytest.mark.slow
@pytest.mark.parametrize("boundaries", [(), (1,)], ids=["one stage", "two stages"])
@pytest.mark.parametrize("depth", [0, 11])
def test_the_drafted_decode_takes_the_same_tokens_in_fewer_steps(
    depth: int, boundaries: tuple[int, ...]
) -> None:
    workload = Workload(prompt_tokens=3, decode_tokens=20, depth_tokens=depth, num_sequences=2)
    stages = engines(workload, boundaries)
    measured = measurement(stages, workload)
    try:
        measured.fill(lambda done: None)
        assert measured.run().drafted is None
        for _ in range(2):
            run = measured.run(drafts=True)
            assert run.drafted is not None
            assert run.drafted.num_tokens == run.decode.num_tokens == 40
            # A step holds eight tokens: of both sequences, or of one where stages share them.
            slices = 2 * (3 if boundaries else 5)
            assert run.drafted.num_drafted == run.drafted.num_accepted == 40 - slices
            assert run.decode.num_drafted == 0
            made = [(step, result) for step, result in stages[-1].made if step.slices]
            plain = [pair for pair in made if pair[0] in run.decode.steps]
            verified = [pair for pair in made if pair[0] in run.drafted.steps]
            assert _sampled(verified) == _sampled(plain)
            assert len(_sampled(plain)) == 40
            stages[-1].made.clear()
    finally:
        measured.close()


def _sampled(made: list[tuple[Step, StepResult]]) -> dict[tuple[SequenceId, int], int]:
    return {
        (token.sequence_id, token.position): token.token
        for _, result in made
        for token in result.sampled
    }


def _last_logits(engine: ReferenceEngine, tokens: list[int]) -> Any:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=tuple(tokens),
        start_position=0,
        block_table=tuple(range(-(-len(tokens) // 16))),
        sample=True,
        state=0,
    )
    return engine.logits(Step(step_id=StepId(0), slices=(part,)), None)[-1]
