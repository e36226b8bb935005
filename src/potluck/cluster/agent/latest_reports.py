"""What the nodes last said of themselves, for views that must not wait for the slowest of them.

A node that was cut off a moment ago, or whose disk is slow, holds up nobody who looks at the
cluster: it is shown as it last was until its question times out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from potluck.errors import PotluckError
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport

SHOWN_SECONDS = 0.5
"""How long a view waits for news: healthy nodes answer in a few milliseconds."""


class LatestReports:
    """For use in one loop. ``ask`` gets a node's report, or raises ``PotluckError`` in time."""

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
        """Ask ``nodes``, and wait a moment for their answers; later ones count for the next view.

        A node that has not answered an earlier question is not asked again meanwhile.
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
        """What those of ``alive`` that answer said last, by node id."""
        known = [self._reports.get(node) for node in sorted(alive)]
        return [report for report in known if report is not None]

    def silent(self, alive: Collection[NodeId]) -> list[NodeId]:
        """Those of ``alive`` that were asked and are not known to answer."""
        asked = {*self._reports, *self._asking}
        return [node for node in sorted(alive) if node in asked and self._reports.get(node) is None]

    async def _learn(self, node: NodeId) -> None:
        try:
            self._reports[node] = await self._ask(node)
        except PotluckError:
            self._reports[node] = None
