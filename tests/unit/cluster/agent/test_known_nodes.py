"""Names and addresses of nodes that have joined, also when they are gone."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import cast

from support.cluster.calls import A, B, C, PlayedMembership, late
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.known_nodes import KnownNodes, NamesInLog
from potluck.cluster.network.membership import Membership, parse_address
from potluck.cluster.wire.calls import encode
from potluck.host.uname import host_name
from potluck.types.cluster import NodeId


def members_at(addresses: dict[NodeId, str]) -> Membership:
    """Return a membership whose members answer with reports of their addresses."""

    def report(node: NodeId, _: bytes) -> bytes:
        return encode(node_report(node, name="attic", address=addresses[node]))

    played = PlayedMembership(others=set(addresses), answers={"node.report": report})
    return cast(Membership, played)


def test_names_and_addresses_of_nodes_that_joined() -> None:
    async def body() -> None:
        addresses = {B: "10.0.0.2:7333"}
        async with asyncio.TaskGroup() as tasks:
            known = KnownNodes(members_at(addresses), spawn=tasks.create_task)
            known.joined(B)
            known.joined(C)
        assert known.addresses() == (parse_address("10.0.0.2:7333"),)
        assert known.names.of(A) == host_name()
        assert known.names.in_text(f"node {B} and node {C}") == f"node attic and node {C}"
        addresses[B] = "10.0.0.9:7333"
        async with asyncio.TaskGroup() as tasks:
            known._spawn = tasks.create_task
            known.joined(B)
        assert known.addresses() == (parse_address("10.0.0.9:7333"),)

    asyncio.run(body())


def test_a_node_that_answers_late_is_known_by_its_name() -> None:
    def report(node: NodeId, _: bytes) -> bytes:
        return encode(node_report(node, name="attic", address="10.0.0.2:7333"))

    async def body() -> None:
        played = PlayedMembership(others={B}, answers={"node.report": late(2, report)})
        async with asyncio.TaskGroup() as tasks:
            known = KnownNodes(cast(Membership, played), spawn=tasks.create_task)
            known.joined(B)
        assert known.names.of(B) == "attic"
        assert known.addresses() == (parse_address("10.0.0.2:7333"),)

    run_in_virtual_time(body())


def test_a_log_calls_nodes_by_their_names() -> None:
    async def body() -> str:
        async with asyncio.TaskGroup() as tasks:
            known = KnownNodes(members_at({B: ""}), spawn=tasks.create_task)
            known.joined(B)
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        handler.addFilter(NamesInLog(known))
        logger = logging.Logger("test")
        logger.addHandler(handler)
        logger.warning("node %s is 100 %% lost after %d s", B, 3)
        return text.getvalue()

    assert asyncio.run(body()) == "node attic is 100 % lost after 3 s\n"
