"""A pipeline whose steps the test answers, and what a test does with a scheduler and a pipeline."""

from __future__ import annotations

from collections.abc import Callable

from support.scheduling.stateful_pipeline import StatefulPipeline
from support.scheduling.toy_pipeline import ToyPipeline

from potluck.errors import PotluckError
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.scheduling.scheduler import Scheduler
from potluck.types.step import SampledToken, SequenceId, Step


class PlayedPipeline:
    """Keeps steps until it is told to answer them. ``token`` is what every sequence gets; without
    it each gets the position of its next token.
    """

    sent = None
    token: int | None = None

    def __init__(self, on_outcome: OnOutcome, on_lost: Callable[[PotluckError], None]) -> None:
        self.on_outcome = on_outcome
        self.on_lost = on_lost
        self.steps: list[Step] = []
        self.num_closes = 0

    def submit(self, step: Step) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.num_closes += 1

    def answer(self) -> None:
        """Complete the oldest step."""
        step = self.steps.pop(0)
        ends = [
            (part.sequence_id, part.start_position + len(part.tokens))
            for part in step.slices
            if part.sample
        ]
        sampled = tuple(
            SampledToken(
                sequence_id=each, position=end, token=end if self.token is None else self.token
            )
            for each, end in ends
        )
        self.on_outcome(StepOutcome(step=step, sampled=sampled))


def next_step(scheduler: Scheduler) -> Step:
    """Form a step, which must be possible."""
    step = scheduler.next_step()
    assert step is not None
    return step


def drain(
    scheduler: Scheduler, pipeline: ToyPipeline | StatefulPipeline
) -> dict[SequenceId, list[int]]:
    """Run all that is to be computed. Returns the tokens of each sequence."""
    texts: dict[SequenceId, list[int]] = {}
    while True:
        while (step := scheduler.next_step()) is not None:
            pipeline.submit(step)
        if not len(pipeline):
            return texts
        for token in scheduler.complete(*pipeline.run_oldest()):
            texts.setdefault(token.sequence_id, []).append(token.token)
