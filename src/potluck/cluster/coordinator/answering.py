"""What answers a deployment's requests: a dispatcher in each epoch, and what is remembered of
requests from one epoch to the next.

For use in the agent's loop, but for steps and results, which have threads of the pipeline's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from potluck.cluster.coordinator.pipeline import RemotePipeline, SentTotals
from potluck.cluster.steps import MAX_WAITING_SEQUENCES
from potluck.errors import OverloadedError, ParameterError, PotluckError, RefusedRequestError
from potluck.scheduling import SchedulerLimits
from potluck.serving.dispatcher import Dispatcher, Load, Update
from potluck.serving.pipeline import OnOutcome
from potluck.serving.suspects import Standing, Suspects
from potluck.types.sampling import validate_sampling
from potluck.types.sequence import CommittedToken, SequenceRequest

_log = logging.getLogger(__name__)

_RETRY_AFTER_SECONDS = 5

OnOver = Callable[[PotluckError], None]
"""Told, on any thread, why the pipeline or the scheduler serves no more."""

OpenPipeline = Callable[[OnOutcome, OnOver], RemotePipeline]


class Answering:
    """Between ``begin`` and ``end`` it answers; nothing else may be asked of it outside."""

    def __init__(self, model_id: str, vocab_size: int) -> None:
        self._model_id = model_id
        self._vocab_size = vocab_size
        self._suspects = Suspects()
        self._dispatcher: Dispatcher | None = None
        self._pipeline: RemotePipeline | None = None
        self._judged = asyncio.Event()

    @property
    def load(self) -> Load | None:
        """How busy it is; None while it does not answer."""
        return None if self._dispatcher is None else self._dispatcher.load

    @property
    def sent(self) -> SentTotals | None:
        """What went over the edge to the first stage; None while it does not answer."""
        return None if self._pipeline is None else self._pipeline.sent

    def begin(self, limits: SchedulerLimits, open_pipeline: OpenPipeline, on_over: OnOver) -> None:
        """Answer over a pipeline. ``on_over`` is told if that ends by itself."""

        def lost(error: PotluckError) -> None:
            dispatcher.stop()  # before the steps in flight fail: they are looked at later
            on_over(error)

        def start_pipeline(on_outcome: OnOutcome) -> RemotePipeline:
            self._pipeline = open_pipeline(on_outcome, lost)
            return self._pipeline

        dispatcher = Dispatcher(limits, start_pipeline, on_over)
        self._judged = asyncio.Event()
        self._dispatcher = dispatcher

    def stop(self) -> None:
        """Form no more steps: the epoch is over."""
        if self._dispatcher is not None:
            self._dispatcher.stop()

    async def end(self, reason: PotluckError) -> tuple[SequenceRequest, ...]:
        """Fail what is live with ``reason``; returns the requests that were in a step.

        ``judge`` is to follow, whatever happens in between.
        """
        dispatcher, self._dispatcher, self._pipeline = self._dispatcher, None, None
        if dispatcher is None:
            return ()
        dispatcher.stop()
        in_flight = dispatcher.requests_in_flight
        await asyncio.to_thread(dispatcher.close, reason)
        return in_flight

    def judge(self, in_flight: Sequence[SequenceRequest], defect: str) -> None:
        """The epoch of these requests has ended by a ``defect``; or not, if that is empty."""
        if defect:
            self._suspects, refused = self._suspects.accused(in_flight, time.monotonic())
            for request in refused:
                _log.error(
                    "%s: the request %s is refused from now on, as it ended an epoch twice: %s",
                    self._model_id,
                    request.request_id or "without an id",
                    defect,
                )
        self._judged.set()

    async def generate(
        self, request: SequenceRequest, not_now: PotluckError
    ) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; closing the generator cancels it and frees its cache.

        Raises ``ParameterError`` for what no stage could compute: it would fail the sequences that
        share its steps, too; ``RefusedRequestError`` for a request that has ended two epochs;
        ``not_now`` while there is nothing to compute it.
        """
        dispatcher, judged = self._dispatcher, self._judged
        if dispatcher is None:
            raise not_now
        self._check(request)
        if dispatcher.load.num_waiting >= MAX_WAITING_SEQUENCES:
            raise OverloadedError(
                f"{MAX_WAITING_SEQUENCES} sequences already wait for {self._model_id}",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        is_suspect = self._require_not_refused(request) is Standing.SUSPECT
        updates: asyncio.Queue[Update] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(update: Update) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(updates.put_nowait, update)

        sequence_id = dispatcher.add(request, deliver, is_alone=is_suspect)
        try:
            while True:
                update = await updates.get()
                if isinstance(update, PotluckError):
                    if is_suspect and dispatcher.is_stopped:
                        await judged.wait()
                        self._require_not_refused(request)
                    raise update
                is_last = update.token.finish_reason is not None
                if is_last and is_suspect:
                    self._suspects = self._suspects.completed(request)
                yield update.token
                if is_last:
                    return
        finally:
            dispatcher.cancel(sequence_id)

    def _require_not_refused(self, request: SequenceRequest) -> Standing:
        standing = self._suspects.standing(request, time.monotonic())
        if standing is Standing.REFUSED:
            raise RefusedRequestError(
                f"this request has twice ended what serves {self._model_id}, and is refused",
                hint="do not send it again; the log of the coordinator's agent says what happened",
            )
        return standing

    def _check(self, request: SequenceRequest) -> None:
        vocab_size = self._vocab_size
        validate_sampling(request.sampling, vocab_size)
        if not request.prompt_tokens or not all(
            0 <= token < vocab_size for token in request.prompt_tokens
        ):
            raise ParameterError("prompt", f"a prompt has tokens from 0 to {vocab_size - 1}")
        if (request.max_new_tokens or 0) < 0 or request.asks_for_nothing:
            raise ParameterError("max_tokens", "at least one token must be asked for")
