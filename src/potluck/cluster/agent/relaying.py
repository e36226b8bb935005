"""A gateway's own sequences, which outlive any coordinator.

The gateway that a client is connected to holds the request and every token that was committed. It
asks the coordinator for what follows. If that is lost, or hands over, the gateway asks the next one
to continue, so that the client sees a pause and no token twice. A coordinator that this node does
not reach is asked through another node that does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.outlooks import Outlooks
from potluck.cluster.agent.progress import GapError, Patience, SequenceProgress
from potluck.cluster.agent.remote_sequences import RemoteSequences
from potluck.cluster.calls import DeploymentRecord, DeploymentState, encode
from potluck.cluster.membership import MAX_PAYLOAD_BYTES, Membership
from potluck.cluster.sequence_messages import Generate
from potluck.errors import (
    CallError,
    EngineError,
    MovedError,
    NodeLostError,
    OverloadedError,
    ParameterError,
    PotluckError,
    SilentNodeError,
)
from potluck.types.sequence import (
    Cancel,
    CommittedToken,
    OnUpdate,
    SequenceRequest,
    SequenceUpdate,
)

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
"""Between two attempts, doubled each time; news of a record or a member ends a pause."""

_MAX_FAILED_CALLS = 5
"""In a row, for other reasons than that a node was lost: the next one would fail, too."""


class Relaying:
    """For use in the agent's loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        outlooks: Outlooks,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._outlooks = outlooks
        self._clock = clock
        self._remote = RemoteSequences(membership)
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_live = 0
        self._is_closed = False
        self._ended = asyncio.Event()

    async def drain(self, seconds: float) -> None:
        """Take no more sequences, and wait up to ``seconds`` until the live ones have ended."""
        self._is_closed = True
        deadline = self._clock() + seconds
        while self._num_live and (left := deadline - self._clock()) > 0:
            self._ended.clear()
            try:
                async with asyncio.timeout(left):
                    await self._ended.wait()
            except TimeoutError:
                _log.warning("%d streams of clients are cut off", self._num_live)

    def start(
        self,
        record: DeploymentRecord,
        request: SequenceRequest,
        on_update: OnUpdate,
        committed: Iterable[CommittedToken] = (),
    ) -> Cancel:
        """Compute a sequence, or what follows its ``committed`` tokens, to its end.

        Every token comes once and in order, whatever happens to coordinators. ``on_update`` is told
        what the coordinator answers instead, and an ``EngineError`` when there has been none for
        the time that the deployment lets requests wait.
        """
        relayed = _Relayed(request, SequenceProgress(request, committed), on_update)
        task = asyncio.ensure_future(self._relay(record, relayed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            relayed.is_over = True
            task.cancel()

        return cancel

    async def _relay(self, record: DeploymentRecord, relayed: _Relayed) -> None:
        """See a sequence through to its end. No token waits for this task, or wakes it."""
        if self._is_closed:
            relayed.end(
                EngineError(
                    "this node is about to leave the cluster",
                    hint="send the request to another node",
                )
            )
            return
        self._num_live += 1
        try:
            await self._see_through(record, relayed)
        except Exception as error:  # noqa: BLE001 - the boundary of the task
            if not isinstance(error, PotluckError):
                _log.exception("a sequence could not be relayed")
            relayed.end(error)
        finally:
            self._num_live -= 1
            self._ended.set()

    async def _see_through(self, record: DeploymentRecord, relayed: _Relayed) -> None:
        patience = Patience(limit_seconds=record.recovery_wait_seconds)
        failures = _Failures()
        pause_seconds = _FIRST_PAUSE_SECONDS
        idle_since = self._clock()
        while True:
            record = self._latest(record)
            attempt = _Attempt(relayed)
            is_open = False
            try:
                if isinstance(failures.last, MovedError):
                    record = await self._corrected(record)
                cancel = await self._open(record, relayed, attempt)
                if cancel is not None:
                    is_open = True
                    patience = patience.after(self._clock() - idle_since)
                    try:
                        error = await attempt.over
                    finally:
                        cancel()
                    if error is not None:
                        raise error
                    return
            except (CallError, MovedError, OverloadedError, GapError) as error:
                if attempt.has_given:
                    failures = _Failures(has_begun=True)
                failures = failures.of(error)
            if not is_open:
                patience = patience.after(self._clock() - idle_since)
            elif attempt.has_given:
                pause_seconds = _FIRST_PAUSE_SECONDS
                patience = patience.renewed()
            idle_since = self._clock()
            if not patience.left_seconds:
                raise _gave_up(record, patience, failures.last)
            await self._coordination.changes.wait(min(pause_seconds, patience.left_seconds))
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _latest(self, record: DeploymentRecord) -> DeploymentRecord:
        latest = self._coordination.registry.records.get(record.deployment)
        if latest is None or latest.state is DeploymentState.REMOVED:
            raise EngineError("the model was undeployed")
        return latest

    async def _corrected(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return the record that others have, if the one here names a coordinator that is none."""
        if record.deployment not in self._coordination.coordinated:
            for outlook in (await self._outlooks.ask(record)).values():
                if outlook.record is not None:
                    self._coordination.heard(outlook.record)
        return self._latest(record)

    async def _open(
        self, record: DeploymentRecord, relayed: _Relayed, attempt: _Attempt
    ) -> Cancel | None:
        """Ask the coordinator for what follows; None if it cannot be reached now."""
        request, continuation = relayed.request, relayed.progress.continuation
        deployment = self._coordination.coordinated.get(record.deployment)
        if deployment is not None:
            return deployment.start_sequence(request, attempt, continuation)
        coordinator = record.epoch.coordinator
        asked = Generate(deployment=record.deployment, request=request, continuation=continuation)
        _check_size(asked)
        if coordinator in self._membership.nodes():
            return self._remote.start(coordinator, asked, attempt)
        if coordinator == self._membership.node_id:
            return None
        outlooks = await self._outlooks.ask(record)
        for node, outlook in sorted(outlooks.items()):
            if outlook.record is not None:
                self._coordination.heard(outlook.record)
            elif outlook.sees_coordinator:
                return self._remote.start_through(node, asked, attempt)
        return None


class _Relayed:
    """A sequence of a client here. ``is_over``: nothing more is told of it."""

    def __init__(
        self, request: SequenceRequest, progress: SequenceProgress, on_update: OnUpdate
    ) -> None:
        self.request = request
        self.progress = progress
        self.is_over = False
        self._on_update = on_update
        self._has_given = False

    def give(self, update: SequenceUpdate) -> bool:
        """Pass on the tokens that are new; return whether there are any.

        Raise ``GapError`` if some before them are missing, after what comes before the gap.
        """
        fresh: list[CommittedToken] = []
        try:
            for token in update.tokens:
                if self.progress.take(token):
                    fresh.append(token)
        finally:
            if fresh and not self.is_over:
                self.is_over = self.progress.is_finished
                cached = 0 if self._has_given else update.num_cached_tokens
                self._has_given = True
                self._on_update(SequenceUpdate(tokens=tuple(fresh), num_cached_tokens=cached))
        return bool(fresh)

    def end(self, error: Exception) -> None:
        """Tell why there will be no more, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self._on_update(error)


class _Attempt:
    """What one coordinator answers for a sequence. ``over`` has the error that ended it, if any."""

    def __init__(self, relayed: _Relayed) -> None:
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.has_given = False
        self._relayed = relayed

    def __call__(self, update: SequenceUpdate | Exception) -> None:
        """Take an update (``OnUpdate``)."""
        if self.over.done() or self._relayed.is_over:
            return
        if isinstance(update, Exception):
            self.over.set_result(update)
            return
        try:
            self.has_given |= self._relayed.give(update)
        except Exception as error:  # noqa: BLE001 - the task that sees the sequence through decides
            self.over.set_result(error)
            return
        if self._relayed.progress.is_finished:
            self.over.set_result(None)


def _check_size(asked: Generate) -> None:
    num_bytes = len(encode(asked))
    if num_bytes > MAX_PAYLOAD_BYTES:
        raise ParameterError(
            "prompt",
            f"the request takes {num_bytes:,} bytes on its way to the coordinator, and may"
            f" take {MAX_PAYLOAD_BYTES:,}",
            hint="send a shorter prompt",
        )


class _Failures:
    """What went wrong since the last token; raises what shall not be tried again."""

    def __init__(
        self, *, has_begun: bool = False, num_calls: int = 0, last: Exception | None = None
    ) -> None:
        self.last = last
        self._has_begun = has_begun
        self._num_calls = num_calls

    def of(self, error: Exception) -> _Failures:
        """Return the failures with another one.

        A coordinator without room may refuse a sequence that it sees first, but not one that was
        taken in before by another.
        """
        if isinstance(error, OverloadedError) and not self._has_begun:
            raise error
        is_lost = isinstance(error, (MovedError, NodeLostError, SilentNodeError, GapError))
        num_calls = 0 if is_lost else self._num_calls + isinstance(error, CallError)
        if num_calls >= _MAX_FAILED_CALLS and isinstance(error, PotluckError):
            raise EngineError(error.message, hint=error.hint) from error
        return _Failures(has_begun=self._has_begun or is_lost, num_calls=num_calls, last=error)


def _gave_up(record: DeploymentRecord, patience: Patience, last: Exception | None) -> PotluckError:
    if isinstance(last, OverloadedError):
        return last
    because = f": {last}" if last is not None else ""
    return EngineError(
        f"no node has coordinated {record.model_id} for {patience.limit_seconds:g} s{because}",
        hint="potluck ps shows which nodes are left; send the request again when one serves it",
    )
