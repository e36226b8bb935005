"""Whether it is this node that is cut off, when many others vanish at once.

A node that was suspended, or whose cable was pulled, sees all others leave. If it then took their
deployments over it would disturb, when it is back, what went on without it. So a node that most of
the cluster has just left does nothing of the kind for a while. Where two nodes are all there is
nobody can tell; neither waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from potluck.types.cluster import NodeId

WAIT_SECONDS = 5.0
"""After a suspension the links stand again within a second or two."""

_MORE_SECONDS = 0.5
"""Departures of one cause come one by one: links are cut off within a keep-alive of each other,
which is a quarter of the lease."""

_NEWS_SECONDS = 1.0
"""What a node that was away waits for the others, and what they have to tell, to arrive."""

_POLL_SECONDS = 0.1


class Isolation:
    """Fed with departures by the agent; for use in its loop. ``alive`` gives the other members."""

    def __init__(
        self,
        alive: Callable[[], frozenset[NodeId]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._alive = alive
        self._clock = clock
        self._left_at: dict[NodeId, float] = {}

    def left(self, node_id: NodeId) -> None:
        """A member is gone."""
        self._left_at[node_id] = self._clock()

    @property
    def is_likely(self) -> bool:
        """Whether more nodes have left of late than there are, this one included."""
        alive = self._alive()
        since = self._clock() - WAIT_SECONDS
        self._left_at = {
            node: at for node, at in self._left_at.items() if at > since and node not in alive
        }
        return len(self._left_at) > len(alive) + 1

    async def over(self) -> None:
        """Return when it is clear that this node is not cut off, or has been for long.

        That is at once where nobody left lately; otherwise after half a second, or when others are
        back and have had time to speak, or are given up.
        """
        last = max(self._left_at.values(), default=float("-inf"))
        await asyncio.sleep(max(0.0, last + _MORE_SECONDS - self._clock()))
        if not self.is_likely:
            return
        while self.is_likely:
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(_NEWS_SECONDS)
