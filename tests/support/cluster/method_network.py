"""Nodes in one process, of which each calls the others' tables of methods directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from potluck.cluster.membership import Membership, MethodTable
from potluck.errors import NodeLostError
from potluck.types.cluster import NodeId


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
