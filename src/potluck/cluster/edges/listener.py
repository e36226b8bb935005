"""The side that listens: the receiver of an edge.

Whoever can reach the port can connect, say nothing, or say anything. So handshakes go on side by
side in the thread that accepts, each with a deadline of its own, and only what has shown a
certificate of the cluster is told why it was refused.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field

from potluck.cluster.edges.edge import EdgeLimits, IncomingEdge, check_counts, describe
from potluck.cluster.edges.frames import PREAMBLE_BYTES, decode_preamble
from potluck.cluster.edges.hello import (
    HELLO_LIMITS,
    Hello,
    check_hello,
    encode_hello,
    encode_refusal,
)
from potluck.cluster.edges.options import set_edge_options
from potluck.cluster.trust.credentials import Credentials, peer_node_id
from potluck.errors import EdgeClosedError, EdgeError, ParameterError
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""For TLS and hello together: three round trips and a few milliseconds of arithmetic."""

_MOST_HANDSHAKES = 128
"""At once. Beyond, the one that has waited longest goes: a member is done in milliseconds."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Failures of ``accept`` that are this machine's; the connection goes on waiting."""


@dataclass(slots=True, kw_only=True)
class _Handshake:
    """A connection that has not said hello yet."""

    connection: ssl.SSLSocket
    address: str
    deadline: float
    peer: NodeId | None = None
    data: bytearray = field(default_factory=bytearray)


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
        self._server = socket.create_server((host, 0), family=family, backlog=_MOST_HANDSHAKES)
        self._server.setblocking(False)
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
        with self._accepting:
            if self._is_closed:
                raise EdgeClosedError(peer, "the listener is closed")
            reception = _Reception(
                self._server, self._context, expected, peer, self._handshake_seconds
            )
            try:
                connection = reception.run(self._wake, time.monotonic() + timeout_seconds)
            except OSError as error:
                raise EdgeError(peer, f"cannot accept connections: {describe(error)}") from error
            finally:
                reception.close()
            if connection is None:
                if self._is_closed:
                    raise EdgeClosedError(peer, "the listener is closed")
                raise EdgeError(peer, f"it did not connect within {timeout_seconds:g} s")
            return IncomingEdge(connection, peer, expected.scope, limits)

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


class _Reception:
    """The connections of one ``accept``."""

    def __init__(
        self,
        server: socket.socket,
        context: ssl.SSLContext,
        expected: Hello,
        peer: NodeId,
        handshake_seconds: float,
    ) -> None:
        self._server = server
        self._context = context
        self._expected = expected
        self._peer = peer
        self._handshake_seconds = handshake_seconds
        self._selector = selectors.DefaultSelector()
        self._handshakes: dict[int, _Handshake] = {}  # by descriptor, oldest first

    def run(self, wake: int, deadline: float) -> ssl.SSLSocket | None:
        """The connection that said the right hello, blocking; None at ``deadline`` or ``wake``."""
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if now >= deadline:
                return None
            self._expire(now)
            next_deadline = min((h.deadline for h in self._handshakes.values()), default=deadline)
            for key, _ in self._selector.select(min(deadline, next_deadline) - now):
                if key.fileobj == wake:
                    return None
                if key.fileobj is self._server:
                    handshake = self._take()
                else:
                    handshake = self._handshakes.get(key.fd)
                if handshake is not None and self._advance(handshake):
                    self._forget(handshake)
                    handshake.connection.settimeout(None)
                    return handshake.connection

    def close(self) -> None:
        """Close what is left."""
        for handshake in list(self._handshakes.values()):
            self._forget(handshake)
            handshake.connection.close()
        self._selector.close()

    def _take(self) -> _Handshake | None:
        if len(self._handshakes) >= _MOST_HANDSHAKES:
            self._refuse(next(iter(self._handshakes.values())), "too many wait beside it")
        try:
            raw, address = self._server.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise
            return None  # It was gone before it was taken.
        try:
            raw.setblocking(False)
            set_edge_options(raw)
            connection = self._context.wrap_socket(
                raw, server_side=True, do_handshake_on_connect=False
            )
        except OSError:
            raw.close()
            return None
        handshake = _Handshake(
            connection=connection,
            address=f"{address[0]}:{address[1]}",
            deadline=time.monotonic() + self._handshake_seconds,
        )
        self._handshakes[connection.fileno()] = handshake
        self._selector.register(connection, selectors.EVENT_READ)
        return handshake

    def _advance(self, handshake: _Handshake) -> bool:
        """Go on as far as what was received allows; whether the edge stands."""
        connection = handshake.connection
        try:
            if handshake.peer is None:
                connection.do_handshake()
                handshake.peer = peer_node_id(connection)
            if not self._is_hello_complete(handshake):
                return False
            connection.sendall(encode_hello(self._expected))
        except ssl.SSLWantReadError:
            return False
        except OSError as error:
            self._refuse(handshake, describe(error))
        except ParameterError as error:
            self._refuse(handshake, error.message)
        except ValueError as error:
            self._refuse(handshake, str(error))
        else:
            return True
        return False

    def _is_hello_complete(self, handshake: _Handshake) -> bool:
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
        return True

    def _expire(self, now: float) -> None:
        for handshake in list(self._handshakes.values()):
            if now >= handshake.deadline:
                self._refuse(handshake, "it said no hello in time")

    def _refuse(self, handshake: _Handshake, reason: str) -> None:
        """Close and log; tell a member why, strangers nothing."""
        who = handshake.peer or "a stranger"
        _LOG.warning("refused %s at %s: %s", who, handshake.address, reason)
        self._forget(handshake)
        if handshake.peer is not None:
            # If it is gone or does not read, it will see the end of the connection.
            with contextlib.suppress(OSError):
                handshake.connection.sendall(encode_refusal(self._expected.scope, reason))
        handshake.connection.close()

    def _forget(self, handshake: _Handshake) -> None:
        self._selector.unregister(handshake.connection)
        del self._handshakes[handshake.connection.fileno()]
