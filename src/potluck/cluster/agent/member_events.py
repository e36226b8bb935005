"""Queues the membership's events until the agent is ready to handle them.

The membership exists before the parts of the agent that handle joining and leaving nodes, and
depends on none of them: it puts its events here, and one task handles them in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from potluck.cluster.network.membership import Observer
from potluck.errors import PotluckError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

OnMember = Callable[[NodeId], None]


class MemberEvents:
    """The queue. For use in the agent's event loop.

    ``incompatible`` has the wire versions of nodes that cannot join. ``failed`` gets an exception
    if this node can no longer be a member and its agent must stop.
    """

    def __init__(self) -> None:
        self.incompatible: dict[NodeId, int] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._comings: asyncio.Queue[tuple[NodeId, bool]] = asyncio.Queue()

    def observer(self) -> Observer:
        """Return the callbacks for the membership."""
        return Observer(
            on_join=self._joined,
            on_leave=self._left,
            on_incompatible=self._incompatible_seen,
            on_conflict=self.has_to_leave,
        )

    async def run(self, *, joined: Sequence[OnMember], left: Sequence[OnMember]) -> None:
        """Pass on all joins and leaves, in order, until cancelled."""
        while True:
            node, is_there = await self._comings.get()
            try:
                for handle in joined if is_there else left:
                    handle(node)
            except Exception:  # noqa: BLE001 - later events must still be handled
                _log.exception("could not handle a change of node %s", node)

    def _joined(self, node: NodeId) -> None:
        self.incompatible.pop(node, None)
        self._comings.put_nowait((node, True))

    def _left(self, node: NodeId) -> None:
        self._comings.put_nowait((node, False))

    def _incompatible_seen(self, node: NodeId, version: int) -> None:
        self.incompatible[node] = version

    def has_to_leave(self, error: PotluckError) -> None:
        """Stop the agent with an error for the user."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # not yet awaited while the agent opens
