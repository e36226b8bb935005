"""Agents' coordination in one process: real decisions, on a played network, of played deployments.

Links between any two nodes can be cut and healed, which all notice at once. A ``PlayedDeployment``
claims its epochs as a coordinator does, has no stages, and computes a token from its position.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import changed
from support.cluster.played_network import Network, Process
from support.scheduling.updates import start_of, tokens_of
from support.virtual_time.loop import VirtualLoop
from support.virtual_time.run import reach, run_in_virtual_time

from potluck.cluster.agent import takeover
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.deployment_calls import DeploymentCalls
from potluck.cluster.agent.leaving import Leaving
from potluck.cluster.agent.relaying import Relaying
from potluck.cluster.agent.sequence_calls import SequenceCalls
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.background import Background
from potluck.cluster.coordinator.claiming import Grant, claim
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.methods import TAKE_OVER
from potluck.errors import EngineError, MovedError, PotluckError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState, ModelFingerprint
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    Cancel,
    CommittedToken,
    Continuation,
    FinishReason,
    OnUpdate,
    SequenceRequest,
)
from potluck.types.step import SequenceId

TURN_SECONDS = 0.1
MINORITY_SECONDS = 0.6
TOKEN_SECONDS = 0.002
VOCABULARY = 997


def token_at(request: SequenceRequest, position: int) -> int:
    """The same wherever and whenever it is computed."""
    return (sum(request.prompt_tokens) * 31 + position * 7) % VOCABULARY


def undisturbed(request: SequenceRequest) -> list[int]:
    """All tokens of a request, scores first."""
    start = len(request.prompt_tokens)
    scores = list(request.prompt_tokens[1:]) if request.score_prompt else []
    new = [token_at(request, start + index) for index in range(request.max_new_tokens or 0)]
    return scores + new


class PlayedDeployment:
    """Claims an epoch, then computes what it is asked for."""

    def __init__(
        self,
        node: PlayedNode,
        record: DeploymentRecord,
        publish: Callable[[DeploymentRecord], None],
    ) -> None:
        self.record = record
        self.done: list[str] = []
        self.num_live = 0
        self._node = node
        self._publish = publish
        self._ready = asyncio.Event()
        self._end: asyncio.Future[PotluckError] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def resume(self) -> None:
        self.done.append("resume")
        self._task = asyncio.ensure_future(self._claim())

    async def continue_without(self, node: NodeId) -> None:
        self.done.append(f"continue_without {node}")

    async def finish(self) -> None:
        self.done.append("finish")

    async def remove(self, reason: str = "undeployed") -> None:
        await self.close(EngineError("the model was undeployed"))
        self._say(state=DeploymentState.REMOVED)

    async def close(self, reason: PotluckError | None = None) -> None:
        self.done.append("close")
        self._stop(reason or MovedError("another node coordinates it"))

    def name_successor(self, node_id: NodeId) -> None:
        self._say(successor=node_id)

    def node_left(self, node: NodeId) -> None:
        self.done.append(f"left {node}")

    def node_joined(self, node_id: NodeId) -> None:
        return

    def start_sequence(
        self,
        request: SequenceRequest,
        on_update: OnUpdate,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> Cancel:
        return start_of(self.generate(request, continuation), on_update)

    async def generate(
        self, request: SequenceRequest, continuation: Continuation = NOTHING_COMMITTED
    ) -> AsyncGenerator[CommittedToken, None]:
        self._node.continuations.append(continuation)
        self.num_live += 1
        try:
            async for token in self._compute(request, continuation):
                yield token
        finally:
            self.num_live -= 1

    async def _compute(
        self, request: SequenceRequest, continuation: Continuation
    ) -> AsyncGenerator[CommittedToken, None]:
        await self._first(self._ready.wait())
        tokens = undisturbed(request)
        done = continuation.num_scored + len(continuation.output_tokens)
        assert [*tokens[: continuation.num_scored], *continuation.output_tokens] == tokens[:done]
        num_scores = request.num_scores
        for index in range(done, len(tokens)):
            await self._first(asyncio.sleep(TOKEN_SECONDS))
            is_score = index < num_scores
            start = 1 if is_score else len(request.prompt_tokens) - num_scores
            yield CommittedToken(
                sequence_id=SequenceId(1),
                token=tokens[index],
                position=start + index,
                logprob=None,
                top=(),
                finish_reason=FinishReason.LENGTH if index == len(tokens) - 1 else None,
            )

    async def _first(self, waiting: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(waiting)
        both: set[asyncio.Future[Any]] = {task, self._end}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
        if self._end.done():
            raise self._end.result()

    def _stop(self, error: PotluckError) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self._end.done():
            self._end.set_result(error)

    def _say(self, **status: object) -> None:
        record = self.record.with_status(**status)
        self.record = msgspec.structs.replace(record, revision=record.revision + 1)
        self._publish(self.record)

    async def _claim(self) -> None:
        """As ``coordinator.machine`` does it, in short."""
        now = asyncio.get_running_loop().time
        above, alone_since = self.record.epoch, math.inf
        while True:
            result = await claim(
                cast(Membership, self._node.process),
                self.record,
                above=above,
                required=(),
                may_be_alone=now() - alone_since > MINORITY_SECONDS,
            )
            if isinstance(result, Grant):
                break
            above = max(above, result.highest or above)
            alone_since = min(alone_since, now()) if result.is_alone else math.inf
            await asyncio.sleep(0.05)
        self.record = msgspec.structs.replace(
            self.record,
            epoch=result.epoch,
            revision=0,
            has_quorum=result.has_quorum,
            voters=result.voters,
        )
        self._say(state=DeploymentState.READY, successor=None)
        self._ready.set()


class _NoStages:
    async def supersede(self, *_: object) -> None:
        return

    async def stop(self, *_: object) -> None:
        return

    async def coordinator_left(self, *_: object) -> None:
        return


class PlayedAgent:
    """One agent's coordination, with what takes deployments over and relays to them."""

    def __init__(
        self,
        process: Process,
        stages: object,
        make_coordination: Callable[..., Coordination] = Coordination,
    ) -> None:
        self.process = process
        self.node_id = process.node_id
        self.background = Background()
        membership, spawn = cast(Membership, process), self.background.spawn
        clock = process.network.loop.time
        self.coordination = make_coordination(
            membership,
            None,
            stages,
            None,
            step_seconds=1.0,
            cost_of=None,
            spawn=spawn,
        )
        self.relaying = Relaying(membership, self.coordination, clock=clock)
        self.takeovers = Takeovers(membership, self.coordination, spawn=spawn, clock=clock)
        self.leaving = Leaving(
            membership, self.coordination, self.takeovers, self.relaying, clock=clock
        )
        DeploymentCalls(self.coordination, self.takeovers).register(process.methods)
        SequenceCalls(membership, self.coordination).register(process.methods)
        process.on_join, process.on_leave = self._joined, self._left
        process.network.loop.call_soon(process.run, lambda: spawn(self.takeovers.run()))

    def _joined(self, node: NodeId) -> None:
        self.takeovers.joined(node)
        self.coordination.joined(node)

    def _left(self, node: NodeId) -> None:
        self.coordination.left(node)


