"""Connect a scheduler to the pipeline whose steps it forms, and replace pipelines under live
sequences.

There is no thread of its own: the thread that adds or cancels a sequence, or completes a step, also
forms the next steps. Updates reach each sequence's subscriber through its callback.

Sequences are in a ledger that no pipeline owns: when a pipeline is lost, its successor computes
them again from their committed tokens, and their subscribers receive what follows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from potluck.errors import DefectError, EngineError, PotluckError
from potluck.scheduling.ledger import Ledger, LedgerEntry, Subscriber, Update
from potluck.scheduling.limits import Load, SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, Pipeline, StepOutcome
from potluck.scheduling.scheduler import Scheduler
from potluck.types.drafting import DraftSource
from potluck.types.sequence import NOTHING_COMMITTED, Continuation, SequenceRequest, SequenceUpdate
from potluck.types.step import SequenceId, StepId

_log = logging.getLogger(__name__)

StartPipeline = Callable[[OnOutcome], Pipeline]
"""Called under the dispatcher's lock: it must not wait for an outcome."""

OnBroken = Callable[[PotluckError], None]
"""Called under the dispatcher's lock, on any thread: it must be quick and not call back."""


@dataclass(slots=True, kw_only=True)
class _Attachment:
    """A pipeline in use. ``in_flight`` no longer changes once no more steps are formed."""

    number: int
    pipeline: Pipeline | None = None
    in_flight: dict[StepId, tuple[SequenceRequest, ...]] = field(default_factory=dict)
    submitted_at: dict[StepId, float] = field(default_factory=dict)
    last_outcome_at: float = 0.0
    num_steps: int = 0
    is_stopped: bool = False

    def seconds_of(self, step_id: StepId, now: float) -> float:
        """Return how long a step took that ends now, from the end of the one before it."""
        started = max(self.submitted_at.pop(step_id, now), self.last_outcome_at)
        self.last_outcome_at = now
        return now - started

    @property
    def requests_in_flight(self) -> tuple[SequenceRequest, ...]:
        return tuple(each for requests in self.in_flight.values() for each in requests)


