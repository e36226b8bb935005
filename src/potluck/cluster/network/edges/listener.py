"""The listening side of an edge: its receiver.

``trust.handshakes`` limits what unauthenticated clients can do here. Only clients with a
certificate of the cluster are told why they were refused.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge, both_ends, check_counts
from potluck.cluster.network.edges.frames import (
    HELLO_LIMITS,
    PREAMBLE_BYTES,
    Hello,
    decode_preamble,
    encode_hello,
    encode_refusal,
    read_hello,
)
from potluck.cluster.network.edges.options import set_edge_options
from potluck.cluster.network.trust.connection_sources import (
    ConnectionSource,
    HandedConnections,
    open_listener,
)
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.network.trust.handshakes import (
    HANDSHAKE_SECONDS,
    MOST_HANDSHAKES,
    Handshake,
    Handshakes,
    describe,
    refusal_log,
)
from potluck.errors import EdgeClosedError, EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import NodeId


class EdgeListener:
    """Waits for the other ends of edges.

    ``accept_ends`` and ``accept_both_ways`` are called by one thread at a time; ``close`` by any.
    """

    def __init__(
        self,
        source: ConnectionSource,
        address: EdgeAddress,
        credentials: Credentials,
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """Wait for connections to ``address``. Takes ownership of their non-blocking ``source``."""
        self.address = address
        self._context = credentials.server_context()
        self._handshake_seconds = handshake_seconds
        self._server = source
        self._log = refusal_log()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._accepting = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False

    @classmethod
    def at(
        cls,
        host: str,
        credentials: Credentials,
        *,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> EdgeListener:
        """Listen on a free port of ``host``, a numeric address. Raises ``OSError``."""
        server = open_listener(host, backlog=MOST_HANDSHAKES)
        own_host, port = server.getsockname()[:2]
        return cls(
            server,
            EdgeAddress(host=own_host, port=port),
            credentials,
            handshake_seconds=handshake_seconds,
        )

    def accept_ends(
        self, expected: Mapping[Hello, NodeId], *, limits: EdgeLimits, timeout_seconds: float
    ) -> dict[Hello, IncomingEdge | OutgoingEdge]:
        """Wait until every node of ``expected``, all of one scope, has connected.

        They are senders or, of reversed edges, receivers, identified by their hellos. Other
        connections are closed with one line in the log. Handshakes still in progress when this
        returns are closed, too: a listener is for the edges of one epoch. If a node does not
        connect in time, all are closed. Raises ``EdgeError`` then, and ``EdgeClosedError`` if the
        listener was closed. Returns at once if ``expected`` is empty.
        """
        connections = self._accept(expected, timeout_seconds) if expected else {}
        return {
            hello: (OutgoingEdge if hello.is_reversed else IncomingEdge)(
                connection, expected[hello], hello.scope, limits
            )
            for hello, connection in connections.items()
        }

    def accept_both_ways(
        self, expected: Hello, *, peer: NodeId, limits: EdgeLimits, timeout_seconds: float
    ) -> tuple[OutgoingEdge, IncomingEdge]:
        """Wait as ``accept_ends`` does, for a connection that is used both ways in turn."""
        connection = self._accept({expected: peer}, timeout_seconds)[expected]
        return both_ends(connection, peer, expected.scope, limits)

    def _accept(
        self, expected: Mapping[Hello, NodeId], timeout_seconds: float
    ) -> dict[Hello, ssl.SSLSocket]:
        reception = _Reception(expected)
        with self._accepting, contextlib.ExitStack() as on_failure:
            on_failure.callback(reception.close)
            if self._is_closed:
                raise EdgeClosedError(reception.missing, "the listener is closed")
            try:
                with selectors.DefaultSelector() as selector:
                    self._await(selector, reception, time.monotonic() + timeout_seconds)
            except OSError as error:
                raise EdgeError(
                    reception.missing, f"cannot accept connections: {describe(error)}"
                ) from error
            if not reception.is_over:
                if self._is_closed:
                    raise EdgeClosedError(reception.missing, "the listener is closed")
                raise EdgeError(
                    reception.missing, f"it did not connect within {timeout_seconds:g} s"
                )
            on_failure.pop_all()
        return reception.accepted

    def close(self) -> None:
        """Stop listening; a thread that accepts gets ``EdgeClosedError``. Idempotent."""
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
    ) -> None:
        """Return when all have sent their hellos, at ``deadline``, or at ``close``."""
        selector.register(self._wake, selectors.EVENT_READ)
        handshakes = Handshakes(
            self._server,
            self._context,
            selector,
            log=self._log,
            seconds=self._handshake_seconds,
            is_complete=reception.is_complete,
            on_refused=reception.explain_refusal,
        )
        try:
            while (now := time.monotonic()) < deadline:
                until = min(deadline, handshakes.expire(now) or deadline)
                for key, _ in selector.select(until - now):
                    if key.fileobj == self._wake:
                        return
                    handshake = handshakes.handle(key)
                    if handshake is not None:
                        handshake.connection.settimeout(None)
                        if reception.is_over:
                            return
        finally:
            handshakes.close()


class _Reception:
    """The expected hellos and the nodes that must send them.

    ``accepted`` are the connections that have done so.
    """

    def __init__(self, expected: Mapping[Hello, NodeId]) -> None:
        self.accepted: dict[Hello, ssl.SSLSocket] = {}
        self._missing = dict(expected)
        self._scope = next(iter(expected)).scope

    @property
    def is_over(self) -> bool:
        """Whether all have connected."""
        return not self._missing

    @property
    def missing(self) -> NodeId:
        """Return one of the nodes that have not connected."""
        return next(iter(self._missing.values()))

    def is_complete(self, handshake: Handshake) -> bool:
        """Read further. Raises ``ValueError`` if the data is not an expected hello."""
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
                raise ValueError("it closed the connection before sending a hello")
            data += part
        hello = read_hello(self._scope, preamble, bytes(data[PREAMBLE_BYTES:]))
        peer = self._missing.get(hello)
        if peer is None:
            awaited = " or ".join(each.name for each in self._missing)
            raise ValueError(f"expected {awaited}, got {hello.name}")
        if handshake.peer != peer:
            raise ValueError(f"expected node {peer}, got node {handshake.peer}")
        set_edge_options(handshake.connection)
        handshake.connection.sendall(encode_hello(hello))
        del self._missing[hello]
        self.accepted[hello] = handshake.connection
        return True

    def explain_refusal(self, handshake: Handshake, reason: str) -> None:
        """Tell a member why it was refused; tell others nothing."""
        if handshake.peer is not None:
            # If it has gone or does not read, it will see the connection end.
            with contextlib.suppress(OSError):
                handshake.connection.sendall(encode_refusal(self._scope, reason))

    def close(self) -> None:
        """Close the accepted connections."""
        for connection in self.accepted.values():
            connection.close()


class RoutedConnections(HandedConnections):
    """The connections that ask for ``address.name``, until ``close``."""

    def __init__(
        self,
        channel: socket.socket,
        find_address: Callable[[], EdgeAddress],
        ended: Callable[[], None],
    ) -> None:
        """Take ownership of ``channel``. ``ended`` is called once, on the thread that closes it."""
        super().__init__(channel)
        self._find_address = find_address
        self._ended = ended

    @property
    def address(self) -> EdgeAddress:
        """Return where they connect to: the node's address, which may have changed."""
        return self._find_address()

    def close(self) -> None:
        """Close waiting connections, and accept no more. Idempotent."""
        is_open = self.fileno() >= 0
        super().close()
        if is_open:
            self._ended()


OpenRoute = Callable[[], RoutedConnections]
"""Opens a route with a new name. Raises ``OSError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEndpoint:
    """A node as an end of edges: its credentials, and where it listens."""

    credentials: Credentials
    listen_host: str
    open_route: OpenRoute | None = None

    def listen(self) -> EdgeListener:
        """Listen at the node's port or, without routes, at one of ``listen_host``.

        Raises ``OSError`` if that fails.
        """
        if self.open_route is None:
            return EdgeListener.at(self.listen_host, self.credentials)
        with contextlib.ExitStack() as unless_listening:
            routed = self.open_route()
            unless_listening.callback(routed.close)
            listener = EdgeListener(routed, routed.address, self.credentials)
            unless_listening.pop_all()
        return listener
