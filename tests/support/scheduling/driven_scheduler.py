"""What a test does with a scheduler and a pipeline."""

from __future__ import annotations

from support.scheduling.stateful_pipeline import StatefulPipeline
from support.scheduling.toy_pipeline import ToyPipeline

from potluck.scheduling.scheduler import Scheduler
from potluck.types.step import SequenceId, Step


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
