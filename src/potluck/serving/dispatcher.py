"""The scheduler and the pipeline whose steps it forms.

There is no thread of its own: whoever adds or cancels a sequence, or completes a step, also forms
the next steps. Updates reach each sequence's subscriber through its callback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from potluck.errors import DefectError, EngineError, PotluckError
from potluck.scheduling import CommittedToken, Scheduler, SchedulerLimits, SequenceRequest
from potluck.serving.pipeline import OnOutcome, Pipeline, StepOutcome
from potluck.types.step import SequenceId, StepId

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    request: SequenceRequest
    subscriber: Subscriber


def _ignore(error: PotluckError) -> None:
    return


class Dispatcher:
    """Serves sequences over one pipeline. Thread-safe.

    ``start_pipeline`` is given the callback for outcomes; the pipeline is closed by :meth:`close`.
    A subscriber that raises loses its sequence. When the scheduler itself raises, every sequence
    ends with a ``DefectError`` and ``on_broken`` is called once with it, under the lock.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        start_pipeline: Callable[[OnOutcome], Pipeline],
        on_broken: Callable[[PotluckError], None] = _ignore,
    ) -> None:
        self._lock = threading.Lock()
        self._scheduler = Scheduler(limits)
        self._live: dict[SequenceId, _Live] = {}
        self._in_flight: dict[StepId, tuple[SequenceRequest, ...]] = {}
        self._on_broken = on_broken
        self._broken: DefectError | None = None
        self._is_stopped = False
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

    @property
    def is_stopped(self) -> bool:
        """Whether it forms no more steps."""
        return self._is_stopped

    @property
    def requests_in_flight(self) -> tuple[SequenceRequest, ...]:
        """Those that have a part in the steps in flight now, or had when it was stopped."""
        with self._lock:
            return tuple(each for requests in self._in_flight.values() for each in requests)

    def add(
        self, request: SequenceRequest, subscriber: Subscriber, *, is_alone: bool = False
    ) -> SequenceId:
        """Queue a sequence; its updates go to ``subscriber``. ``is_alone``: see ``Scheduler.add``.

        Raises ``PromptTooLongError``, and ``EngineError`` after :meth:`close` or a defect.
        """
        with self._lock:
            if self._is_closed:
                raise EngineError("the model is closed", hint="open it again")
            if self._broken is not None:
                raise self._broken
            sequence_id = self._scheduler.add(request, is_alone=is_alone)
            self._live[sequence_id] = _Live(request=request, subscriber=subscriber)
            self._submit_steps()
        return sequence_id

    def cancel(self, sequence_id: SequenceId) -> None:
        """Drop a sequence and free its blocks; one that is not live is accepted."""
        with self._lock, self._breaking():
            self._live.pop(sequence_id, None)
            self._forget(sequence_id)
            self._submit_steps()

    def stop(self) -> None:
        """Form no more steps: the pipeline is lost, or about to be closed. Idempotent."""
        with self._lock:
            self._is_stopped = True

    def close(self, reason: PotluckError | None = None) -> None:
        """End every live sequence with ``reason``, then the stages. Idempotent."""
        error = reason or EngineError("the model was closed")
        with self._lock:
            if self._is_closed:
                return
            self._is_stopped = self._is_closed = True
            with self._breaking():
                for sequence_id in list(self._live):
                    self._fail(sequence_id, error)
        self._pipeline.close()

    def _on_outcome(self, outcome: StepOutcome) -> None:
        now = time.perf_counter()
        with self._lock:
            if not self._is_stopped:  # afterwards these are what was in flight at the end
                self._in_flight.pop(outcome.step.step_id, None)
            if self._broken is not None:
                return
            with self._breaking():
                committed = self._scheduler.complete(outcome.step.step_id, outcome.sampled)
                for token in committed:
                    live = self._live[token.sequence_id]
                    if token.finish_reason is not None:
                        del self._live[token.sequence_id]
                    self._tell(token.sequence_id, live, TimedToken(token=token, at_seconds=now))
                if outcome.error is not None:
                    for part in outcome.step.slices:
                        self._fail(part.sequence_id, outcome.error)
            self._submit_steps()

    def _tell(self, sequence_id: SequenceId, live: _Live, update: Update) -> None:
        try:
            live.subscriber(update)
        except Exception:  # noqa: BLE001 - the other sequences of the step have nothing to do with it
            _log.exception("a subscriber failed, and its sequence with it")
            self._live.pop(sequence_id, None)
            self._forget(sequence_id)

    def _forget(self, sequence_id: SequenceId) -> None:
        if self._broken is None:
            self._scheduler.cancel(sequence_id)

    def _fail(self, sequence_id: SequenceId, error: PotluckError) -> None:
        live = self._live.pop(sequence_id, None)
        self._forget(sequence_id)
        if live is not None:
            self._tell(sequence_id, live, error)

    def _submit_steps(self) -> None:
        if self._is_stopped:
            return
        with self._breaking():
            while (step := self._scheduler.next_step()) is not None:
                self._in_flight[step.step_id] = tuple(
                    self._live[part.sequence_id].request for part in step.slices
                )
                self._pipeline.submit(step)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """No thread of a pipeline may end of what goes wrong in the block: all sequences do."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a defect of ours, told to the caller
            _log.exception("the scheduler failed")
            self._is_stopped = True
            self._broken = DefectError(
                f"the scheduler failed: {type(error).__name__}: {error}",
                hint="this is a fault of Potluck: please report it, with its log",
            )
            for sequence_id in list(self._live):
                self._fail(sequence_id, self._broken)
            self._on_broken(self._broken)
