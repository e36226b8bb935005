"""The methods that nodes call of one another, with the types of requests and answers.

This table is all there is between caller and handler: both sides name a method by its constant, and
messages are encoded and decoded here. Payloads are msgpack documents, except that bytes are sent
as they are, and None as nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar

from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import (
    AbandonStage,
    AskCoordinatorView,
    AskHoldings,
    AskMetrics,
    AskRebalance,
    AskSpeeds,
    CheckConnection,
    CheckLinks,
    CheckModel,
    ChunkDigests,
    Claim,
    ClaimAnswer,
    Clock,
    ConnectionCheck,
    ConnectStage,
    ContinueWithout,
    CoordinatorView,
    DeploymentReference,
    DialBack,
    DiscardFile,
    HashRange,
    HashState,
    LinkAnswer,
    ListenForLink,
    ManifestEvent,
    ModelCheck,
    Multicast,
    NamedFile,
    NodeHoldings,
    NodeSurvey,
    PrepareWeights,
    RebalanceAnswer,
    ReleaseStages,
    RemovalList,
    RetireDeployment,
    StageChecks,
    StageEnds,
    StageLost,
    StageScope,
    StageStats,
    StartEvent,
    SurveyNode,
    UnitChange,
    Unreachable,
    decode,
    encode,
)
from potluck.cluster.wire.sequence_messages import (
    OpenFeed,
    StartAnswer,
    StartSequence,
    StopSequence,
    TokenBatch,
)
from potluck.cluster.wire.worker_messages import StageSpec
from potluck.errors import PotluckError
from potluck.types.cluster import NodeId
from potluck.types.content import Transfer
from potluck.types.gateway import ModelMetrics
from potluck.types.node import NodeReport
from potluck.types.speed import NodeSpeeds

_log = logging.getLogger(__name__)

_Q = TypeVar("_Q")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True)
class Method(Generic[_Q, _A]):
    """A method that answers each request once, within ``timeout_seconds``."""

    name: str
    request: type[_Q]
    answer: type[_A] | UnionType
    timeout_seconds: float

    async def call(
        self,
        membership: Membership,
        node: NodeId,
        request: _Q,
        *,
        timeout_seconds: float | None = None,
    ) -> _A:
        """Return the answer of a node. Raise the errors of ``Membership.call``, and ``CallError``
        for a malformed answer.
        """
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        payload = _packed(request, self.request)
        answer = await membership.call(node, self.name, payload, timeout_seconds=seconds)
        unpacked: _A = _unpacked(answer, self.answer)
        return unpacked

    async def call_all(
        self,
        membership: Membership,
        requests: Mapping[NodeId, _Q],
        *,
        timeout_seconds: float | None = None,
        level: int = logging.DEBUG,
    ) -> dict[NodeId, _A]:
        """Return the answers of the nodes that answer, in the order of ``requests``.

        Failures are logged at ``level``.
        """

        async def call(node: NodeId, request: _Q) -> tuple[tuple[NodeId, _A], ...]:
            try:
                answer = await self.call(membership, node, request, timeout_seconds=timeout_seconds)
            except PotluckError as error:
                _log.log(level, "%s of node %s failed: %s", self.name, node, error.message)
                return ()
            return ((node, answer),)

        found = await asyncio.gather(*(call(*each) for each in requests.items()))
        return dict(pair for pairs in found for pair in pairs)

    def serve(self, table: MethodTable, handler: Callable[[_Q], Awaitable[_A]]) -> None:
        """Answer calls with the results of ``handler``."""
        self.serve_for_caller(table, lambda _, request: handler(request))

    def serve_for_caller(
        self, table: MethodTable, handler: Callable[[NodeId, _Q], Awaitable[_A]]
    ) -> None:
        """Answer calls with the results of ``handler``, which depend on the caller.

        The caller's id is not verified: every member can claim to be another.
        """

        async def handle(caller: NodeId, payload: bytes) -> bytes:
            answer = await handler(caller, _unpacked(payload, self.request))
            return _packed(answer, self.answer)

        table.register_for_caller(self.name, handle)


@dataclass(frozen=True, slots=True)
class StreamMethod(Generic[_Q, _A]):
    """A method that answers each request with a stream of events.

    ``silence_seconds`` is the longest wait for an event; None waits as long as the node is a
    member.
    """

    name: str
    request: type[_Q]
    event: type[_A] | UnionType
    silence_seconds: float | None = None

    async def call(
        self, membership: Membership, node: NodeId, request: _Q
    ) -> AsyncGenerator[_A, None]:
        """Yield the events of a node's answer; closing the generator cancels the handler.

        Raise the errors of ``Membership.call_stream``, and ``CallError`` for a malformed event.
        """
        parts = membership.call_stream(
            node, self.name, _packed(request, self.request), silence_seconds=self.silence_seconds
        )
        async with aclosing(parts):
            async for part in parts:
                yield _unpacked(part, self.event)

    def serve(self, table: MethodTable, handler: Callable[[_Q], AsyncGenerator[_A, None]]) -> None:
        """Answer calls with the events of ``handler``, which is closed if the caller leaves."""

        async def handle(payload: bytes) -> AsyncGenerator[bytes, None]:
            async with aclosing(handler(_unpacked(payload, self.request))) as events:
                async for event in events:
                    yield _packed(event, self.event)

        table.register_stream(self.name, handle)


def _packed(value: object, kind: object) -> bytes:
    if kind is NoneType:
        return b""
    return value if isinstance(value, bytes) else encode(value)


def _unpacked(payload: bytes, kind: Any) -> Any:
    if kind is bytes:
        return payload
    return None if kind is NoneType else decode(payload, kind)


REPORT = Method("node.report", NoneType, NodeReport, 5.0)
SPEEDS = Method("node.speeds", AskSpeeds, NodeSpeeds, 5.0)

SURVEY = Method("node.survey", SurveyNode, NodeSurvey, 5.0)

HOST = Method("node.host", NoneType, bytes, 30.0)
"""A document of schema ``potluck.host/1``, in JSON. The time is longer than a node tries before it
gives up (``probe.node_host``)."""

CLOCK = Method("node.clock", NoneType, Clock, 5.0)
REACH = Method("node.reach", CheckConnection, ConnectionCheck, 5.0)
MULTICAST = Method("node.multicast", Multicast, NoneType, 5.0)

FAREWELL = Method("node.farewell", NoneType, NoneType, 0.5)
"""The caller leaves, and does not wait long for the others."""

UNIT_CHANGED = Method("node.unit_changed", UnitChange, NoneType, 10.0)
"""The time is for a busy node. One that is not told learns of it when its page is open."""

REMOVALS = Method("trust.removals", RemovalList, RemovalList, 5.0)
"""Both send the removals of nodes that they know."""

LISTEN: Method[ListenForLink, LinkAnswer] = Method("link.listen", ListenForLink, LinkAnswer, 5.0)

CHECK_LINKS = Method("link.check", CheckLinks, Unreachable, 15.0)
"""The time is for a call, and a connection to an address that does not answer."""

CHECK_MODEL = Method("model.check", CheckModel, ModelCheck, 30.0)
"""The time is for a node that has to sample its own files."""

MANIFEST: StreamMethod[CheckModel, ManifestEvent] = StreamMethod(
    "weights.manifest", CheckModel, ManifestEvent, 30.0
)

HOLDINGS = Method("weights.holdings", AskHoldings, NodeHoldings, 10.0)
"""A node may have to find out whether it can reach the hub, which takes some seconds if the hub
does not answer."""

PREPARE = Method("weights.prepare", PrepareWeights, NoneType, 60.0)
"""The digests of large files are sent along: a megabyte for 32 GB."""

END_WEIGHTS = Method("weights.end", DeploymentReference, NoneType, 10.0)

TRANSFER: Method[DeploymentReference, Transfer | None] = Method(
    "weights.transfer", DeploymentReference, Transfer | None, 10.0
)

DIGESTS = Method("weights.digests", NamedFile, bytes, 30.0)
"""The digest of every chunk, one after the other; empty if they are not certain."""

HASH = Method("weights.hash", HashRange, HashState, 60.0)
VERIFIED = Method("weights.verified", ChunkDigests, NoneType, 10.0)
DISCARD = Method("weights.discard", DiscardFile, NoneType, 10.0)

DIAL = Method("weights.dial", DialBack, NoneType, 8.0)
"""The node's own limit for connecting is 5 seconds."""

