"""The members of a group in this process, each on a thread of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from support.cluster.edges import HELLO

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind
from potluck.cluster.worker.group import TURN_BYTES, ExchangeTotals, Group, mesh_limits
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import NodeId
from potluck.types.groups import GroupPart
from potluck.types.step import StepId

_T = TypeVar("_T")

LIMITS = EdgeLimits(max_header_bytes=5000, max_payload_bytes=5000)


def node(member: int) -> NodeId:
    """The node that a member is said to be on."""
    return NodeId(f"{member + 1:016x}")


@contextmanager
def mesh(shares: Sequence[int], spin: Callable[[int], None] | None = None) -> Iterator[list[Group]]:
    """The groups of all members, over plain sockets."""
    size = len(shares)
    with ExitStack() as stack:
        outgoing: list[dict[int, OutgoingEdge]] = [{} for _ in shares]
        incoming: list[dict[int, IncomingEdge]] = [{} for _ in shares]
        limits = mesh_limits(LIMITS)
        for one in range(size):
            for other in range(size):
                if one == other:
                    continue
                writing, reading = tcp_pair()
                sender = OutgoingEdge(writing, node(other), HELLO.scope, limits)
                receiver = IncomingEdge(reading, node(one), HELLO.scope, limits)
                sender.reserve(TURN_BYTES)
                stack.callback(sender.close)
                stack.callback(receiver.close)
                outgoing[one][other], incoming[other][one] = sender, receiver
        yield [
            Group(
                GroupPart(member=member, shares=tuple(shares)),
                outgoing[member],
                incoming[member],
                ExchangeTotals(),
                spin,
            )
            for member in range(size)
        ]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


def frame(kind: FrameKind, step_id: int, header: bytes = b"", payload: bytes = b"") -> Frame:
    """A frame as an edge gives it."""
    return Frame(
        kind=kind,
        step_id=StepId(step_id),
        header=memoryview(header),
        payload=memoryview(payload),
    )


def at_once(*calls: Callable[[], _T]) -> list[_T | Exception]:
    """What each call returned or raised, all on threads of their own."""

    def outcome(call: Callable[[], _T]) -> _T | Exception:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the caller looks at it
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(outcome, call) for call in calls]
        return [each.result(20) for each in running]
