"""The part of a deployment that answers its requests, from its first epoch to its end.

Sequences belong to the deployment. While an epoch serves, a pipeline is attached. When the pipeline
is lost, the sequences wait for the next one and continue there after the tokens already generated;
those that wait too long fail with the reason why the deployment does not serve.

For use in the agent's loop, except for steps and results, which the pipeline's threads handle.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.errors import (
    OverloadedError,
    ParameterError,
    PotluckError,
    RefusedRequestError,
)
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.frame_limits import MAX_WAITING_SEQUENCES
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import Load, SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome
from potluck.scheduling.suspects import Suspects, SuspectState
from potluck.types.drafting import DraftSource
from potluck.types.gateway import GenerationTotals
from potluck.types.sampling import validate_sampling
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    Cancel,
    CommittedToken,
    Continuation,
    OnUpdate,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import SequenceId

_log = logging.getLogger(__name__)

_MAX_CONTINUED_SEQUENCES = 2 * MAX_WAITING_SEQUENCES
"""The maximum number of waiting sequences that already have tokens. They were admitted once and
must not be refused, and no deployment runs as many more as may wait."""

OnOver = Callable[[PotluckError], None]
"""Called, on any thread, with the reason why the pipeline or the scheduler has stopped serving."""

OpenPipeline = Callable[[OnOutcome, OnOver], RemotePipeline]


_NOT_ADDED = SequenceId(-1)


@dataclass(slots=True, kw_only=True, eq=False)
class _WaitingSequence:
    """A sequence whose tokens a client is waiting for.

    ``tokens`` and ``error`` have not been delivered yet. ``sequence_id`` is set before anything is.
    """

    request: SequenceRequest
    on_update: OnUpdate
    arrived_at: float
    is_suspect: bool
    sequence_id: SequenceId = _NOT_ADDED
    tokens: list[CommittedToken] = field(default_factory=list)
    num_cached_tokens: int = 0
    error: PotluckError | None = None


class _Deliveries:
    """Passes updates from the dispatcher's threads on to the sequences, in the event loop.

    ``tell`` is called there for each sequence that has tokens or an error. Generated tokens are
    counted; scores of a prompt and vectors are not.
    """

    def __init__(
        self, tell: Callable[[_WaitingSequence], None], clock: Callable[[], float]
    ) -> None:
        self._num_tokens = 0
        self._num_first_tokens = 0
        self._first_token_seconds = 0.0
        self._tell = tell
        self._clock = clock
        self._waiting: deque[tuple[_WaitingSequence, Update]] = deque()
        self._is_due = False

    def add(
        self, loop: asyncio.AbstractEventLoop, waiting: _WaitingSequence, update: Update
    ) -> None:
        """Pass an update on to the loop, from any thread. The updates of one step wake it once."""
        self._waiting.append((waiting, update))
        if self._is_due:
            return  # the loop will find what was appended before it is told otherwise
        self._is_due = True
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: there is no one left to notify
            self._is_due = False
            self._waiting.clear()

    @property
    def totals(self) -> GenerationTotals:
        """Return what sequences have generated so far."""
        return GenerationTotals(
            num_tokens=self._num_tokens,
            num_first_tokens=self._num_first_tokens,
            first_token_seconds=self._first_token_seconds,
        )

    def _deliver(self) -> None:
        self._is_due = False
        given: list[_WaitingSequence] = []
        while self._waiting:
            waiting, update = self._waiting.popleft()
            if isinstance(update, PotluckError):
                waiting.error = update
            else:
                waiting.num_cached_tokens += update.num_cached_tokens
                (token,) = update.tokens
                waiting.tokens.append(token)
                self._count(waiting, token)
            if waiting.error is not None or len(waiting.tokens) == 1:
                given.append(waiting)
        for waiting in given:
            self._tell(waiting)

    def _count(self, waiting: _WaitingSequence, token: CommittedToken) -> None:
        num_prompt_tokens = len(waiting.request.prompt_tokens)
        if token.vector is not None or token.position < num_prompt_tokens:
            return
        self._num_tokens += 1
        if token.position == num_prompt_tokens:
            self._num_first_tokens += 1
            self._first_token_seconds += self._clock() - waiting.arrived_at


class RequestQueue:
    """Accepts requests at any time until ``end``, and computes them while attached.

    A sequence that has waited ``recovery_wait_seconds`` since its arrival or the loss of the
    stages, whichever came later, fails with what ``why_not`` returns then. While there is
    ``no_plan`` for other stages, the time since the loss counts for all sequences. ``retry_after``
    estimates in how many seconds there is room again. Without ``has_logits`` the model only
    produces vectors. ``drafts`` makes the sequences' drafters. ``clock`` is in seconds and runs at
    the rate of the loop's. ``pipeline`` is None while detached.
    """

    def __init__(
        self,
        model_id: str,
        vocab_size: int,
        limits: SchedulerLimits,
        *,
        has_logits: bool = True,
        drafts: DraftSource | None = None,
        recovery_wait_seconds: float,
        why_not: Callable[[], PotluckError],
        no_plan: Callable[[], bool],
        retry_after: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.model_id = model_id
        self.pipeline: RemotePipeline | None = None
        self._vocab_size = vocab_size
        self._has_logits = has_logits
        self._recovery_wait_seconds = recovery_wait_seconds
        self._why_not = why_not
        self._no_plan = no_plan
        self._retry_after = retry_after
        self._clock = clock
        self._suspects = Suspects()
        self._dispatcher = Dispatcher(limits, self._broken, drafts)
        self._on_over: OnOver | None = None
        self._waiting: dict[SequenceId, _WaitingSequence] = {}
        self._deliveries = _Deliveries(self._tell, clock)
        self._lost_at: float | None = clock()  # None while attached
        self._ended: PotluckError | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def generated(self) -> GenerationTotals:
        """Return what sequences have generated so far, over all epochs."""
        return self._deliveries.totals

    @property
    def load(self) -> Load:
        """Return the current load. While detached, every sequence waits."""
        return self._dispatcher.load

    @property
    def is_attached(self) -> bool:
        """Return whether there are stages that compute."""
        return self._dispatcher.is_attached

    def drafts_ready(self) -> None:
        """Ask drafters that had no draft again."""
        self._dispatcher.drafts_ready()

    def attach(self, limits: SchedulerLimits, open_pipeline: OpenPipeline, on_over: OnOver) -> None:
        """Attach a pipeline and start computing, waiting sequences first.

        ``on_over`` is called if the pipeline ends by itself. Raise ``ValueError`` if one is already
        attached, or if live sequences might not fit in the limits.
        """
        dispatcher = self._dispatcher
        number = dispatcher.num_attachments + 1

        def lost(error: PotluckError) -> None:
            # before the steps in flight fail, so that their sequences continue
            dispatcher.stop(number)
            on_over(error)

        def start_pipeline(on_outcome: OnOutcome) -> RemotePipeline:
            self.pipeline = open_pipeline(on_outcome, lost)
            return self.pipeline

        self._on_over = on_over
        dispatcher.attach(start_pipeline, limits)
        self._lost_at = None
        self._disarm()

    def stop(self) -> None:
        """Stop forming steps and committing results: the epoch is over. Call ``detach`` next."""
        self._dispatcher.stop()

    async def detach(self) -> tuple[SequenceRequest, ...]:
        """Close the pipeline and return the requests that were in its steps. Sequences wait.

        Call ``record_defect`` before the next ``attach``.
        """
        self._dispatcher.stop()
        self.pipeline = self._on_over = None
        if self._lost_at is None:
            self._lost_at = self._clock()
        self.end_waits()
        return await asyncio.to_thread(self._dispatcher.detach)

    def record_defect(self, in_flight: Sequence[SequenceRequest], defect: str) -> None:
        """Record that the epoch of these requests ended by a ``defect`` (if that is not empty).

        After a defect, live sequences that are suspects continue in steps of their own, and those
        that are refused end. All others are unaffected.
        """
        if not defect:
            return
        now = self._clock()
        self._suspects, refused = self._suspects.accused(in_flight, now)
        for request in refused:
            _log.error(
                "%s: request %s is refused from now on, because it ended an epoch twice: %s",
                self.model_id,
                request.request_id or "without an id",
                defect,
            )
        for sequence_id, request in self._dispatcher.live:
            state = self._suspects.state(request, now)
            if state is SuspectState.REFUSED:
                self._dispatcher.fail(sequence_id, _refusal(self.model_id))
            elif state is SuspectState.SUSPECT:
                self._dispatcher.set_alone(sequence_id)
                if sequence_id in self._waiting:
                    self._waiting[sequence_id].is_suspect = True

    def expire(self, error: PotluckError, now: float) -> float | None:
        """End the sequences that have waited too long, with ``error``; also done automatically.

        Return when the next one will have waited too long; None if none waits for stages.
        """
        if self._lost_at is None:
            return None
        lost_at, is_stuck = self._lost_at, self._no_plan()
        deadlines = {
            sequence_id: (lost_at if is_stuck else max(waiting.arrived_at, lost_at))
            + self._recovery_wait_seconds
            for sequence_id, waiting in self._waiting.items()
        }
        for sequence_id, deadline in deadlines.items():
            if deadline <= now:
                self._dispatcher.fail(sequence_id, error)
        return min((each for each in deadlines.values() if each > now), default=None)

    async def end(self, error: PotluckError) -> tuple[SequenceRequest, ...]:
        """End every live sequence and later requests with ``error``, and close the pipeline.

        Returns the same as ``detach``. Idempotent: a later error changes nothing.
        """
        if self._ended is None:
            self._ended = error
        self._dispatcher.stop()
        self._dispatcher.fail_all(self._ended)
        self._disarm()
        return await self.detach()

    def start(
        self,
        request: SequenceRequest,
        on_update: OnUpdate,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> Cancel:
        """Compute what follows ``continuation``. The results of a step are delivered immediately.

        The sequence waits while there are no stages, and continues after stages were lost. Raise
        ``ParameterError`` for a request that no stage could compute (it would also fail the
        sequences that share its steps), ``RefusedRequestError`` for a request that has ended two
        epochs, ``OverloadedError`` if too many sequences wait, and the error of ``end`` after it.
        Later events are passed to ``on_update``.
        """
        if self._ended is not None:
            raise self._ended
        _check(
            request,
            continuation,
            model_id=self.model_id,
            vocab_size=self._vocab_size,
            has_logits=self._has_logits,
        )
        self._require_room(continuation)
        state = self._suspects.state(request, self._clock())
        if state is SuspectState.REFUSED:
            raise _refusal(self.model_id)
        is_suspect = state is SuspectState.SUSPECT
        waiting = _WaitingSequence(
            request=request, on_update=on_update, arrived_at=self._clock(), is_suspect=is_suspect
        )
        waiting.sequence_id = sequence_id = self._dispatcher.add(
            request,
            partial(self._deliveries.add, asyncio.get_running_loop(), waiting),
            continuation=continuation,
            is_alone=is_suspect,
        )
        self._waiting[sequence_id] = waiting
        if self._lost_at is not None:
            self.end_waits()
        return partial(self._cancel, waiting)

    def _cancel(self, waiting: _WaitingSequence) -> None:
        if self._forget(waiting):
            self._dispatcher.cancel(waiting.sequence_id)

    def _forget(self, waiting: _WaitingSequence) -> bool:
        """Deliver nothing more for a sequence; return whether anything was still to be
        delivered.
        """
        return self._waiting.pop(waiting.sequence_id, None) is not None

    def _tell(self, waiting: _WaitingSequence) -> None:
        tokens, waiting.tokens = tuple(waiting.tokens), []
        if waiting.sequence_id not in self._waiting:
            return  # it was cancelled in the meantime
        try:
            if tokens:
                is_last = tokens[-1].finish_reason is not None
                if is_last:
                    self._forget(waiting)
                    if waiting.is_suspect:
                        self._suspects = self._suspects.completed(waiting.request)
                num_cached_tokens, waiting.num_cached_tokens = waiting.num_cached_tokens, 0
                waiting.on_update(
                    SequenceUpdate(tokens=tokens, num_cached_tokens=num_cached_tokens)
                )
            if waiting.error is not None and self._forget(waiting):
                waiting.on_update(waiting.error)
        except Exception:  # noqa: BLE001 - the other sequences of the step have nothing to do with it
            _log.exception(
                "an update of a sequence could not be delivered, which ends the sequence"
            )
            self._cancel(waiting)

    def _broken(self, error: PotluckError) -> None:
        if self._on_over is not None:
            self._on_over(error)

    def end_waits(self) -> None:
        """End the sequences that have waited too long, now and later.

        Call it when it has changed whether there is a plan.
        """
        self._disarm()
        if self._ended is not None or not self._waiting:
            return
        deadline = self.expire(self._why_not(), self._clock())
        if deadline is not None:
            seconds = max(0.0, deadline - self._clock())
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end_waits)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _require_room(self, continuation: Continuation) -> None:
        is_new = continuation == NOTHING_COMMITTED
        most = MAX_WAITING_SEQUENCES if is_new else _MAX_CONTINUED_SEQUENCES
        if self._dispatcher.load.num_waiting >= most:
            raise OverloadedError(
                f"{most} sequences are already waiting for {self.model_id}",
                retry_after_seconds=self._retry_after(),
            )


def _refusal(model_id: str) -> RefusedRequestError:
    return RefusedRequestError(
        f"this request has twice crashed {model_id}, and is refused",
        hint="do not send it again; see the log of the coordinator's agent",
    )


def _check(
    request: SequenceRequest,
    continuation: Continuation,
    *,
    model_id: str,
    vocab_size: int,
    has_logits: bool,
) -> None:
    """Raise ``ParameterError`` for a request that a model cannot compute."""
    validate_sampling(request.sampling, vocab_size)
    prompt = request.prompt_tokens
    if not prompt or min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ParameterError("prompt", f"prompt token ids must be from 0 to {vocab_size - 1}")
    if (request.max_new_tokens or 0) < 0 or request.generates_nothing:
        raise ParameterError("max_tokens", "at least one token must be requested")
    if request.pooling is not None and (request.max_new_tokens != 0 or request.num_scores):
        raise ParameterError("pooling", "a pooled sequence cannot have tokens or scores")
    if request.pooling is None and not has_logits:
        raise ParameterError(
            "model",
            f"{model_id} has no language-model head: it produces vectors, not text",
            hint="use /v1/embeddings or /v1/rerank with this model",
        )
    if not all(0 <= token < vocab_size for token in continuation.output_tokens):
        raise ParameterError("continuation", f"token ids must be from 0 to {vocab_size - 1}")
    if not all(0 <= token < vocab_size for token in request.prediction):
        raise ParameterError("prediction", f"token ids must be from 0 to {vocab_size - 1}")
    if request.grammar is not None and len(request.grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise ParameterError("grammar", f"a grammar may have at most {MAX_GRAMMAR_BYTES:,} bytes")
