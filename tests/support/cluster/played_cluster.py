"""Agents' coordination in one process: real decisions, over links and deployments that are played.

Links between any two nodes can be cut and healed. A ``PlayedDeployment`` claims its epochs as a
coordinator does, has no stages, and computes a token from its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import changed
from support.scheduling.updates import start_of, tokens_of
from support.virtual_time.run import reach

from potluck.cluster.agent import takeover
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.deployment_calls import DeploymentCalls
from potluck.cluster.agent.leaving import Leaving
from potluck.cluster.agent.records import CoordinatorViews
from potluck.cluster.agent.relaying import Relaying
from potluck.cluster.agent.sequence_calls import SequenceCalls
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.background import Background
from potluck.cluster.calls import Claim, ClaimAnswer, decode, encode
from potluck.cluster.membership import MethodTable
from potluck.cluster.methods import TAKE_OVER
from potluck.errors import CallError, EngineError, MovedError, NodeLostError, PotluckError
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


class PlayedLinks:
    """A node's membership: sees and calls those that a link leads to."""

    def __init__(self, cluster: PlayedCluster, node_id: NodeId) -> None:
        self.node_id = node_id
        self._cluster = cluster

    def nodes(self) -> frozenset[NodeId]:
        return self._cluster.seen_by(self.node_id)

    async def call(
        self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float = 5.0
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                aclosing(self.call_stream(node_id, method, payload)) as parts,
            ):
                return await anext(parts)
        except TimeoutError as error:
            raise CallError(f"node {node_id} did not answer {method!r}") from error

    async def call_stream(
        self, node_id: NodeId, method: str, payload: bytes, *, silence_seconds: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        cluster, own = self._cluster, self.node_id
        lost = NodeLostError(node_id, f"node {node_id} was lost")
        if not cluster.reaches(own, node_id):
            raise lost
        self._cluster.calls.append((own, node_id, method))
        handler = await cluster.nodes[node_id].methods.find(method)
        async with aclosing(handler(own, payload)) as parts:
            while True:
                next_part = asyncio.ensure_future(anext(parts, None))
                is_cut = asyncio.ensure_future(cluster.is_cut(own, node_id))
                both: set[asyncio.Future[Any]] = {next_part, is_cut}
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if is_cut.done():
                        raise lost
                    part = next_part.result()
                except PotluckError as error:
                    if isinstance(error, CallError):
                        raise
                    raise CallError(error.message, hint=error.hint) from error
                except KeyError as error:  # a defect, of which the caller hears no details
                    raise CallError(f"{method!r} failed on the node called") from error
                finally:
                    for task in both:
                        task.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
                if part is None:
                    return
                yield part


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
        """As ``coordinator.claiming`` and ``coordinator.machine`` do it, in short."""
        loop = asyncio.get_running_loop()
        links, above = self._node.links, self.record.epoch
        alone_since: float | None = None
        while True:
            epoch = Epoch(number=above.number + 1, coordinator=links.node_id)
            claim = Claim(deployment=self.record.deployment, epoch=epoch, known=self.record.epoch)
            answers = await asyncio.gather(
                *(self._ask(each, claim) for each in links.nodes() | {links.node_id})
            )
            granted = {node for node, answer in answers if answer and answer.is_granted}
            refusals = [answer for _, answer in answers if answer and not answer.is_granted]
            above = max([above, *(each.highest for each in refusals if each.highest)])
            holders = set(self.record.holders)
            has_quorum = 2 * len(holders & granted) >= len(holders)
            now = loop.time()
            alone_since = None if has_quorum or refusals else alone_since or now
            is_given_up = alone_since is not None and now - alone_since > MINORITY_SECONDS
            if links.node_id in granted and (has_quorum or is_given_up):
                self.record = msgspec.structs.replace(
                    self.record, epoch=epoch, revision=0, has_quorum=has_quorum,
                    holders=tuple(sorted(granted)) if has_quorum else self.record.holders,
                )  # fmt: skip
                self._say(state=DeploymentState.READY, successor=None)
                self._ready.set()
                return
            await asyncio.sleep(0.05)

    async def _ask(self, node: NodeId, claim: Claim) -> tuple[NodeId, ClaimAnswer | None]:
        try:
            answer = await self._node.links.call(
                node, "deployment.claim", encode(claim), timeout_seconds=1
            )
            return node, decode(answer, ClaimAnswer)
        except CallError:
            return node, None


class _NoStages:
    async def supersede(self, *_: object) -> None:
        return

    async def stop(self, *_: object) -> None:
        return

    async def coordinator_left(self, *_: object) -> None:
        return


class PlayedNode:
    """One agent's coordination. ``is_readable``: it has the models' files."""

    def __init__(self, cluster: PlayedCluster, node_id: NodeId) -> None:
        self.node_id = node_id
        self.links = PlayedLinks(cluster, node_id)
        self.background = Background()
        self.methods = MethodTable()
        self.is_readable = True
        self.continuations: list[Continuation] = []
        self.num_received = 0
        membership = cast(Any, self.links)
        self.coordination = Coordination(
            membership,
            cast(Any, None),
            cast(Any, _NoStages()),
            cast(Any, None),
            listen_host="127.0.0.1",
            step_seconds=1.0,
            cost_of=cast(Any, None),
            spawn=self.background.spawn,
        )
        cluster.monkeypatch.setattr(self.coordination.planner, "read", self._read)
        cluster.monkeypatch.setattr(self.coordination, "_make", self._make)
        views = CoordinatorViews(membership)
        clock = asyncio.get_running_loop().time
        self.relaying = Relaying(membership, self.coordination, views, clock=clock)
        self.takeovers = Takeovers(
            membership, self.coordination, views, spawn=self.background.spawn, clock=clock
        )
        self.leaving = Leaving(
            membership, self.coordination, self.takeovers, self.relaying, clock=clock
        )
        DeploymentCalls(self.coordination, self.takeovers).register(self.methods)
        SequenceCalls(membership, self.coordination).register(self.methods)
        self.background.spawn(self.takeovers.run())

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
    """Nodes ``a``, ``b``, … that all see each other; ``link`` changes that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        self.monkeypatch = monkeypatch
        self.calls: list[tuple[NodeId, NodeId, str]] = []
        self._cut: set[frozenset[NodeId]] = set()
        self._dead: set[NodeId] = set()
        self._changed = asyncio.Event()
        monkeypatch.setattr(takeover, "_SETTLE_SECONDS", 0.01)
        monkeypatch.setattr(takeover, "_POLL_SECONDS", 0.02)
        monkeypatch.setattr(takeover, "_REST_SECONDS", 0.05)
        monkeypatch.setattr(takeover, "TURN_SECONDS", TURN_SECONDS)
        hasty = replace(TAKE_OVER, timeout_seconds=2.0)
        monkeypatch.setattr(takeover, "TAKE_OVER", hasty)
        self.nodes: dict[NodeId, PlayedNode] = {}
        for name in names:
            self.nodes[NodeId(name * 16)] = PlayedNode(self, NodeId(name * 16))

    def __getitem__(self, name: str) -> PlayedNode:
        return self.nodes[NodeId(name * 16)]

    def reaches(self, one: NodeId, other: NodeId) -> bool:
        if one in self._dead or other in self._dead:
            return False
        return one == other or frozenset({one, other}) not in self._cut

    def seen_by(self, node: NodeId) -> frozenset[NodeId]:
        return frozenset(each for each in self.nodes if each != node and self.reaches(node, each))

    async def is_cut(self, one: NodeId, other: NodeId) -> None:
        """Return when one does not reach the other."""
        while self.reaches(one, other):
            await self._changed.wait()

    def cut(self, *pairs: str) -> None:
        """Cut links, each named by its two ends."""
        self._change(lambda: self._cut.update(map(_pair, pairs)))

    def heal(self, *pairs: str) -> None:
        """Mend those links, or all of them."""
        healed = set(map(_pair, pairs)) or set(self._cut)
        self._change(lambda: self._cut.difference_update(healed))

    async def kill(self, name: str) -> None:
        """End an agent."""
        node = self[name]
        self._change(lambda: self._dead.add(node.node_id))
        await self._end(node)

    async def deploy(self, coordinator: str, record: DeploymentRecord) -> None:
        """Have everybody know of a deployment that ``coordinator`` serves."""
        node = self[coordinator]
        holders = tuple(sorted(self.nodes))
        first = changed(
            record,
            epoch=Epoch(number=0, coordinator=node.node_id),
            holders=holders,
            state=DeploymentState.LOADING,
        )
        deployment = PlayedDeployment(node, first, node.coordination.records.publish)
        node.coordination.coordinated[record.deployment] = cast(Any, deployment)
        deployment.resume()
        await self.settle(coordinator, deployment=record.deployment)

    async def settle(self, coordinator: str, *, deployment: str = "d", within: float = 3.0) -> None:
        """Wait until every node that lives agrees that this one coordinates, and serves."""
        wanted = NodeId(coordinator * 16)
        await reach(
            lambda: all(
                (record := node.coordination.records.registry.find(deployment)) is not None
                and record.epoch.coordinator == wanted
                and record.is_ready
                for node in self.nodes.values()
                if node.node_id not in self._dead
            ),
            within=within,
            what=f"all agree that node {coordinator} serves",
        )

    def coordinators(self) -> list[str]:
        """Those that run a deployment whose epoch they have taken."""
        return [
            node.node_id[0]
            for node in self.nodes.values()
            if node.node_id not in self._dead
            and (deployment := node.deployment()) is not None
            and deployment.record.epoch.coordinator == node.node_id
        ]

    async def end(self) -> None:
        for node in self.nodes.values():
            await self._end(node)

    async def _end(self, node: PlayedNode) -> None:
        for deployment in node.coordination.coordinated.values():
            await deployment.close()
        await node.background.close()

    def _change(self, change: Callable[[], object]) -> None:
        before = {node: self.seen_by(node) for node in self.nodes}
        change()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for node_id, node in self.nodes.items():
            if node_id in self._dead:
                continue
            after = self.seen_by(node_id)
            for gone in sorted(before[node_id] - after):
                node.coordination.left(gone)
            for new in sorted(after - before[node_id]):
                node.takeovers.joined(new)
                node.coordination.joined(new)


def _pair(names: str) -> frozenset[NodeId]:
    return frozenset(NodeId(name * 16) for name in names)
