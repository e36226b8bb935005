"""A pipeline whose steps the test answers."""

from __future__ import annotations

from collections.abc import Callable

from potluck.errors import PotluckError
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.step import SampledToken, Step


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
