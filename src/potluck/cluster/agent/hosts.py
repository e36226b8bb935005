"""Descriptions of nodes for checking wheels (``potluck wheel check --cluster``).

A description is a JSON document of schema ``potluck.host/1``, of up to 64 KB. It is made on request
and passed on unchanged: its reader validates it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from potluck.cluster.background import SharedCalls, cancel_all
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.methods import HOST
from potluck.errors import CallError
from potluck.probe.node_host import describe_node
from potluck.types.cluster import NodeId
from potluck.types.hardware import ProbeReport

_MAX_CONCURRENT_CALLS = 16
"""The number of nodes asked at one time, so that answers do not pile up in an agent's memory."""


class HostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer: its description, or the problem that prevented it."""

    node_id: NodeId
    description: str = ""
    problem: str = ""


class OwnHost:
    """Describes this node, again for each request, since system updates change it.

    For use in the agent's event loop. ``hardware`` returns what the probe knows so far. Files are
    read by one child process at a time, whose result is shared by all concurrent requests.
    """

    def __init__(self, hardware: Callable[[], ProbeReport]) -> None:
        self._hardware = hardware
        self._calls = SharedCalls[bytes]()

    async def description(self) -> bytes:
        """Return the document. Raises ``CallError`` if the machine cannot be described."""
        return await self._calls.call(lambda: asyncio.to_thread(_description, self._hardware()))


def _description(hardware: ProbeReport) -> bytes:
    described = describe_node(hardware)
    if described.document is None:
        raise CallError(f"cannot describe this machine: {described.problem}")
    return msgspec.json.encode(described.document)


async def ask_hosts(membership: Membership) -> AsyncGenerator[HostAnswer, None]:
    """Yield the answers of all nodes, including this one, as they arrive."""
    turns = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)

    async def ask(node: NodeId) -> HostAnswer:
        async with turns:
            try:
                answer = await HOST.call(membership, node, None)
            except CallError as error:
                return HostAnswer(node_id=node, problem=error.message)
        return HostAnswer(node_id=node, description=answer.decode("utf-8", errors="replace"))

    nodes = sorted(membership.reachable_nodes())
    asking = [asyncio.create_task(ask(node)) for node in nodes]
    try:
        for answered in asyncio.as_completed(asking):
            yield await answered
    finally:
        await cancel_all(asking)
