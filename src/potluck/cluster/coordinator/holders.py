"""Which nodes count among those who agree to a deployment's next epoch."""

from __future__ import annotations

import asyncio

from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.membership import Membership
from potluck.types.cluster import NodeId

SETTLED_SECONDS = 3.0
"""Beyond the lease, within which all links of a node that is cut off are seen to be."""


class Holders:
    """Keeps ``DeploymentRecord.holders`` up to date. For use in the agent's loop."""

    def __init__(self, membership: Membership, published: PublishedRecord) -> None:
        self._membership = membership
        self._published = published
        self._settling: asyncio.TimerHandle | None = None

    def node_joined(self) -> None:
        """Have a node that joins count.

        Otherwise the few that knew of the deployment first could outvote all that came later.
        """
        record = self._published.record
        there = self._membership.nodes() | {*record.holders, self._membership.node_id}
        is_new = bool(record.holders) and there != {*record.holders}
        if self._published.is_own and record.has_quorum and is_new:
            self._published.say(holders=tuple(sorted(there)))

    def node_left(self, node_id: NodeId) -> None:
        """Have a node that left count no longer, once it is clear that most are still in reach.

        Otherwise those that joined and left again could outvote all that are there. A node that is
        cut off sees the others leave one by one, and must not take the first for the only one.
        """
        if node_id in self._published.record.holders:
            self.close()
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(SETTLED_SECONDS, self._forget)

    def close(self) -> None:
        """Have no more nodes forgotten. Idempotent."""
        if self._settling is not None:
            self._settling.cancel()

    def _forget(self) -> None:
        record = self._published.record
        there = self._membership.nodes() | {self._membership.node_id}
        left = [holder for holder in record.holders if holder in there]
        are_most = len(left) < len(record.holders) < 2 * len(left)
        if self._published.is_own and record.has_quorum and are_most:
            self._published.say(holders=tuple(left))
