"""The latest reports of the nodes, for views that must not wait for the slowest one.

A node that was just disconnected, or whose disk is slow, delays nobody who looks at the cluster:
its last report is shown until the call to it times out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from potluck.errors import PotluckError
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport

SHOWN_SECONDS = 0.5
"""How long a view waits for new reports: healthy nodes answer within milliseconds."""


class LatestReports:
    """The latest reports. For use in one event loop. ``ask`` returns a node's report or raises
    ``PotluckError`` in a bounded time.
    """

    def __init__(
        self,
        ask: Callable[[NodeId], Awaitable[NodeReport]],
        *,
        shown_seconds: float = SHOWN_SECONDS,
    ) -> None:
        self._ask = ask
        self._shown_seconds = shown_seconds
        self._reports: dict[NodeId, NodeReport | None] = {}
        self._asking: dict[NodeId, asyncio.Task[None]] = {}

    async def refresh(self, nodes: Collection[NodeId]) -> None:
        """Ask ``nodes``, and wait briefly for their answers; later ones count for the next view.

        A node that has not answered an earlier call is not asked again.
        """
        self._reports = {node: each for node, each in self._reports.items() if node in nodes}
        for node in nodes:
            if node not in self._asking:
                asking = asyncio.create_task(self._learn(node))
                self._asking[node] = asking
                asking.add_done_callback(lambda _, node=node: self._asking.pop(node))  # type: ignore[misc]
        waiting = [self._asking[node] for node in nodes]
        if waiting:
            await asyncio.wait(waiting, timeout=self._shown_seconds)

    def reports(self, alive: Collection[NodeId]) -> list[NodeReport]:
        """Return the last reports of those of ``alive`` that have answered, by node id."""
        known = [self._reports.get(node) for node in sorted(alive)]
        return [report for report in known if report is not None]

    def silent(self, alive: Collection[NodeId]) -> list[NodeId]:
        """Return those of ``alive`` that were asked and have not answered."""
        queried = {*self._reports, *self._asking}
        return [
            node for node in sorted(alive) if node in queried and self._reports.get(node) is None
        ]

    async def _learn(self, node: NodeId) -> None:
        try:
            self._reports[node] = await self._ask(node)
        except PotluckError:
            self._reports[node] = None
