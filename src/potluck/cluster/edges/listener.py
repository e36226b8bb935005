"""The side that listens: the receiver of an edge.

``trust.handshakes`` bounds what strangers can do here. Only what has shown a certificate of the
cluster is told why it was refused.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
import time

from potluck.cluster.edges.edge import (
    EdgeLimits,
    IncomingEdge,
    OutgoingEdge,
    both_ends,
    check_counts,
)
from potluck.cluster.edges.frames import PREAMBLE_BYTES, decode_preamble
from potluck.cluster.edges.hello import (
    HELLO_LIMITS,
    Hello,
    check_hello,
    encode_hello,
    encode_refusal,
)
from potluck.cluster.edges.options import set_edge_options
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.trust.handshakes import (
    HANDSHAKE_SECONDS,
    MOST_HANDSHAKES,
    Handshake,
    Handshakes,
    describe,
    refusal_log,
)
from potluck.errors import EdgeClosedError, EdgeError
from potluck.types.cluster import NodeId


class EdgeListener:
    """Waits for the sender of one edge.

    ``accept`` is called by one thread at a time; ``close`` by any.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Listen on a free port of ``host``, a numeric address. Raises ``OSError``."""
        self._context = credentials.server_context()
        self._handshake_seconds = handshake_seconds
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=MOST_HANDSHAKES)
        self._server.setblocking(False)
        self._log = refusal_log()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._accepting = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False
        host, port = self._server.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    def accept(
        self, expected: Hello, *, peer: NodeId, limits: EdgeLimits, timeout_seconds: float
    ) -> IncomingEdge:
        """Wait until the node ``peer`` connects and says the ``expected`` hello.

        Others are closed with one line in the log. Connections that have not got so far when this
        returns are closed too: a listener is for one edge at a time. Raises ``EdgeError`` when
        nobody came in time and ``EdgeClosedError`` when the listener was closed.
        """
        connection = self._accept(expected, peer, timeout_seconds)
        return IncomingEdge(connection, peer, expected.scope, limits)

    def accept_both_ways(
        self, expected: Hello, *, peer: NodeId, limits: EdgeLimits, timeout_seconds: float
    ) -> tuple[OutgoingEdge, IncomingEdge]:
        """Wait as ``accept`` does, for a connection that is used both ways in turn."""
        connection = self._accept(expected, peer, timeout_seconds)
        return both_ends(connection, peer, expected.scope, limits)

    def _accept(self, expected: Hello, peer: NodeId, timeout_seconds: float) -> ssl.SSLSocket:
        with self._accepting:
            if self._is_closed:
                raise EdgeClosedError(peer, "the listener is closed")
            try:
                with selectors.DefaultSelector() as selector:
                    connection = self._await(
                        selector, _Reception(expected, peer), time.monotonic() + timeout_seconds
                    )
            except OSError as error:
                raise EdgeError(peer, f"cannot accept connections: {describe(error)}") from error
            if connection is None:
                if self._is_closed:
                    raise EdgeClosedError(peer, "the listener is closed")
                raise EdgeError(peer, f"it did not connect within {timeout_seconds:g} s")
            return connection

    def close(self) -> None:
        """Stop listening; an ``accept`` in another thread ends. Idempotent."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            os.eventfd_write(self._wake, 1)
            with self._accepting:
                self._server.close()
                os.close(self._wake)

    def _await(
        self, selector: selectors.BaseSelector, reception: _Reception, deadline: float
    ) -> ssl.SSLSocket | None:
        """The connection that said the right hello, blocking; None at ``deadline`` or ``close``."""
        selector.register(self._wake, selectors.EVENT_READ)
        handshakes = Handshakes(
            self._server,
            self._context,
            selector,
            log=self._log,
            seconds=self._handshake_seconds,
            is_complete=reception.is_complete,
            tell=reception.tell,
        )
        try:
            while (now := time.monotonic()) < deadline:
                until = min(deadline, handshakes.expire(now) or deadline)
                for key, _ in selector.select(until - now):
                    if key.fileobj == self._wake:
                        return None
                    handshake = handshakes.handle(key)
                    if handshake is not None:
                        handshake.connection.settimeout(None)
                        return handshake.connection
            return None
        finally:
            handshakes.close()


class _Reception:
    """What a connection has to say to become the edge ``expected`` from the node ``peer``."""

    def __init__(self, expected: Hello, peer: NodeId) -> None:
        self._expected = expected
        self._peer = peer

    def is_complete(self, handshake: Handshake) -> bool:
        """Read on; raises ``ValueError`` if what came is not the hello that is expected."""
        data = handshake.data
        needed = PREAMBLE_BYTES
        while True:
            if len(data) >= PREAMBLE_BYTES:
                preamble = decode_preamble(data)
                check_counts(preamble.header_bytes, preamble.payload_bytes, HELLO_LIMITS)
                needed = PREAMBLE_BYTES + preamble.header_bytes
                if len(data) == needed:
                    break
            part = handshake.connection.recv(needed - len(data))
            if not part:
                raise ValueError("it closed the connection before it said hello")
            data += part
        check_hello(self._expected, preamble, bytes(data[PREAMBLE_BYTES:]))
        if handshake.peer != self._peer:
            raise ValueError(f"node {handshake.peer} is not node {self._peer}")
        set_edge_options(handshake.connection)
        handshake.connection.sendall(encode_hello(self._expected))
        return True

    def tell(self, handshake: Handshake, reason: str) -> None:
        """Tell a member why it was refused, strangers nothing."""
        if handshake.peer is not None:
            # If it is gone or does not read, it will see the end of the connection.
            with contextlib.suppress(OSError):
                handshake.connection.sendall(encode_refusal(self._expected.scope, reason))
