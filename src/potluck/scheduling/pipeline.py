"""The interface of pipelines: what runs steps through the stages for the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from potluck.errors import PotluckError
from potluck.types.step import SampledToken, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The outcome of a step: its sampled tokens, or the error of the stage that failed.

    ``num_restored`` of its ``restores``, from the first, were restored by every stage, and
    ``state_end`` is after how many of them the state is in its slot; 0 if it is not. A step that
    ``is_skipped`` was cancelled before all stages had computed it.
    """

    step: Step
    sampled: tuple[SampledToken, ...] = ()
    error: PotluckError | None = None
    num_restored: int = 0
    state_end: int = 0
    is_skipped: bool = False


OnOutcome = Callable[[StepOutcome], None]
"""Called once per step, in the order of submission, on a thread of the pipeline."""


class Pipeline(Protocol):
    """Stages that run steps in the order in which they are submitted, several at a time."""

    def submit(self, step: Step) -> None:
        """Queue a step; returns immediately. Its outcome is passed to the callback."""
        ...

    def close(self) -> None:
        """End the stages. Idempotent; outcomes may still come while it runs, none after it."""
        ...