class Dispatcher:
    """Serves sequences over one pipeline at a time. Thread-safe.

    Sequences may be added and cancelled at any time; while no pipeline is attached, they wait. A
    subscriber that raises loses its sequence.

    When the scheduler itself raises, ``on_broken`` is called with a ``DefectError`` and no more
    steps are formed; sequences stay, and continue when another pipeline is attached. Without
    ``on_broken`` there is nothing to attach one: then every sequence ends with the ``DefectError``.

    ``num_attachments`` pipelines were attached so far, which is the number of the latest one.
    ``num_dropped_outcomes`` late or duplicate results were dropped.

    Tokens are drafted by the drafters of ``drafts``, which are used under the lock. The owner of a
    drafter that had no draft calls :meth:`drafts_ready` when it has one.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        on_broken: OnBroken | None = None,
        drafts: DraftSource | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._limits = limits
        self._drafts = drafts
        self._scheduler = Scheduler(limits, drafts)
        self._clock = time.perf_counter
        self._ledger = Ledger()
        self._on_broken = on_broken
        self._attachment: _Attachment | None = None
        self._broken: DefectError | None = None
        self._is_closed = False
        self._next_sequence = 0
        self.num_attachments = 0
        self.num_dropped_outcomes = 0

    @property
    def load(self) -> Load:
        """Return the current load."""
        with self._lock:
            return self._scheduler.load

    @property
    def is_attached(self) -> bool:
        """Return whether there is a pipeline that is given steps."""
        with self._lock:
            return self._attachment is not None and not self._attachment.is_stopped

    @property
    def live(self) -> tuple[tuple[SequenceId, SequenceRequest], ...]:
        """Return the live sequences, in the order of their arrival."""
        with self._lock:
            return tuple((each.sequence_id, each.log.request) for each in self._ledger)

    def attach(self, start_pipeline: StartPipeline, limits: SchedulerLimits) -> int:
        """Compute the live sequences, and later ones, over a new pipeline; return its number.

        The pipeline, which is given the callback for its outcomes, must hold nothing of any
        sequence; :meth:`detach` or :meth:`close` closes it. Steps are counted from 0 again. Raise
        ``ValueError`` if one is already attached, or for limits in which live sequences might not
        fit, and the same errors as :meth:`add`.
        """
        with self._lock:
            self._require_open()
            if self._attachment is not None:
                raise ValueError("a pipeline is already attached")
            self._scheduler.restart(limits)
            self._limits = limits
            attachment = _Attachment(number=self.num_attachments + 1)
            attachment.pipeline = start_pipeline(partial(self._on_outcome, attachment))
            self.num_attachments += 1
            self._attachment = attachment
            self._submit_steps()
        return attachment.number

    def detach(self) -> tuple[SequenceRequest, ...]:
        """Close the pipeline, and return the requests that were in its steps at the end.

        Live sequences wait for the next pipeline. Later outcomes are dropped. Does nothing without
        a pipeline.
        """
        with self._lock:
            attachment, self._attachment = self._attachment, None
            if attachment is None:
                return ()
            attachment.is_stopped = True
            with self._breaking(attachment):
                self._scheduler.restart(self._limits)
        if attachment.pipeline is not None:
            attachment.pipeline.close()
        return attachment.requests_in_flight

    def stop(self, number: int | None = None) -> None:
        """Stop forming steps, and drop later outcomes of those in flight: the pipeline is lost.

        Does nothing if the attachment ``number`` is not the current one. Idempotent.
        """
        with self._lock:
            attachment = self._attachment
            if attachment is not None and number in (None, attachment.number):
                attachment.is_stopped = True

    def add(
        self,
        request: SequenceRequest,
        subscriber: Subscriber,
        *,
        continuation: Continuation = NOTHING_COMMITTED,
        is_alone: bool = False,
    ) -> SequenceId:
        """Queue a sequence; the updates after ``continuation`` go to ``subscriber``.

        For ``is_alone`` see ``Scheduler.add``. Raises the same errors, and ``EngineError`` after
        :meth:`close` or an internal error.
        """
        with self._lock:
            self._require_open()
            sequence_id = SequenceId(self._next_sequence)
            self._scheduler.add(
                request, continuation=continuation, is_alone=is_alone, sequence_id=sequence_id
            )
            self._next_sequence += 1
            self._ledger.add(sequence_id, request, continuation, subscriber, is_alone=is_alone)
            self._submit_steps()
        return sequence_id

    def cancel(self, sequence_id: SequenceId) -> None:
        """Drop a sequence and free its blocks; one that is not live is accepted."""
        with self._lock, self._breaking(self._attachment):
            self._ledger.remove(sequence_id)
            self._forget(sequence_id)
            self._submit_steps()

    def drafts_ready(self) -> None:
        """Ask drafters again that had no draft, and form steps. For any thread but theirs."""
        with self._lock:
            self._submit_steps()

    def set_alone(self, sequence_id: SequenceId) -> None:
        """Compute a sequence in steps of its own from now on; one that is not live is accepted."""
        with self._lock:
            entry = self._ledger.get(sequence_id)
            if entry is not None:
                entry.is_alone = True
                self._scheduler.set_alone(sequence_id)

    def fail(self, sequence_id: SequenceId, error: PotluckError) -> None:
        """End a sequence with ``error``; one that is not live is accepted."""
        with self._lock, self._breaking(self._attachment):
            self._fail(sequence_id, error)
            self._submit_steps()

    def fail_all(self, error: PotluckError) -> None:
        """End every live sequence with ``error``."""
        with self._lock, self._breaking(self._attachment):
            self._fail_every(error)

    def close(self, reason: PotluckError | None = None) -> None:
        """End every live sequence with ``reason``, then the stages. Idempotent."""
        error = reason or EngineError("the model was closed")
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            attachment, self._attachment = self._attachment, None
            with self._breaking(attachment):
                self._fail_every(error)
                self._scheduler.close()
        if attachment is not None and attachment.pipeline is not None:
            attachment.pipeline.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise EngineError("the model is closed", hint="open it again")
        if self._broken is not None:
            raise self._broken

    def _on_outcome(self, attachment: _Attachment, outcome: StepOutcome) -> None:
        now = self._clock()
        step_id = outcome.step.step_id
        with self._lock:
            is_late = attachment is not self._attachment or attachment.is_stopped
            is_duplicate = step_id not in attachment.in_flight and step_id < attachment.num_steps
            if is_late or is_duplicate:
                self.num_dropped_outcomes += outcome.error is None  # errors end what was lost
                return
            committed: list[tuple[LedgerEntry, Update]] = []
            with self._breaking(attachment):
                for token in self._scheduler.complete(
                    step_id,
                    outcome.sampled,
                    has_failed=outcome.error is not None,
                    seconds=attachment.seconds_of(step_id, now),
                    num_restored=outcome.num_restored,
                    state_end=outcome.state_end,
                ):
                    entry = self._ledger.commit(token)
                    update = SequenceUpdate(
                        tokens=(token,), num_cached_tokens=entry.take_cached_tokens()
                    )
                    committed.append((entry, update))
                if outcome.error is not None:
                    for part in outcome.step.slices:
                        self._fail(part.sequence_id, outcome.error)
                # Only now: errors above are attributed to the requests of this step as well.
                del attachment.in_flight[step_id]
            # First, because the first stage waits for it, and subscribers wake other threads.
            self._submit_steps()
            with self._breaking(attachment):
                self._tell_committed(committed)

    def _tell_committed(self, committed: Sequence[tuple[LedgerEntry, Update]]) -> None:
        if self._broken is not None:
            return  # every sequence was told so
        failed: set[SequenceId] = set()
        for entry, update in committed:
            if entry.sequence_id not in failed and not self._tell(entry, update):
                failed.add(entry.sequence_id)
        if failed:
            self._submit_steps()  # they released cache blocks

    def _tell(self, entry: LedgerEntry, update: Update) -> bool:
        """Return whether the subscriber accepted it; otherwise its sequence is over."""
        try:
            entry.subscriber(update)
        except Exception:  # noqa: BLE001 - the other sequences of the step have nothing to do with it
            _log.exception("a subscriber failed; its sequence is cancelled")
            self._ledger.remove(entry.sequence_id)
            self._forget(entry.sequence_id)
            return False
        return True

    def _forget(self, sequence_id: SequenceId) -> None:
        if self._broken is None:
            self._scheduler.cancel(sequence_id)

    def _fail(self, sequence_id: SequenceId, error: PotluckError) -> None:
        entry = self._ledger.remove(sequence_id)
        self._forget(sequence_id)
        if entry is not None:
            self._tell(entry, error)

    def _fail_every(self, error: PotluckError) -> None:
        for entry in self._ledger:
            self._fail(entry.sequence_id, error)

    def _submit_steps(self) -> None:
        attachment = self._attachment
        if attachment is None or attachment.pipeline is None or attachment.is_stopped:
            return
        with self._breaking(attachment):
            while (step := self._scheduler.next_step()) is not None:
                attachment.num_steps = step.step_id + 1
                entries = [
                    entry
                    for part in step.slices
                    if (entry := self._ledger.get(part.sequence_id)) is not None
                ]
                for entry in entries:
                    if entry.num_cached_tokens is None:  # this is its first step
                        entry.num_cached_tokens = self._scheduler.num_cached_tokens(
                            entry.sequence_id
                        )
                attachment.in_flight[step.step_id] = tuple(entry.log.request for entry in entries)
                attachment.submitted_at[step.step_id] = self._clock()
                attachment.pipeline.submit(step)

    @contextmanager
    def _breaking(self, attachment: _Attachment | None) -> Iterator[None]:
        """Protect a pipeline's thread from errors in the block, which end the attachment
        instead.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a defect of ours, told to the owner
            _log.exception("the scheduler failed")
            broken = DefectError(
                f"the scheduler failed: {type(error).__name__}: {error}",
                hint="this is a bug in Potluck: please report it, with the log",
            )
            if attachment is not None:
                attachment.is_stopped = True
            if self._on_broken is None:
                self._broken = broken
                self._fail_every(broken)
                return
            if attachment is not None and not attachment.in_flight:
                # The cause is unknown: it may be any live sequence.
                attachment.in_flight[StepId(-1)] = tuple(each.log.request for each in self._ledger)
            self._start_over(broken)
            self._on_broken(broken)

    def _start_over(self, broken: DefectError) -> None:
        """Replace the scheduler, whose state is undefined, by a new one restored from the ledger.

        A sequence that the new one refuses ends with ``broken``.
        """
        try:
            self._scheduler.close()
        except Exception:  # noqa: BLE001 - a drafter may be what is broken
            _log.exception("could not close a drafter")
        self._scheduler = Scheduler(self._limits, self._drafts)
        for entry in self._ledger:
            try:
                self._scheduler.add(
                    entry.log.request,
                    continuation=entry.log.continuation,
                    is_alone=entry.is_alone,
                    sequence_id=entry.sequence_id,
                )
            except Exception:  # noqa: BLE001 - the others are not to suffer for it
                _log.exception("could not continue a sequence")
                self._ledger.remove(entry.sequence_id)
                self._tell(entry, broken)
