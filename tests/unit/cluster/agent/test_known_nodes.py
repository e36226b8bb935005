"""Names and addresses of nodes that have joined, also when they are gone."""

from __future__ import annotations

import asyncio
import io
import logging
from dataclasses import dataclass, field
from typing import cast

from support.cluster.calls import A, B, C
from support.cluster.node_reports import node_report

from potluck.cluster.agent.known_nodes import KnownNodes, NamesInLog
from potluck.cluster.network.membership import Membership, parse_address
from potluck.cluster.wire.calls import encode
from potluck.errors import NodeLostError
from potluck.host.uname import host_name
from potluck.types.cluster import NodeId


@dataclass
class Members:
    """A membership whose members answer with reports, except ``C``."""

    node_id: NodeId = A
    addresses: dict[NodeId, str] = field(default_factory=lambda: {B: "10.0.0.2:7333"})

    async def call(
        self, node: NodeId, method: str, payload: bytes, *, timeout_seconds: float
    ) -> bytes:
        assert method == "node.report"
        if node == C:
            raise NodeLostError(node, "it is gone")
        return encode(node_report(node, name="attic", address=self.addresses[node]))


def test_names_and_addresses_of_nodes_that_joined() -> None:
    async def body() -> None:
        members = Members()
        async with asyncio.TaskGroup() as tasks:
            known = KnownNodes(cast(Membership, members), spawn=tasks.create_task)
            known.joined(B)
            known.joined(C)
        assert known.addresses() == (parse_address("10.0.0.2:7333"),)
        assert known.names.of(A) == host_name()
        assert known.names.in_text(f"node {B} and node {C}") == f"node attic and node {C}"
        members.addresses[B] = "10.0.0.9:7333"
        async with asyncio.TaskGroup() as tasks:
            known._spawn = tasks.create_task
            known.joined(B)
        assert known.addresses() == (parse_address("10.0.0.9:7333"),)

    asyncio.run(body())


def test_a_log_calls_nodes_by_their_names() -> None:
    async def body() -> str:
        async with asyncio.TaskGroup() as tasks:
            known = KnownNodes(cast(Membership, Members()), spawn=tasks.create_task)
            known.joined(B)
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        handler.addFilter(NamesInLog(known))
        logger = logging.Logger("test")
        logger.addHandler(handler)
        logger.warning("node %s is 100 %% lost after %d s", B, 3)
        return text.getvalue()

    assert asyncio.run(body()) == "node attic is 100 % lost after 3 s\n"
