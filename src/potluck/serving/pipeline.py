"""What runs steps through the stages, as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from potluck.errors import PotluckError
from potluck.types.step import SampledToken, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What became of a step: its sampled tokens, or the error of the stage that gave up.

    ``num_restored`` are those of its ``restores``, from the first, that every stage has put back,
    and ``state_end`` is after how many of them the state is in its slot; 0 if it is not.
    """

    step: Step
    sampled: tuple[SampledToken, ...] = ()
    error: PotluckError | None = None
    num_restored: int = 0
    state_end: int = 0


OnOutcome = Callable[[StepOutcome], None]
"""Called once per step, in the order of submission, on a thread of the pipeline."""


class Pipeline(Protocol):
    """Stages that run steps in the order in which they are submitted, several at a time."""

    def submit(self, step: Step) -> None:
        """Queue a step; returns at once. Its outcome comes through the callback."""
        ...

    def close(self) -> None:
        """End the stages. Idempotent; outcomes may still come while it runs, none after it."""
        ...
