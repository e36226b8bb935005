"""What the membership reports of other nodes, kept until the agent is ready to act on it.

The membership exists before the parts of the agent that act on nodes that join and leave, and
depends on none of them: it puts its events here, and one task takes them out in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from potluck.cluster.membership import Observer
from potluck.errors import PotluckError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)


class MemberEvents:
    """For use in the agent's loop.

    ``incompatible`` has the wire versions of nodes that cannot take part. ``failed`` gets an
    exception when this node can take part no longer, and its agent has to end.
    """

    def __init__(self) -> None:
        self.incompatible: dict[NodeId, int] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._comings: asyncio.Queue[tuple[NodeId, bool]] = asyncio.Queue()

    def observer(self) -> Observer:
        """Return what the membership is to tell."""
        return Observer(
            on_join=self._joined,
            on_leave=self._left,
            on_incompatible=self._incompatible_seen,
            on_conflict=self._has_to_leave,
        )

    async def run(self, joined: Callable[[NodeId], None], left: Callable[[NodeId], None]) -> None:
        """Pass on who joined and who left, from the first on and in order, until cancelled."""
        while True:
            node, is_there = await self._comings.get()
            try:
                (joined if is_there else left)(node)
            except Exception:  # noqa: BLE001 - later events must be heard all the same
                _log.exception("the agent could not act on node %s", node)

    def _joined(self, node: NodeId) -> None:
        self.incompatible.pop(node, None)
        self._comings.put_nowait((node, True))

    def _left(self, node: NodeId) -> None:
        self._comings.put_nowait((node, False))

    def _incompatible_seen(self, node: NodeId, version: int) -> None:
        self.incompatible[node] = version

    def _has_to_leave(self, error: PotluckError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # while the agent opens, nobody looks
