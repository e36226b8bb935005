"""Steps in one process that are cancelled while they are in flight."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
from support.processes.waiting import eventually

from potluck.errors import EngineError
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling.pipeline import StepOutcome
from potluck.types.engine import StepResult
from potluck.types.step import (
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

HIDDEN = np.zeros((1, 4), np.float32)


class Engine:
    """Computes one step whenever it is let."""

    def __init__(self, *, is_last: bool) -> None:
        self.may_compute = threading.Semaphore(0)
        self.begun: list[int] = []
        self.fails: set[int] = set()
        self._is_last = is_last

    def step(self, step: Step, hidden: object, masks: object) -> StepResult:
        self.begun.append(step.step_id)
        self.may_compute.acquire()
        if step.step_id in self.fails:
            raise EngineError("it cannot")
        return StepResult(hidden=None if self._is_last else HIDDEN, sampled=())

    def close(self) -> None:
        pass


def step(number: int, *, num_drafts: int, cancels: Sequence[int] = ()) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1, 2),
        start_position=2 * number,
        block_table=(0,),
        sample=True,
        num_drafts=num_drafts,
    )
    return Step(step_id=StepId(number), slices=(part,), cancels=tuple(map(StepId, cancels)))


class Played:
    def __init__(self) -> None:
        self.engines = Engine(is_last=False), Engine(is_last=True)
        self.outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
        self.pipeline = LocalPipeline(cast(Any, self.engines), self.outcomes.put)

    def let(self, stage: int, number: int) -> None:
        """Let a stage compute a step, which is the next that it is given."""
        engine = self.engines[stage]
        eventually(lambda: engine.begun[-1:] == [number], within=5, what=f"{number} is begun")
        engine.may_compute.release()

    def ended(self, number: int, *, is_skipped: bool = False) -> StepOutcome:
        outcome = self.outcomes.get(timeout=20)
        assert (outcome.step.step_id, outcome.is_skipped) == (number, is_skipped)
        return outcome


@contextmanager
def played() -> Iterator[Played]:
    stages = Played()
    try:
        yield stages
    finally:
        for engine in stages.engines:
            engine.may_compute.release(1000)
        stages.pipeline.close()


def test_stages_skip_what_they_have_not_begun_and_outcomes_stay_in_order() -> None:
    with played() as stages:
        first, last = stages.engines
        stages.pipeline.submit(step(0, num_drafts=1))
        stages.pipeline.submit(step(1, num_drafts=2))
        stages.pipeline.submit(step(2, num_drafts=2))
        stages.let(0, 0)
        stages.let(0, 1)
        eventually(lambda: first.begun == [0, 1, 2], within=5, what="the third is begun")
        stages.pipeline.submit(step(3, num_drafts=0, cancels=(1, 2)))
        stages.let(0, 2)
        stages.let(0, 3)
        stages.let(1, 0)
        stages.let(1, 3)
        stages.ended(0)
        stages.ended(1, is_skipped=True)
        stages.ended(2, is_skipped=True)
        stages.ended(3)
        assert first.begun == [0, 1, 2, 3]
        assert last.begun == [0, 3]
        assert not stages.pipeline._in_flight


def test_a_first_stage_skips_too_and_what_a_step_opens_is_never_skipped() -> None:
    opening = SequenceOpening(
        sequence_id=SequenceId(7), sampling=SamplingParams(), prompt_tokens=(1,)
    )
    with played() as stages:
        first, last = stages.engines
        stages.pipeline.submit(step(0, num_drafts=1))
        stages.pipeline.submit(step(1, num_drafts=2))
        stages.pipeline.submit(replace(step(2, num_drafts=2), opened=(opening,)))
        stages.pipeline.submit(step(3, num_drafts=1))
        stages.pipeline.submit(step(4, num_drafts=0, cancels=(1, 2, 3, 99)))
        for stage in (0, 1):
            for number in (0, 2, 3, 4):
                stages.let(stage, number)
        for number in range(5):
            stages.ended(number, is_skipped=number == 1)
        assert first.begun == last.begun == [0, 2, 3, 4]


def test_a_step_that_fails_may_have_been_cancelled() -> None:
    with played() as stages:
        stages.engines[0].fails.add(0)
        stages.pipeline.submit(step(0, num_drafts=2))
        eventually(lambda: stages.engines[0].begun == [0], within=5, what="it is begun")
        stages.pipeline.submit(step(1, num_drafts=0, cancels=(0,)))
        stages.let(0, 0)
        assert isinstance(stages.ended(0).error, EngineError)
        stages.let(0, 1)
        stages.let(1, 1)
        stages.ended(1)
