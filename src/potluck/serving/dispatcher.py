"""The scheduler and the pipeline whose steps it forms.

There is no thread of its own: whoever adds or cancels a sequence, or completes a step, also forms
the next steps. Updates reach each sequence's subscriber through its callback.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from potluck.errors import EngineError, PotluckError
from potluck.scheduling import CommittedToken, Scheduler, SchedulerLimits, SequenceRequest
from potluck.serving.pipeline import OnOutcome, Pipeline, StepOutcome
from potluck.types.step import SequenceId


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedToken:
    """A committed token and the ``time.perf_counter()`` at which it was."""

    token: CommittedToken
    at_seconds: float


Update = TimedToken | PotluckError
"""What a subscriber receives: tokens, the last with a finish reason, or one error that ends it."""

Subscriber = Callable[[Update], None]
"""Called under the dispatcher's lock, on any thread: it must be quick and not call back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sequences that hold cache blocks (running) and that do not yet, and blocks nobody holds."""

    num_waiting: int
    num_running: int
    num_free_blocks: int


class Dispatcher:
    """Serves sequences over one pipeline. Thread-safe.

    ``start_pipeline`` is given the callback for outcomes; the pipeline is closed by :meth:`close`.
    """

    def __init__(
        self, limits: SchedulerLimits, start_pipeline: Callable[[OnOutcome], Pipeline]
    ) -> None:
        self._lock = threading.Lock()
        self._scheduler = Scheduler(limits)
        self._subscribers: dict[SequenceId, Subscriber] = {}
        self._is_closed = False
        self._pipeline = start_pipeline(self._on_outcome)

    @property
    def load(self) -> Load:
        """How busy it is now."""
        with self._lock:
            num_waiting = self._scheduler.num_waiting
            return Load(
                num_waiting=num_waiting,
                num_running=self._scheduler.num_sequences - num_waiting,
                num_free_blocks=self._scheduler.num_free_blocks,
            )

    def add(self, request: SequenceRequest, subscriber: Subscriber) -> SequenceId:
        """Queue a sequence; its updates go to ``subscriber``.

        Raises ``PromptTooLongError``, and ``EngineError`` after :meth:`close`.
        """
        with self._lock:
            if self._is_closed:
                raise EngineError("the model is closed", hint="open it again")
            sequence_id = self._scheduler.add(request)
            self._subscribers[sequence_id] = subscriber
            self._submit_steps()
        return sequence_id

    def cancel(self, sequence_id: SequenceId) -> None:
        """Drop a sequence and free its blocks; one that is not live is accepted."""
        with self._lock:
            self._subscribers.pop(sequence_id, None)
            self._scheduler.cancel(sequence_id)
            if not self._is_closed:
                self._submit_steps()

    def close(self, reason: PotluckError | None = None) -> None:
        """End every live sequence with ``reason``, then the stages. Idempotent."""
        error = reason or EngineError("the model was closed")
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for sequence_id in list(self._subscribers):
                self._fail(sequence_id, error)
        self._pipeline.close()

    def _on_outcome(self, outcome: StepOutcome) -> None:
        now = time.perf_counter()
        with self._lock:
            committed = self._scheduler.complete(outcome.step.step_id, outcome.sampled)
            for token in committed:
                subscriber = self._subscribers[token.sequence_id]
                if token.finish_reason is not None:
                    del self._subscribers[token.sequence_id]
                subscriber(TimedToken(token=token, at_seconds=now))
            if outcome.error is not None:
                for part in outcome.step.slices:
                    self._fail(part.sequence_id, outcome.error)
            if not self._is_closed:
                self._submit_steps()

    def _fail(self, sequence_id: SequenceId, error: PotluckError) -> None:
        self._scheduler.cancel(sequence_id)
        subscriber = self._subscribers.pop(sequence_id, None)
        if subscriber is not None:
            subscriber(error)

    def _submit_steps(self) -> None:
        while (step := self._scheduler.next_step()) is not None:
            self._pipeline.submit(step)
