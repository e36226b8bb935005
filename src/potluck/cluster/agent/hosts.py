"""The nodes as builds see them (``potluck wheel check --cluster``): this one, and all when asked.

A description is a document of schema ``potluck.host/1``, in JSON, of up to 64 KB. It is made when
somebody wants it, and passed on as it is: who reads it checks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from potluck.cluster.membership import Membership
from potluck.errors import CallError
from potluck.probe.node_host import describe_node
from potluck.types.cluster import NodeId
from potluck.types.hardware import ProbeReport

_DESCRIBE_SECONDS = 30.0
"""More than a node takes until it gives up (``probe.node_host``)."""

_MAX_ASKED = 16
"""Nodes that are asked at a time, so that answers do not pile up in an agent's memory."""


class HostAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node answered: its description, or the problem because of which there is none."""

    node_id: NodeId
    description: str = ""
    problem: str = ""


class OwnHost:
    """The description of this node, made anew when it is asked for: updates change it.

    For use in the agent's loop. ``hardware`` is what the probe knows so far. Files are read by one
    child process at a time: all who ask meanwhile get the same answer.
    """

    def __init__(self, hardware: Callable[[], ProbeReport]) -> None:
        self._hardware = hardware
        self._describing: asyncio.Future[bytes] | None = None

    async def description(self) -> bytes:
        """The document. Raises ``CallError`` where the machine cannot be described."""
        if self._describing is None:
            making = asyncio.to_thread(_description, self._hardware())
            self._describing = asyncio.ensure_future(making)
            self._describing.add_done_callback(self._described)
        return await asyncio.shield(self._describing)

    def _described(self, describing: asyncio.Future[bytes]) -> None:
        self._describing = None
        if not describing.cancelled():
            describing.exception()  # whoever asked may be gone, and it is no news to asyncio


def _description(hardware: ProbeReport) -> bytes:
    described = describe_node(hardware)
    if described.document is None:
        raise CallError(f"it cannot be described: {described.problem}")
    return msgspec.json.encode(described.document)


async def ask_hosts(membership: Membership) -> AsyncGenerator[HostAnswer, None]:
    """What every node says, this one too, as the answers come."""
    turns = asyncio.Semaphore(_MAX_ASKED)

    async def ask(node: NodeId) -> HostAnswer:
        async with turns:
            try:
                answer = await membership.call(
                    node, "node.host", b"", timeout_seconds=_DESCRIBE_SECONDS
                )
            except CallError as error:
                return HostAnswer(node_id=node, problem=error.message)
        return HostAnswer(node_id=node, description=answer.decode("utf-8", errors="replace"))

    nodes = sorted(membership.nodes() | {membership.node_id})
    asking = [asyncio.create_task(ask(node)) for node in nodes]
    try:
        for answered in asyncio.as_completed(asking):
            yield await answered
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
