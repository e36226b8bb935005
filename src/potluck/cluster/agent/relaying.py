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
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.outlooks import Outlooks
from potluck.cluster.agent.progress import GapError, Patience, SequenceProgress
from potluck.cluster.calls import (
    DeploymentRecord,
    DeploymentState,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    decode,
    encode,
)
from potluck.cluster.membership import MAX_PAYLOAD_BYTES, Membership
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
from potluck.types.cluster import NodeId
from potluck.types.sequence import CommittedToken, SequenceRequest

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

    async def generate(
        self,
        record: DeploymentRecord,
        request: SequenceRequest,
        committed: Iterable[CommittedToken] = (),
    ) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence, or what follows its ``committed`` tokens, to its end.

        Every token comes once and in order, whatever happens to coordinators. Raises what the
        coordinator answers instead, and ``EngineError`` when there has been none for the time that
        the deployment lets requests wait.
        """
        if self._is_closed:
            raise EngineError(
                "this node is about to leave the cluster", hint="send the request to another node"
            )
        self._num_live += 1
        try:
            async with aclosing(self._generate(record, request, committed)) as tokens:
                async for token in tokens:
                    yield token
        finally:
            self._num_live -= 1
            self._ended.set()

    async def _generate(
        self,
        record: DeploymentRecord,
        request: SequenceRequest,
        committed: Iterable[CommittedToken],
    ) -> AsyncGenerator[CommittedToken, None]:
        progress = SequenceProgress(request, committed)
        patience = Patience(limit_seconds=record.recovery_wait_seconds)
        failures = _Failures()
        pause_seconds = _FIRST_PAUSE_SECONDS
        idle_since = self._clock()
        while True:
            record = self._latest(record)
            is_open = False
            try:
                if isinstance(failures.last, MovedError):
                    record = await self._corrected(record)
                stream = await self._open(record, request, progress)
                if stream is not None:
                    patience = patience.after(self._clock() - idle_since)
                    is_open = True
                    async with aclosing(stream):
                        async for token in stream:
                            if not progress.take(token):
                                continue
                            failures = _Failures(has_begun=True)
                            pause_seconds = _FIRST_PAUSE_SECONDS
                            patience = patience.renewed()
                            yield token
                            if progress.is_finished:
                                return
                    failures = failures.of(MovedError("the answer ended before its last token"))
            except (CallError, MovedError, OverloadedError, GapError) as error:
                failures = failures.of(error)
            if not is_open:
                patience = patience.after(self._clock() - idle_since)
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
        self, record: DeploymentRecord, request: SequenceRequest, progress: SequenceProgress
    ) -> AsyncGenerator[CommittedToken, None] | None:
        """Ask the coordinator for what follows; None if it cannot be reached now."""
        deployment = self._coordination.coordinated.get(record.deployment)
        if deployment is not None:
            return deployment.generate(request, progress.continuation)
        coordinator = record.epoch.coordinator
        payload = encode(
            Generate(
                deployment=record.deployment,
                request=request,
                continuation=progress.continuation,
            )
        )
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ParameterError(
                "prompt",
                f"the request takes {len(payload):,} bytes on its way to the coordinator, and may"
                f" take {MAX_PAYLOAD_BYTES:,}",
                hint="send a shorter prompt",
            )
        if coordinator in self._membership.nodes():
            return self._ask(coordinator, "deployment.generate", payload)
        if coordinator == self._membership.node_id:
            return None
        outlooks = await self._outlooks.ask(record)
        for node, outlook in sorted(outlooks.items()):
            if outlook.record is not None:
                self._coordination.heard(outlook.record)
            elif outlook.sees_coordinator:
                return self._ask(node, "deployment.relay", payload)
        return None

    async def _ask(
        self, node: NodeId, method: str, payload: bytes
    ) -> AsyncGenerator[CommittedToken, None]:
        async with aclosing(self._membership.call_stream(node, method, payload)) as stream:
            async for part in stream:
                answer: GenerateAnswer = decode(part, GenerateAnswer)
                if isinstance(answer, GenerateFailure):
                    raise answer.error()
                for token in answer.tokens:
                    yield token


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
