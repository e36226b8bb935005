"""The coordinator's two edges: to the first stage, and from the last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from potluck.cluster.edges.connect import connect_edge
from potluck.cluster.edges.edge import EdgeLimits, IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Scope
from potluck.cluster.edges.hello import Hello
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.trust.credentials import Credentials
from potluck.types.cluster import DeploymentId, Epoch, NodeId

_SECONDS = 35.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAddress:
    """Where a loaded stage awaits its incoming edge."""

    node_id: NodeId
    host: str
    port: int


async def open_edges(
    credentials: Credentials,
    listen_host: str,
    *,
    first: StageAddress,
    last: StageAddress,
    num_stages: int,
    deployment: DeploymentId,
    epoch: Epoch,
    limits: EdgeLimits,
    tell_stages: Callable[[tuple[str, int]], Sequence[Coroutine[object, object, None]]],
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Open both, while the stages open theirs.

    ``tell_stages`` gets the address at which the last stage will find the coordinator, and returns
    what has to go on meanwhile. If any of it fails nothing stays open.
    """
    scope = Scope(deployment=deployment, epoch=epoch)
    listener = EdgeListener(listen_host, credentials)
    connecting = asyncio.create_task(
        asyncio.to_thread(
            connect_edge,
            (first.host, first.port),
            credentials,
            Hello(scope=scope, index=0),
            peer=first.node_id,
            limits=limits,
            timeout_seconds=_SECONDS,
        )
    )
    accepting = asyncio.create_task(
        asyncio.to_thread(
            listener.accept,
            Hello(scope=scope, index=num_stages),
            peer=last.node_id,
            limits=limits,
            timeout_seconds=_SECONDS,
        )
    )
    telling = [asyncio.ensure_future(each) for each in tell_stages(listener.address)]
    try:
        await asyncio.gather(connecting, accepting, *telling)
        return connecting.result(), accepting.result()
    except BaseException:
        listener.close()  # ends accept; connecting has a time limit of its own
        for task in telling:
            task.cancel()
        for edge in await asyncio.gather(connecting, accepting, *telling, return_exceptions=True):
            if isinstance(edge, OutgoingEdge | IncomingEdge):
                with contextlib.suppress(OSError):
                    edge.close()
        raise
    finally:
        listener.close()
