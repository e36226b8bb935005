"""The options of an edge's socket."""

from __future__ import annotations

import socket

STALL_SECONDS = 60
"""How long a peer may acknowledge or read nothing before a connection is closed.

This includes a peer that computes: a frame that does not fit in the receiver's buffers waits there
until the previous step is done, which takes slow boards many seconds. The loss of a whole node is
detected by the membership, within its lease."""

_KEEPALIVE_IDLE_SECONDS = 5
_KEEPALIVE_INTERVAL_SECONDS = 1


def set_edge_options(connection: socket.socket, *, stall_milliseconds: int | None = None) -> None:
    """Disable Nagle's algorithm, and detect a peer that has vanished without a word.

    ``stall_milliseconds`` is how long it may acknowledge nothing; None means ``STALL_SECONDS``.
    """
    if stall_milliseconds is None:
        stall_milliseconds = STALL_SECONDS * 1000
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_milliseconds)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_SECONDS)