class PlayedNode(PlayedAgent):
    """An agent of played deployments. ``is_readable``: it has the models' files."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, _NoStages())
        self.is_readable = True
        self.continuations: list[Continuation] = []
        self.num_received = 0
        cast(Any, self.coordination.planner).read = self._read
        cast(Any, self.coordination)._make = self._make

    def record(self, deployment: str = "d") -> DeploymentRecord:
        return self.coordination.records.registry.records[DeploymentId(deployment)]

    def deployment(self, deployment: str = "d") -> PlayedDeployment | None:
        found: Any = self.coordination.coordinated.get(DeploymentId(deployment))
        return found if isinstance(found, PlayedDeployment) else None

    async def text(self, request: SequenceRequest) -> list[int]:
        """What a client of this node gets; ``num_received`` counts it as it comes."""
        tokens = []
        async with aclosing(self.stream(request)) as stream:
            async for token in stream:
                tokens.append(token.token)
                self.num_received += 1
        return tokens

    def stream(self, request: SequenceRequest) -> AsyncGenerator[CommittedToken, None]:
        """Committed tokens as a client of this node gets them."""
        return tokens_of(partial(self.relaying.start, self.record(), request))

    async def receive(self, num_tokens: int) -> None:
        """Wait until clients of this node have that many tokens."""
        await reach(lambda: self.num_received >= num_tokens, what=f"{num_tokens} tokens are there")

    async def _read(self, _: str, record: object = None) -> tuple[object, object]:
        if not self.is_readable:
            raise EngineError("no such file")
        read = SimpleNamespace(fingerprint=ModelFingerprint(digest=""), weights=None)
        return read, SimpleNamespace()

    def _make(self, record: DeploymentRecord, *_: object) -> PlayedDeployment:
        return PlayedDeployment(self, record, self.coordination.records.publish)


class PlayedCluster:
    """Nodes ``a``, ``b``, … that all see each other until links are ``cut``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(takeover, "_SETTLE_SECONDS", 0.01)
        monkeypatch.setattr(takeover, "_POLL_SECONDS", 0.02)
        monkeypatch.setattr(takeover, "_REST_SECONDS", 0.05)
        monkeypatch.setattr(takeover, "TURN_SECONDS", TURN_SECONDS)
        hasty = replace(TAKE_OVER, timeout_seconds=2.0)
        monkeypatch.setattr(takeover, "TAKE_OVER", hasty)
        self.network = Network(cast(VirtualLoop, asyncio.get_running_loop()), 0, pace=0.0)
        self.nodes: dict[NodeId, PlayedNode] = {}
        for node_id in map(_id, names):
            self.nodes[node_id] = PlayedNode(self.network.start(node_id))

    def __getitem__(self, name: str) -> PlayedNode:
        return self.nodes[_id(name)]

    @property
    def live(self) -> list[PlayedNode]:
        return [node for node in self.nodes.values() if node.process.is_alive]

    def cut(self, *pairs: str) -> None:
        """Cut links, each named by its two ends."""
        for one, other in _directions(pairs):
            self.network.cut(one, other)

    def heal(self, *pairs: str) -> None:
        """Heal those links, or all of them."""
        for one, other in _directions(pairs) or itertools.permutations(self.nodes, 2):
            self.network.heal(one, other)

    async def kill(self, name: str) -> None:
        """End an agent."""
        self.network.crash(self[name].process, is_silent=False)
        await self._end(self[name])

    async def deploy(self, coordinator: str, record: DeploymentRecord) -> None:
        """Have everybody know of a deployment that ``coordinator`` serves."""
        await asyncio.sleep(0.001)  # until all see each other
        node = self[coordinator]
        voters = tuple(sorted(self.nodes))
        first = changed(
            record,
            epoch=Epoch(number=0, coordinator=node.node_id),
            voters=voters,
            state=DeploymentState.LOADING,
        )
        deployment = PlayedDeployment(node, first, node.coordination.records.publish)
        node.coordination.coordinated[record.deployment] = cast(Any, deployment)
        deployment.resume()
        await self.settle(coordinator, deployment=record.deployment)

    async def settle(self, coordinator: str, *, deployment: str = "d", within: float = 3.0) -> None:
        """Wait until every node that lives agrees that this one coordinates, and serves."""
        await reach(
            lambda: all(
                (record := node.coordination.records.registry.find(deployment)) is not None
                and record.epoch.coordinator == _id(coordinator)
                and record.is_ready
                for node in self.live
            ),
            within=within,
            what=f"all agree that node {coordinator} serves",
        )

    def coordinators(self) -> list[str]:
        """Those that run a deployment whose epoch they have taken."""
        return [
            node.node_id[0]
            for node in self.live
            if (deployment := node.deployment()) is not None
            and deployment.record.epoch.coordinator == node.node_id
        ]

    async def end(self) -> None:
        for node in self.nodes.values():
            await self._end(node)

    async def _end(self, node: PlayedNode) -> None:
        for deployment in node.coordination.coordinated.values():
            await deployment.close()
        await node.background.close()


def run_played(names: str, body: Callable[[PlayedCluster], Awaitable[None]]) -> None:
    """Run ``body`` with a cluster of these nodes, in virtual time."""

    async def with_cluster() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            cluster = PlayedCluster(monkeypatch, names)
            try:
                async with asyncio.timeout(20):
                    await body(cluster)
            finally:
                await cluster.end()

    run_in_virtual_time(with_cluster())


def _directions(pairs: Iterable[str]) -> list[tuple[NodeId, NodeId]]:
    return [(_id(each[0]), _id(each[1])) for pair in pairs for each in (pair, pair[::-1])]


def _id(name: str) -> NodeId:
    return NodeId(name * 16)
