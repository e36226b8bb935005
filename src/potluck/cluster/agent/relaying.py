"""A gateway's own sequences, which survive the loss of any coordinator.

The gateway that a client is connected to holds the request and every committed token. It asks the
coordinator for the rest. If that node is lost, or hands over, the gateway asks the next coordinator
to continue, so that the client sees a pause but no repeated token. A coordinator that this node
cannot reach is asked through another node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.background import Background, is_set_within
from potluck.cluster.network.membership import MAX_PAYLOAD_BYTES, Membership
from potluck.cluster.wire.calls import encode
from potluck.cluster.wire.sequence_messages import Generate
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
from potluck.scheduling.ledger import GapError, SequenceLog
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceRequest, SequenceUpdate

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
"""The delay between attempts, doubled each time; a changed record or member ends it."""

_MAX_FAILED_CALLS = 5
"""Consecutive failures, other than the loss of a node, after which another attempt would fail, too.
"""


class Relaying:
    """Relays sequences. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._clock = clock
        self._background = Background()
        self._live: Counter[DeploymentId] = Counter()
        self._is_closed = False
        self._ended = asyncio.Event()

    @property
    def deployments(self) -> frozenset[DeploymentId]:
        """Return the deployments with live sequences here, those that wait included."""
        return frozenset(self._live)

    async def drain(self, seconds: float) -> None:
        """Accept no more sequences, and wait up to ``seconds`` until the live ones have ended."""
        self._is_closed = True
        deadline = self._clock() + seconds
        while self._live.total() and (left := deadline - self._clock()) > 0:
            self._ended.clear()
            if not await is_set_within(self._ended, left):
                _log.warning("%d client streams are interrupted", self._live.total())

    def start(
        self,
        record: DeploymentRecord,
        request: SequenceRequest,
        on_update: OnUpdate,
    ) -> Cancel:
        """Compute a sequence to its end.

        Every token arrives once and in order, whatever happens to coordinators. ``on_update`` also
        gets the coordinator's error, if any, and an ``EngineError`` if there was no coordinator for
        the time that the deployment lets requests wait.
        """
        relayed = _Relayed(SequenceLog(request), on_update)
        task = self._background.spawn(self._relay(record, relayed))

        def cancel() -> None:
            relayed.is_over = True
            task.cancel()

        return cancel

    async def _relay(self, record: DeploymentRecord, relayed: _Relayed) -> None:
        """Relay a sequence to its end. Tokens neither wait for this task nor wake it."""
        if self._is_closed:
            relayed.end(
                EngineError(
                    "this node is leaving the cluster",
                    hint="send the request to another node",
                )
            )
            return
        self._live[record.deployment] += 1
        try:
            await self._see_through(record, relayed)
        except Exception as error:  # noqa: BLE001 - the boundary of the task
            if not isinstance(error, PotluckError):
                _log.exception("could not relay a sequence")
            relayed.end(error)
        finally:
            self._live[record.deployment] -= 1
            self._live += Counter()  # drops deployments without sequences
            self._ended.set()

    async def _see_through(self, record: DeploymentRecord, relayed: _Relayed) -> None:
        patience = Patience(limit_seconds=record.spec.recovery_wait_seconds)
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
            await self._coordination.records.changes.wait(min(pause_seconds, patience.left_seconds))
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _latest(self, record: DeploymentRecord) -> DeploymentRecord:
        latest = self._coordination.records.get(record.deployment)
        if latest is None or latest.is_removed:
            raise EngineError("the model was undeployed")
        return latest

    async def _corrected(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return the record that others have, if the one here names a node that is not its
        coordinator.
        """
        if record.deployment not in self._coordination.coordinated:
            for view in (await self._coordination.records.ask_views(record)).values():
                if view.record is not None:
                    self._coordination.records.learn(view.record)
        return self._latest(record)

    async def _open(
        self, record: DeploymentRecord, relayed: _Relayed, attempt: _Attempt
    ) -> Cancel | None:
        """Ask the coordinator for the rest; None if it cannot be reached now."""
        request, continuation = relayed.log.request, relayed.log.continuation
        deployment = self._coordination.coordinated.get(record.deployment)
        if deployment is not None:
            return deployment.start_sequence(request, attempt, continuation)
        coordinator = record.epoch.coordinator
        generate = Generate(
            deployment=record.deployment, request=request, continuation=continuation
        )
        _check_size(generate)
        if coordinator in self._membership.nodes():
            return self._coordination.remote.start(coordinator, generate, attempt)
        if coordinator == self._membership.node_id:
            return None
        views = await self._coordination.records.ask_views(record)
        for node, view in sorted(views.items()):
            if view.record is not None:
                self._coordination.records.learn(view.record)
            elif view.sees_coordinator:
                return self._coordination.remote.start(node, generate, attempt, may_relay=True)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a sequence has waited for a coordinator to compute it, since its last token.

    Time during which a coordinator holds the sequence does not count: the coordinator limits that.
    """

    limit_seconds: float
    waited_seconds: float = 0.0

    def after(self, seconds: float) -> Patience:
        """Return the patience left after another wait of ``seconds``."""
        return Patience(
            limit_seconds=self.limit_seconds, waited_seconds=self.waited_seconds + seconds
        )

    def renewed(self) -> Patience:
        """Return the full patience, after a token."""
        return Patience(limit_seconds=self.limit_seconds)

    @property
    def left_seconds(self) -> float:
        """Return how much longer it waits; 0 if it does not."""
        return max(0.0, self.limit_seconds - self.waited_seconds)


class _Relayed:
    """A sequence of one of this node's clients. If ``is_over``, no more updates are passed on."""

    def __init__(self, log: SequenceLog, on_update: OnUpdate) -> None:
        self.log = log
        self.is_over = False
        self._on_update = on_update
        self._has_given = False

    def give(self, update: SequenceUpdate) -> bool:
        """Pass on the new tokens; return whether there are any.

        Raise ``GapError`` if earlier ones are missing, after passing on those before the gap.
        """
        fresh: list[CommittedToken] = []
        try:
            for token in update.tokens:
                if self.log.take(token):
                    fresh.append(token)
        finally:
            if fresh and not self.is_over:
                self.is_over = self.log.is_finished
                cached = 0 if self._has_given else update.num_cached_tokens
                self._has_given = True
                self._on_update(SequenceUpdate(tokens=tuple(fresh), num_cached_tokens=cached))
        return bool(fresh)

    def end(self, error: Exception) -> None:
        """Pass on the error that ended it, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self._on_update(error)


class _Attempt:
    """One coordinator's answer for a sequence. ``over`` has the error that ended it, if any."""

    def __init__(self, relayed: _Relayed) -> None:
        self.over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.has_given = False
        self._relayed = relayed

    def __call__(self, update: SequenceUpdate | Exception) -> None:
        """Handle an update (``OnUpdate``)."""
        if self.over.done() or self._relayed.is_over:
            return
        if isinstance(update, Exception):
            self.over.set_result(update)
            return
        try:
            self.has_given |= self._relayed.give(update)
        except Exception as error:  # noqa: BLE001 - handled by the task of the sequence
            self.over.set_result(error)
            return
        if self._relayed.log.is_finished:
            self.over.set_result(None)


def _check_size(generate: Generate) -> None:
    num_bytes = len(encode(generate))
    if num_bytes > MAX_PAYLOAD_BYTES:
        raise ParameterError(
            "prompt",
            f"the request takes {num_bytes:,} bytes when sent to the coordinator;"
            f" the limit is {MAX_PAYLOAD_BYTES:,}",
            hint="send a shorter prompt",
        )


class _Failures:
    """The failures since the last token; raises those that must not be retried."""

    def __init__(
        self, *, has_begun: bool = False, num_calls: int = 0, last: Exception | None = None
    ) -> None:
        self.last = last
        self._has_begun = has_begun
        self._num_calls = num_calls

    def of(self, error: Exception) -> _Failures:
        """Return the failures with another one added.

        A coordinator without room may refuse a sequence that it sees for the first time, but not
        one that another coordinator had accepted before.
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
        hint="check the nodes with potluck ps, and retry when the model is served again",
    )