START_STAGE: StreamMethod[StageSpec, StartEvent] = StreamMethod(
    "stage.start", StageSpec, StartEvent, 30.0
)
"""An agent reports every few seconds, even without progress (``agent.worker_process``), so a silent
one hangs."""

CONNECT_STAGE = Method("stage.connect", ConnectStage, NoneType, 40.0)

STOP_STAGES = Method("stage.stop", StageScope, StageEnds, 10.0)
"""The time is for workers with gigabytes of memory to exit."""

END_STAGES = Method("stage.end", StageScope, StageEnds, 3.0)
RELEASE_STAGES = Method("stage.release", ReleaseStages, NoneType, 10.0)
STAGE_STATS = Method("stage.stats", StageScope, StageStats, 2.0)
CHECK_STAGES = Method("stage.check", StageScope, StageChecks, 4.0)
ABANDON_STAGE = Method("stage.abandon", AbandonStage, NoneType, 2.0)

STAGE_LOST = Method("stage.lost", StageLost, NoneType, 5.0)
"""To the coordinator, as the next five."""

REMOVE = Method("deployment.remove", DeploymentReference, NoneType, 60.0)
RETIRE = Method("deployment.retire", RetireDeployment, NoneType, 60.0)

CONTINUE_WITHOUT = Method("deployment.continue_without", ContinueWithout, NoneType, 90.0)
"""The time is for making a plan, and loading what only a leaving node had."""

METRICS: Method[AskMetrics, ModelMetrics | None] = Method(
    "deployment.metrics", AskMetrics, ModelMetrics | None, 4.0
)
"""None if the node does not coordinate the deployment."""

REBALANCE: StreamMethod[AskRebalance, RebalanceAnswer] = StreamMethod(
    "deployment.rebalance", AskRebalance, RebalanceAnswer, 30.0
)

CLAIM = Method("deployment.claim", Claim, ClaimAnswer, 1.0)
"""The lease detects a hung node in about as long."""

COORDINATOR_VIEW = Method("deployment.coordinator_view", AskCoordinatorView, CoordinatorView, 1.0)
"""The lease detects a hung node in about as long."""

TAKE_OVER = Method("deployment.take_over", DeploymentReference, NoneType, 90.0)
"""The time is for making a plan, and loading what only a leaving node had."""

PUT = Method("deployment.put", bytes, NoneType, 5.0)
"""A packed record (``pack_record``), to everybody."""

FEED = StreamMethod("deployment.feed", OpenFeed, TokenBatch)
"""To the coordinator, as the next two. The first event is empty, and comes immediately."""

START_SEQUENCE: Method[StartSequence, StartAnswer] = Method(
    "deployment.start", StartSequence, StartAnswer, 600.0
)
"""1 MiB over a slow link takes minutes. Other nodes relay it to the coordinator on request."""

STOP_SEQUENCE = Method("deployment.stop", StopSequence, NoneType, 5.0)
