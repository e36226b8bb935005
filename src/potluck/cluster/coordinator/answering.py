"""What answers a deployment's requests, from its first epoch to its end.

Sequences belong to the deployment. While an epoch serves, a pipeline is attached. When it is lost,
they wait for the next one and go on there after the tokens that they were given; those that wait
too long fail with the reason why the deployment does not serve.

For use in the agent's loop, but for steps and results, which have threads of the pipeline's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from potluck.cluster.coordinator.pipeline import RemotePipeline, SentTotals
from potluck.cluster.coordinator.token_rates import TokenRates
from potluck.cluster.edges.path_figures import PathFigures
from potluck.cluster.steps import MAX_WAITING_SEQUENCES
from potluck.errors import (
    MovedError,
    OverloadedError,
    ParameterError,
    PotluckError,
    RefusedRequestError,
)
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.scheduling import SchedulerLimits
from potluck.serving.dispatcher import Dispatcher, Load
from potluck.serving.ledger import Update
from potluck.serving.pipeline import OnOutcome
from potluck.serving.suspects import Standing, Suspects
from potluck.types.cluster import NodeId
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

_RETRY_AFTER_SECONDS = 5

_MAX_CONTINUED_SEQUENCES = 2 * MAX_WAITING_SEQUENCES
"""That many may wait if they were given tokens before. They were admitted once and are not to be
refused, and no deployment runs as many again as may wait."""

OnOver = Callable[[PotluckError], None]
"""Told, on any thread, why the pipeline or the scheduler serves no more."""

OpenPipeline = Callable[[OnOutcome, OnOver], RemotePipeline]


def _soon() -> int:
    return _RETRY_AFTER_SECONDS


_NOT_ADDED = SequenceId(-1)


@dataclass(slots=True, kw_only=True, eq=False)
class _Asked:
    """A sequence whose tokens are being waited for. ``tokens`` and ``error`` are still to be told.

    ``sequence_id`` is set before anything is told.
    """

    request: SequenceRequest
    on_update: OnUpdate
    arrived_at: float
    is_suspect: bool
    sequence_id: SequenceId = _NOT_ADDED
    tokens: list[CommittedToken] = field(default_factory=list)
    num_cached_tokens: int = 0
    error: PotluckError | None = None


class Answering:
    """Takes requests at any time until ``end`` or ``move``; computes them while it is attached.

    A sequence that has waited ``recovery_wait_seconds`` since the later of its arrival and the loss
    of the stages fails with what ``why_not`` returns then. ``retry_after`` estimates in how many
    seconds there is room again. Without ``has_logits`` the model gives vectors only. ``clock`` is
    in seconds and as fast as the loop's.
    """

    def __init__(
        self,
        model_id: str,
        vocab_size: int,
        limits: SchedulerLimits,
        *,
        has_logits: bool = True,
        recovery_wait_seconds: float,
        why_not: Callable[[], PotluckError],
        retry_after: Callable[[], int] = _soon,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model_id = model_id
        self._vocab_size = vocab_size
        self._has_logits = has_logits
        self._recovery_wait_seconds = recovery_wait_seconds
        self._why_not = why_not
        self._retry_after = retry_after
        self._clock = clock
        self._suspects = Suspects()
        self._dispatcher = Dispatcher(limits, self._broken)
        self._on_over: OnOver | None = None
        self._pipeline: RemotePipeline | None = None
        self._asked: dict[SequenceId, _Asked] = {}
        self._undelivered: deque[tuple[_Asked, Update]] = deque()
        self._is_delivering = False
        self._lost_at: float | None = -math.inf  # None: attached
        self._ended: PotluckError | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def load(self) -> Load:
        """How busy it is. While it is not attached, every sequence waits."""
        return self._dispatcher.load

    @property
    def is_attached(self) -> bool:
        """Whether there are stages that compute."""
        return self._dispatcher.is_attached

    def path(self) -> tuple[NodeId, PathFigures] | None:
        """Return what the edge to the first stage shows, and the node it leads to."""
        return None if self._pipeline is None else self._pipeline.path()

    @property
    def sent(self) -> SentTotals | None:
        """What went over the edge to the first stage; None while it is not attached."""
        return None if self._pipeline is None else self._pipeline.sent

    @property
    def rates(self) -> TokenRates:
        """How fast it generates; nothing is known while it is not attached."""
        return TokenRates() if self._pipeline is None else self._pipeline.rates

    @property
    def num_dropped_outcomes(self) -> int:
        """Results that came late or twice, and were dropped."""
        return self._dispatcher.num_dropped_outcomes

    def attach(self, limits: SchedulerLimits, open_pipeline: OpenPipeline, on_over: OnOver) -> None:
        """Compute over a pipeline: first what waits. ``on_over`` is told if that ends by itself.

        Raises ``ValueError`` if one is attached already, or if live sequences might not fit in the
        limits.
        """
        dispatcher = self._dispatcher
        number = dispatcher.num_attachments + 1

        def lost(error: PotluckError) -> None:
            dispatcher.stop(number)  # before the steps in flight fail: their sequences go on
            on_over(error)

        def start_pipeline(on_outcome: OnOutcome) -> RemotePipeline:
            self._pipeline = open_pipeline(on_outcome, lost)
            return self._pipeline

        self._on_over = on_over
        dispatcher.attach(start_pipeline, limits)
        self._lost_at = None
        self._disarm()

    def stop(self) -> None:
        """Form no more steps and commit nothing more: the epoch is over. ``detach`` follows."""
        self._dispatcher.stop()

    async def detach(self) -> tuple[SequenceRequest, ...]:
        """Close the pipeline; returns the requests that were in its steps. Sequences wait.

        ``judge`` is to follow before the next ``attach``.
        """
        self._dispatcher.stop()
        self._pipeline = self._on_over = None
        if self._lost_at is None:
            self._lost_at = self._clock()
        self._arm()
        return await asyncio.to_thread(self._dispatcher.detach)

    def judge(self, in_flight: Sequence[SequenceRequest], defect: str) -> None:
        """The epoch of these requests has ended by a ``defect``; or not, if that is empty.

        After a defect, live sequences that are suspects go on in steps of their own, and those that
        are refused end. All others are not touched.
        """
        if not defect:
            return
        now = self._clock()
        self._suspects, refused = self._suspects.accused(in_flight, now)
        for request in refused:
            _log.error(
                "%s: the request %s is refused from now on, as it ended an epoch twice: %s",
                self._model_id,
                request.request_id or "without an id",
                defect,
            )
        for sequence_id, request in self._dispatcher.live:
            standing = self._suspects.standing(request, now)
            if standing is Standing.REFUSED:
                self._dispatcher.fail(sequence_id, self._refusal())
            elif standing is Standing.SUSPECT:
                self._dispatcher.set_alone(sequence_id)
                if sequence_id in self._asked:
                    self._asked[sequence_id].is_suspect = True

    def expire(self, error: PotluckError, now: float) -> float | None:
        """End the sequences that have waited too long, with ``error``; done by itself, too.

        Returns when the next one will have; None if none waits for stages.
        """
        if self._lost_at is None:
            return None
        deadlines = {
            sequence_id: max(asked.arrived_at, self._lost_at) + self._recovery_wait_seconds
            for sequence_id, asked in self._asked.items()
        }
        for sequence_id, deadline in deadlines.items():
            if deadline <= now:
                self._dispatcher.fail(sequence_id, error)
        return min((each for each in deadlines.values() if each > now), default=None)

    def move(self) -> None:
        """End every live sequence with ``MovedError``, and later requests too.

        Those who asked continue at the next coordinator.
        """
        self._finish(
            MovedError(
                f"{self._model_id} is coordinated by another node",
                hint="the request is continued there",
            )
        )

    async def end(self, error: PotluckError) -> tuple[SequenceRequest, ...]:
        """End every live sequence with ``error``, and later requests too; close the pipeline.

        After ``move`` the error is the one of that. Returns as ``detach`` does. Idempotent.
        """
        self._finish(error)
        return await self.detach()

    def start(
        self,
        request: SequenceRequest,
        on_update: OnUpdate,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> Cancel:
        """Compute what follows ``continuation``. Everything that a step gave is told at once.

        It waits while there are no stages, and goes on after they were lost. Raises
        ``ParameterError`` for what no stage could compute: it would fail the sequences that share
        its steps, too; ``RefusedRequestError`` for a request that has ended two epochs;
        ``OverloadedError`` if too many wait; ``MovedError`` if another node is to be asked. What
        happens later is told to ``on_update``.
        """
        if self._ended is not None:
            raise self._ended
        self._check(request, continuation)
        self._require_room(continuation)
        is_suspect = self._require_not_refused(request) is Standing.SUSPECT
        asked = _Asked(
            request=request, on_update=on_update, arrived_at=self._clock(), is_suspect=is_suspect
        )
        asked.sequence_id = sequence_id = self._dispatcher.add(
            request,
            partial(self._deliver, asyncio.get_running_loop(), asked),
            continuation=continuation,
            is_alone=is_suspect,
        )
        self._asked[sequence_id] = asked
        if self._lost_at is not None:
            self._arm()
        return partial(self._cancel, asked)

    def _cancel(self, asked: _Asked) -> None:
        if self._forget(asked):
            self._dispatcher.cancel(asked.sequence_id)

    def _forget(self, asked: _Asked) -> bool:
        """Tell nothing more of a sequence; return whether anything was to be told."""
        return self._asked.pop(asked.sequence_id, None) is not None

    def _deliver(self, loop: asyncio.AbstractEventLoop, asked: _Asked, update: Update) -> None:
        """Pass an update on to the loop, on any thread. Those of one step wake it once."""
        self._undelivered.append((asked, update))
        if self._is_delivering:
            return  # what was appended before the loop says otherwise, it will find
        self._is_delivering = True
        try:
            loop.call_soon_threadsafe(self._deliver_all)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            self._is_delivering = False
            self._undelivered.clear()

    def _deliver_all(self) -> None:
        self._is_delivering = False
        given: list[_Asked] = []
        while self._undelivered:
            asked, update = self._undelivered.popleft()
            if isinstance(update, PotluckError):
                asked.error = update
            else:
                asked.num_cached_tokens += update.num_cached_tokens
                asked.tokens.append(update.token)
            if asked.error is not None or len(asked.tokens) == 1:
                given.append(asked)
        for asked in given:
            self._tell(asked)

    def _tell(self, asked: _Asked) -> None:
        tokens, asked.tokens = tuple(asked.tokens), []
        if asked.sequence_id not in self._asked:
            return  # it was cancelled meanwhile
        try:
            if tokens:
                is_last = tokens[-1].finish_reason is not None
                if is_last:
                    self._forget(asked)
                    if asked.is_suspect:
                        self._suspects = self._suspects.completed(asked.request)
                num_cached_tokens, asked.num_cached_tokens = asked.num_cached_tokens, 0
                asked.on_update(SequenceUpdate(tokens=tokens, num_cached_tokens=num_cached_tokens))
            if asked.error is not None and self._forget(asked):
                asked.on_update(asked.error)
        except Exception:  # noqa: BLE001 - the other sequences of the step have nothing to do with it
            _log.exception("an update of a sequence could not be taken, which ends it")
            self._cancel(asked)

    def _broken(self, error: PotluckError) -> None:
        if self._on_over is not None:
            self._on_over(error)

    def _finish(self, error: PotluckError) -> None:
        if self._ended is None:
            self._ended = error
        self._dispatcher.stop()
        self._dispatcher.fail_all(self._ended)
        self._disarm()

    def _arm(self) -> None:
        """See to it that sequences do not wait for too long."""
        if self._timer is None and self._ended is None and self._asked:
            self._set_timer(self.expire(self._why_not(), self._clock()))

    def _set_timer(self, deadline: float | None) -> None:
        if deadline is not None:
            seconds = max(0.0, deadline - self._clock())
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._arm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _require_room(self, continuation: Continuation) -> None:
        is_new = continuation == NOTHING_COMMITTED
        most = MAX_WAITING_SEQUENCES if is_new else _MAX_CONTINUED_SEQUENCES
        if self._dispatcher.load.num_waiting >= most:
            raise OverloadedError(
                f"{most} sequences already wait for {self._model_id}",
                retry_after_seconds=self._retry_after(),
            )

    def _require_not_refused(self, request: SequenceRequest) -> Standing:
        standing = self._suspects.standing(request, self._clock())
        if standing is Standing.REFUSED:
            raise self._refusal()
        return standing

    def _refusal(self) -> RefusedRequestError:
        return RefusedRequestError(
            f"this request has twice ended what serves {self._model_id}, and is refused",
            hint="do not send it again; the log of the coordinator's agent says what happened",
        )

    def _check(self, request: SequenceRequest, continuation: Continuation) -> None:
        vocab_size = self._vocab_size
        validate_sampling(request.sampling, vocab_size)
        prompt = request.prompt_tokens
        if not prompt or min(prompt) < 0 or max(prompt) >= vocab_size:
            raise ParameterError("prompt", f"a prompt has tokens from 0 to {vocab_size - 1}")
        if (request.max_new_tokens or 0) < 0 or request.asks_for_nothing:
            raise ParameterError("max_tokens", "at least one token must be asked for")
        if request.pooling is not None and (request.max_new_tokens != 0 or request.num_scores):
            raise ParameterError("pooling", "a sequence that is pooled has no tokens and no scores")
        if request.pooling is None and not self._has_logits:
            raise ParameterError(
                "model",
                f"{self._model_id} has no head: it makes vectors, and no text",
                hint="use /v1/embeddings or /v1/rerank with it",
            )
        if not all(0 <= token < vocab_size for token in continuation.output_tokens):
            raise ParameterError("continuation", f"it has tokens from 0 to {vocab_size - 1}")
        if request.grammar is not None and len(request.grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ParameterError("grammar", f"a grammar has at most {MAX_GRAMMAR_BYTES:,} bytes")
