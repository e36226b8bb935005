"""The share of the link that transfers of model files get on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from potluck.cluster.transfer.share import SLOW_BYTES_PER_SECOND
from potluck.cluster.transfer.supervisor import TransferProcess
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.speed import LinkSpeed

_SHARE_SECONDS = 0.5
"""How soon transfers are slowed down for a deployment that begins to serve."""

_NEAR_SECONDS = 0.005
"""The latency beyond which a low rate does not show that the link is slow: TCP's windows may have
limited it, or other traffic."""


def serves(
    node: NodeId, records: Iterable[DeploymentRecord], relayed: Collection[DeploymentId]
) -> bool:
    """Return whether a node serves a deployment as its coordinator, or for its own clients.

    ``relayed`` are the deployments of which it has sequences as a gateway. While a deployment is
    loading or recovering, nothing is served, and its sequences wait for the files.
    """
    return any(
        record.is_ready and (record.epoch.coordinator == node or record.deployment in relayed)
        for record in records
    )


async def share_links(
    files: TransferProcess,
    is_serving: Callable[[], bool],
    speeds: Callable[[], Iterable[LinkSpeed]],
) -> None:
    """Limit transfers while the node serves, and their queue on a slow link (``transfer.share``).

    ``speeds`` returns the measured links. The highest rate so far counts: measurements during a
    transfer only show what it leaves. Runs until it is cancelled.
    """
    published: tuple[bool, float] | None = None
    rate = 0.0
    while True:
        counting = [
            each.bytes_per_second
            for each in speeds()
            if each.latency_seconds < _NEAR_SECONDS
            or each.bytes_per_second >= SLOW_BYTES_PER_SECOND
        ]
        rate = max([rate, *counting])
        now = (is_serving(), rate)
        if now != published:
            files.set_serving(now[0], link_bytes_per_second=rate)
            published = now
        await asyncio.sleep(_SHARE_SECONDS)
