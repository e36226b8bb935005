"""Connect to a peer's transfer process, or have it connect to this one."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable

from potluck.cluster.transfer.peer_frames import SERVER_NAME
from potluck.cluster.transfer.share import set_bulk_options
from potluck.cluster.trust.credentials import peer_node_id
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

_CONNECT_SECONDS = 5.0

DIAL_BACK_SECONDS = 10.0
"""The time for a peer to connect: a call, and its own limit for connecting."""


class PeerFailedError(Exception):
    """The peer is unreachable, is a different node, or violates the protocol."""


def connect_to_peer(
    peer: NodeId, address: tuple[str, int], context: ssl.SSLContext
) -> ssl.SSLSocket:
    """Return a connection to the node ``peer``, which the caller owns.

    Raise ``OSError`` if it cannot be opened, and ``PeerFailedError`` if another node answers.
    """
    raw = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    try:
        set_bulk_options(raw)
        connection = context.wrap_socket(raw, server_hostname=SERVER_NAME)
    except BaseException:
        raw.close()
        raise
    try:
        found = peer_node_id(connection)
    except ParameterError as error:
        connection.close()
        raise PeerFailedError(error.message) from error
    if found != peer:
        connection.close()
        raise PeerFailedError(f"a different node ({found}) answers at its address")
    return connection


class DialBackError(Exception):
    """The peer did not connect."""


class DialBacks:
    """The lanes that wait for their peers to connect. Thread-safe.

    ``ask`` requests that a peer connects to this node. It must not block; ``offer`` or ``failed``
    is called with the outcome, by any thread.

    A node behind a firewall or address translation can connect to others, which cannot connect to
    it. To fetch from such a node, a lane asks it to connect (the agents pass the request on,
    ``weights.dial``), and then uses the connection as one that it opened itself. TLS has the roles
    reversed; the protocol of ``peer_frames`` has not.
    """

    def __init__(self, ask: Callable[[NodeId], None]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._answers: dict[NodeId, ssl.SSLSocket | str | None] = {}  # None while a lane waits
        self._needed: set[NodeId] = set()

    def is_needed(self, node: NodeId) -> bool:
        """Return whether the latest connection with a peer could only be opened by the peer."""
        with self._changed:
            return node in self._needed

    def connection(self, node: NodeId) -> ssl.SSLSocket:
        """Ask a peer to connect, and return the connection. For the peer's lane only.

        Raise ``DialBackError``, with the reason, if it does not connect in time.
        """
        with self._changed:
            self._answers[node] = None
        self._ask(node)
        with self._changed:
            self._changed.wait_for(lambda: self._answers[node] is not None, DIAL_BACK_SECONDS)
            answer = self._answers.pop(node)
            if isinstance(answer, ssl.SSLSocket):
                self._needed.add(node)
                return answer
            self._needed.discard(node)
            raise DialBackError(answer or f"it did not connect within {DIAL_BACK_SECONDS:g} s")

    def offer(self, node: NodeId, connection: ssl.SSLSocket) -> bool:
        """Give a connection from a peer to the lane that waits for it.

        Return False if none does; the connection then still belongs to the caller.
        """
        return self._answer(node, connection)

    def failed(self, node: NodeId, reason: str) -> None:
        """Tell the lane that waits for a peer that it will not connect."""
        self._answer(node, reason)

    def _answer(self, node: NodeId, answer: ssl.SSLSocket | str) -> bool:
        with self._changed:
            if node not in self._answers or self._answers[node] is not None:
                return False
            self._answers[node] = answer
            self._changed.notify_all()
            return True
