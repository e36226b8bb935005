"""Memberships that are played by the test, and a deployment's record.

A ``PlayedMembership`` answers itself; in a ``MethodNetwork`` each node calls the others' methods.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from msgspec.structs import replace

from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import ClaimAnswer, StageEnds, Unreachable, encode
from potluck.errors import CallError, NodeLostError
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.deployment import (
    DeploymentRecord,
    DeploymentState,
    DeploymentStatus,
    FilesRecord,
    ModelFacts,
    PlanRecord,
    StageRecord,
)
from potluck.types.deployment_spec import DeploymentSpec
from potluck.types.memory import MemoryPlan

A, B, C = NodeId("a" * 16), NodeId("b" * 16), NodeId("c" * 16)


@dataclass(slots=True)
class PlayedMembership:
    """Knows who is there, and notes what is asked of them; everything is answered with nothing,
    but for ``crashes`` of stages that are stopped, and for whom nodes find ``unreachable``.

    ``answers`` has what nodes answer to other methods, by the node and the payload.
    """

    node_id: NodeId = A
    others: set[NodeId] = field(default_factory=set)
    calls: list[tuple[NodeId, str, bytes]] = field(default_factory=list)
    crashes: tuple[str, ...] = ()
    unreachable: dict[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    answers: Mapping[str, Callable[[NodeId, bytes], bytes | Awaitable[bytes]]] = field(
        default_factory=dict
    )

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self.others)

    def reachable_nodes(self) -> frozenset[NodeId]:
        return self.nodes() | {self.node_id}

    async def call(
        self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float = 5.0
    ) -> bytes:
        if node_id not in self.others | {self.node_id}:
            raise NodeLostError(node_id, f"node {node_id} is not in the cluster")
        self.calls.append((node_id, method, payload))
        if method in self.answers:
            answer = self.answers[method](node_id, payload)
            return answer if isinstance(answer, bytes) else await answer
        if method == "deployment.claim":
            return encode(ClaimAnswer(is_granted=True))
        if method == "stage.end":
            return encode(StageEnds(crashes=self.crashes))
        if method == "link.check":
            return encode(Unreachable(nodes=self.unreachable.get(node_id, ())))
        return b""

    def called(self, method: str) -> list[NodeId]:
        return [node for node, each, _ in self.calls if each == method]


def late(
    num_unanswered: int, answer: Callable[[NodeId, bytes], bytes]
) -> Callable[[NodeId, bytes], bytes]:
    """Return ``answer`` for ``PlayedMembership.answers`` that leaves so many calls unanswered."""
    left = iter(range(num_unanswered))

    def answer_late(node: NodeId, payload: bytes) -> bytes:
        if next(left, None) is not None:
            raise CallError("it did not answer")
        return answer(node, payload)

    return answer_late


def a_plan(**changes: int) -> MemoryPlan:
    """A stage of 600 bytes of weights; other parts as given."""
    nothing = MemoryPlan(
        weights=(("bf16", 600),), cache_bytes=0, rope_bytes=0, scratch_bytes=0, staging_bytes=0
    )
    return dataclasses.replace(nothing, **changes)  # type: ignore[arg-type]


def stage_on(node_id: NodeId) -> StageRecord:
    return StageRecord(
        node_id=node_id,
        unit_id=UnitId("cpu/native"),
        start_layer=0,
        end_layer=4,
        memory=a_plan(),
    )


def a_record(
    number: int = 0,
    coordinator: NodeId = A,
    *,
    state: DeploymentState = DeploymentState.READY,
    stages: tuple[StageRecord, ...] = (),
) -> DeploymentRecord:
    return DeploymentRecord(
        deployment=DeploymentId("d"),
        epoch=Epoch(number=number, coordinator=coordinator),
        revision=0,
        model_id="demo",
        created=0,
        spec=DeploymentSpec(model="demo"),
        facts=ModelFacts(num_layers=4),
        status=DeploymentStatus(
            state=state, context_tokens=64, cache_tokens=256, plan=PlanRecord(stages=stages)
        ),
    )


def changed(record: DeploymentRecord, **changes: object) -> DeploymentRecord:
    """The record with fields changed, in whichever of its parts they are.

    A field that was asked for and is in force is changed where it is in force.
    """
    parts: dict[str, dict[str, object]] = {}
    kinds = {
        "record": DeploymentRecord,
        "plan": PlanRecord,
        "files": FilesRecord,
        "status": DeploymentStatus,
        "facts": ModelFacts,
        "spec": DeploymentSpec,
    }
    for name, value in changes.items():
        part = next(part for part, kind in kinds.items() if name in kind.__struct_fields__)
        parts.setdefault(part, {})[name] = value
    status = replace(
        record.status,
        plan=replace(record.status.plan, **parts.get("plan", {})),
        files=replace(record.status.files, **parts.get("files", {})),
    )
    whole = {
        "spec": replace(record.spec, **parts.get("spec", {})),
        "facts": replace(record.facts, **parts.get("facts", {})),
        "status": replace(status, **parts.get("status", {})),
    }
    return replace(record, **whole, **parts.get("record", {}))


class MethodCall(NamedTuple):
    caller: NodeId
    node_id: NodeId
    method: str
    payload: bytes
    limit_seconds: float | None


@dataclass
class MethodNetwork:
    """Every node that has a table is in the cluster. ``calls`` are all that were made."""

    tables: dict[NodeId, MethodTable] = field(default_factory=dict)
    calls: list[MethodCall] = field(default_factory=list)

    def member(self, node_id: NodeId) -> Membership:
        """Return the network as a node sees it."""
        return cast(Membership, _Member(self, node_id))


@dataclass
class _Member:
    network: MethodNetwork
    node_id: NodeId

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self.network.tables) - {self.node_id}

    def reachable_nodes(self) -> frozenset[NodeId]:
        return self.nodes() | {self.node_id}

    async def call(
        self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float
    ) -> bytes:
        async with (
            asyncio.timeout(timeout_seconds),
            aclosing(self._parts(node_id, method, payload, timeout_seconds)) as parts,
        ):
            return await anext(parts)

    def call_stream(
        self, node_id: NodeId, method: str, payload: bytes, *, silence_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        return self._parts(node_id, method, payload, silence_seconds)

    async def _parts(
        self, node_id: NodeId, method: str, payload: bytes, limit_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        call = MethodCall(self.node_id, node_id, method, payload, limit_seconds)
        self.network.calls.append(call)
        if node_id not in self.network.tables:
            raise NodeLostError(node_id, f"node {node_id} is not in the cluster")
        handler = await self.network.tables[node_id].find(method)
        async with aclosing(handler(self.node_id, payload)) as parts:
            async for part in parts:
                yield part
