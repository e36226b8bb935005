"""The coordinator's two edges: to the first stage, and from the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from potluck.cluster.background import cancel_all, on_thread
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.wire.worker_messages import Peer
from potluck.errors import EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch

_SECONDS = 35.0

_Ends = dict[Hello, IncomingEdge | OutgoingEdge]


async def open_edges(
    endpoint: EdgeEndpoint,
    *,
    first: Peer,
    last: Peer,
    num_stages: int,
    deployment: DeploymentId,
    epoch: Epoch,
    limits: EdgeLimits,
    dials_last: bool = False,
    awaits_first: bool = False,
    tell_stages: Callable[[EdgeAddress], Sequence[Coroutine[object, object, None]]],
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Open both, while the stages open theirs.

    ``tell_stages`` gets the address at which stages will find the coordinator, and returns the task
    that must continue meanwhile. With ``awaits_first``, the first stage connects to the
    coordinator; with ``dials_last``, the coordinator connects to the last one. If anything fails,
    nothing stays open.
    """
    scope = Scope(deployment=deployment, epoch=epoch)
    try:
        listener = endpoint.listen()
    except OSError as error:
        raise EdgeError(last.node_id, f"cannot listen for an edge: {error.strerror}") from error
    to_first = Hello(scope=scope, index=0, is_reversed=awaits_first)
    from_last = Hello(scope=scope, index=num_stages, is_reversed=dials_last)
    awaited = {
        hello: stage.node_id
        for hello, stage, is_awaited in (
            (to_first, first, awaits_first),
            (from_last, last, not dials_last),
        )
        if is_awaited
    }

    def dial(hello: Hello, stage: Peer) -> _Ends:
        end = connect_end(
            stage.address,
            endpoint.credentials,
            hello,
            peer=stage.node_id,
            limits=limits,
            timeout_seconds=_SECONDS,
        )
        return {hello: end}

    opening = [
        on_thread(partial(dial, hello, stage), name="open-edge", unwanted=_close_all)
        for hello, stage in ((to_first, first), (from_last, last))
        if hello not in awaited
    ]
    if awaited:
        accept = partial(listener.accept_ends, awaited, limits=limits, timeout_seconds=_SECONDS)
        opening.append(on_thread(accept, name="open-edge", unwanted=_close_all))
    telling = [asyncio.ensure_future(each) for each in tell_stages(listener.address)]
    try:
        await asyncio.gather(*opening, *telling)
        ends = {hello: end for each in opening for hello, end in each.result().items()}
        outgoing, incoming = ends[to_first], ends[from_last]
        if not isinstance(outgoing, OutgoingEdge) or not isinstance(incoming, IncomingEdge):
            raise EdgeError(first.node_id, "an edge was opened in the wrong direction")
        return outgoing, incoming
    except BaseException:
        await cancel_all(telling)
        for each in opening:
            _close_when_open(each)
        raise
    finally:
        listener.close()  # ends accept


def _close_when_open(opening: asyncio.Future[_Ends]) -> None:
    """Close edges that are no longer needed, once they are open."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        _close_all(opening.result())


def _close_all(ends: _Ends) -> None:
    for end in ends.values():
        end.close()
