"""Which nodes count as holders, whose agreement the next epoch of a deployment needs."""

from __future__ import annotations

import asyncio

from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.membership import Membership
from potluck.types.cluster import NodeId

SETTLED_SECONDS = 3.0
"""The time after the lease within which a partitioned node sees all of its links as down."""


class Holders:
    """Keeps ``DeploymentRecord.holders`` up to date. For use in the agent's loop."""

    def __init__(self, membership: Membership, published: PublishedRecord) -> None:
        self._membership = membership
        self._published = published
        self._settling: asyncio.TimerHandle | None = None

    def node_joined(self) -> None:
        """Count a node that has joined as a holder.

        Otherwise the few nodes that first knew of the deployment could outvote all that joined
        later.
        """
        record = self._published.record
        there = self._membership.nodes() | {*record.holders, self._membership.node_id}
        is_new = bool(record.holders) and there != {*record.holders}
        if self._published.is_own and record.has_quorum and is_new:
            self._published.count_holders(sorted(there))

    def node_left(self, node_id: NodeId) -> None:
        """Stop counting a node that has left, once it is clear that most holders are still
        reachable.

        Otherwise nodes that joined and left again could outvote all that are present. A partitioned
        node sees the others leave one by one, and must not mistake the first for the only one.
        """
        if node_id in self._published.record.holders:
            self.close()
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(SETTLED_SECONDS, self._forget)

    def close(self) -> None:
        """Stop removing holders. Idempotent."""
        if self._settling is not None:
            self._settling.cancel()

    def _forget(self) -> None:
        record = self._published.record
        there = self._membership.nodes() | {self._membership.node_id}
        left = [holder for holder in record.holders if holder in there]
        are_most = len(left) < len(record.holders) < 2 * len(left)
        if self._published.is_own and record.has_quorum and are_most:
            self._published.count_holders(left)
