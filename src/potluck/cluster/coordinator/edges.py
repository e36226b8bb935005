"""The coordinator's two edges: to the first stage, and from the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from potluck.cluster.edges.connect import connect_edge
from potluck.cluster.edges.edge import EdgeLimits, IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Scope
from potluck.cluster.edges.hello import Hello
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.trust.credentials import Credentials
from potluck.errors import EdgeError
from potluck.types.cluster import DeploymentId, Epoch, NodeId

_SECONDS = 35.0

_Edge = TypeVar("_Edge", OutgoingEdge, IncomingEdge)


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
    try:
        listener = EdgeListener(listen_host, credentials)
    except OSError as error:
        raise EdgeError(last.node_id, f"cannot listen for it: {error.strerror}") from error
    connecting = _in_thread(
        lambda: connect_edge(
            (first.host, first.port),
            credentials,
            Hello(scope=scope, index=0),
            peer=first.node_id,
            limits=limits,
            timeout_seconds=_SECONDS,
        )
    )
    accepting = _in_thread(
        lambda: listener.accept(
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
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        _close_when_open(connecting)
        _close_when_open(accepting)
        raise
    finally:
        listener.close()  # ends accept


def _in_thread(open_edge: Callable[[], _Edge]) -> asyncio.Future[_Edge]:
    """Open an edge on a thread that nobody has to wait for, not even the end of the process.

    Where the future was cancelled the edge is closed as soon as it is open.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[_Edge] = loop.create_future()

    def settle(edge: _Edge | None, error: Exception | None) -> None:
        if opened.cancelled():
            if edge is not None:
                edge.close()
        elif error is not None:
            opened.set_exception(error)
        elif edge is not None:
            opened.set_result(edge)

    def run() -> None:
        edge, error = None, None
        try:
            edge = open_edge()
        except Exception as failure:  # noqa: BLE001 - told to whoever waits, whatever it is
            error = failure
        try:
            loop.call_soon_threadsafe(settle, edge, error)
        except RuntimeError:  # the loop is closed
            if edge is not None:
                edge.close()

    threading.Thread(target=run, name="open-edge", daemon=True).start()
    return opened


def _close_when_open(opening: asyncio.Future[_Edge]) -> None:
    """Nobody wants this edge any more."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        opening.result().close()
