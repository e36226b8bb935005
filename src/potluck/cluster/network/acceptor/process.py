"""The acceptor process: one thread with one event loop in which nothing blocks.

As a separate process it keeps running while the agent's interpreter is busy, as Zenoh's threads do,
so that keep-alives arrive; and unauthenticated connections use none of the agent's descriptors. It
exits when the agent closes its end of the socket between them, or dies.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import ssl
import time
from dataclasses import dataclass

from potluck.cluster.network.acceptor.arrivals import Arrival, Arrivals
from potluck.cluster.network.acceptor.routes import Routes
from potluck.cluster.network.acceptor.splice import Splice
from potluck.cluster.network.edges.options import set_edge_options
from potluck.cluster.network.trust.connection_sources import hand_over
from potluck.cluster.network.trust.credentials import CredentialFiles, Credentials
from potluck.cluster.network.trust.handshakes import (
    HANDSHAKE_SECONDS,
    MOST_HANDSHAKES,
    Handshake,
    Handshakes,
    describe,
    refusal_log,
)
from potluck.cluster.network.trust.removed import RemovedNodes
from potluck.host.child_start import ignore_stop_signals
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

_MOST_UNSENT_BYTES = 65_536
"""Limit for unsent lines to the agent. Log lines beyond it are dropped, so that an agent that does
not read for a while costs no memory."""

_EXHAUSTED_SECONDS = 0.1
"""How long to stop accepting when no descriptor is left and none can be freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptorSettings(CredentialFiles):
    """The settings that the agent passes to this process.

    ``inner_host`` and ``inner_port`` are where Zenoh listens. A member's connection is closed if
    its peer acknowledges or reads nothing for ``stall_milliseconds``.
    """

    inner_host: str
    inner_port: int
    stall_milliseconds: int


class Reports(logging.Handler):
    """Sends lines to the agent: ``opened NODE HOST``, ``closed NODE HOST`` and ``log TEXT``."""

    def __init__(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        super().__init__()
        connection.setblocking(False)
        self._connection = connection
        self._selector = selector
        self._unsent = bytearray()
        selector.register(connection, selectors.EVENT_READ, self)

    def send(self, line: str) -> None:
        """Queue a line and send what the socket takes. Never dropped: not for untrusted input."""
        self._unsent += line.encode("utf-8", "replace") + b"\n"
        self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log line, unless too much is waiting because the agent does not read."""
        if len(self._unsent) < _MOST_UNSENT_BYTES:
            self.send("log " + " ".join(record.getMessage().splitlines()))

    def flush(self) -> None:
        """Send queued lines as far as possible without blocking."""
        with contextlib.suppress(OSError):  # full, or closed: then ``has_ended`` reports it
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._connection, events, self)

    def has_ended(self) -> bool:
        """Return whether the agent closed its end. It writes there when nodes were removed."""
        try:
            return not self._connection.recv(64)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Acceptor:
    """Accepts connections at ``server``, passes on those for ``routes``, and connects members to
    Zenoh at ``inner``.
    """

    def __init__(
        self,
        server: socket.socket,
        inner: tuple[str, int],
        credentials: Credentials,
        reports: socket.socket,
        routes: socket.socket,
        *,
        stall_milliseconds: int,
    ) -> None:
        server.setblocking(False)
        self._stall_milliseconds = stall_milliseconds
        self._server = server
        self._inner = inner
        self._removed = RemovedNodes(credentials.removed_path)
        self._server_context = credentials.server_context()
        self._client_context = credentials.client_context()
        self._selector = selectors.DefaultSelector()
        self.reports = Reports(reports, self._selector)
        self._routes = Routes(routes)
        self._selector.register(self._routes, selectors.EVENT_READ, self._routes)
        self._log = refusal_log()
        self._splices: set[Splice] = set()
        self._opening: dict[Splice, float] = {}  # deadlines, earliest first

    def run(self) -> None:
        """Run until the agent exits."""
        try:
            self._run()
        finally:
            self._routes.close()

    def _run(self) -> None:
        while True:
            most = _most_handshakes()
            handshakes = Handshakes(
                None, self._server_context, self._selector, log=self._log, most=most
            )
            arrivals = Arrivals(self._server, self._selector, log=self._log, most=most)
            try:
                self._accept(arrivals, handshakes)
            except OSError as error:
                if self._log.allows():
                    _LOG.warning("cannot accept control connections: %s", describe(error))
            else:
                return
            finally:
                arrivals.close()
                handshakes.close()
            resumes_at = time.monotonic() + _EXHAUSTED_SECONDS
            while (wait := resumes_at - time.monotonic()) > 0:
                if self._handle(self._selector.select(wait), None, None):
                    return

    def _accept(self, arrivals: Arrivals, handshakes: Handshakes) -> None:
        """Run until the agent exits. Raises ``OSError`` while no connection can be accepted."""
        while True:
            now = time.monotonic()
            deadlines = (arrivals.expire(now), handshakes.expire(now), self._expire(now))
            times = [each for each in deadlines if each is not None]
            events = self._selector.select(max(0.0, min(times) - now) if times else None)
            if self._handle(events, arrivals, handshakes):
                return

    def _handle(
        self,
        events: list[tuple[selectors.SelectorKey, int]],
        arrivals: Arrivals | None,
        handshakes: Handshakes | None,
    ) -> bool:
        """Handle all events, members first; return whether the agent has exited."""
        for key, _ in events:
            if key.data is self.reports:
                if self.reports.has_ended():
                    return True
                self.reports.flush()
                self._end_removed()
            elif key.data is self._routes:
                if not self._routes.refresh():
                    self._selector.unregister(self._routes)
            elif isinstance(key.data, Splice) and key.data in self._splices:
                self._advance(key.data)
        if arrivals is None or handshakes is None:
            return False
        for key, _ in events:
            if isinstance(key.data, Arrival | Arrivals):
                arrival = self._arrived(arrivals, handshakes, key)
                proven = None if arrival is None else self._direct(arrival, handshakes)
            elif isinstance(key.data, Handshake):
                proven = handshakes.handle(key)
            else:
                continue
            if proven is not None and proven.peer is not None:
                self._join(proven.connection, proven.peer, proven.host)
        return False

    def _arrived(
        self, arrivals: Arrivals, handshakes: Handshakes, key: selectors.SelectorKey
    ) -> Arrival | None:
        try:
            return arrivals.handle(key)
        except OSError:
            if not handshakes.refuse_oldest("no file descriptors are left"):
                raise
            return None

    def _direct(self, arrival: Arrival, handshakes: Handshakes) -> Handshake | None:
        """Pass a connection on, or begin the handshake of a possible member."""
        connection, host, port = arrival.connection, arrival.host, arrival.port
        name, sending = self._routes.find(arrival.hello)
        if not name:
            return handshakes.begin(connection, host, port)
        reason = ""
        if sending is None:
            reason = "no process has registered that name"
        else:
            try:
                hand_over(sending, connection, host, port)
            except BlockingIOError:
                reason = "too many connections are pending"
            except OSError as error:
                reason = describe(error)
        connection.close()
        if reason and self._log.allows():
            _LOG.warning("refused %s:%d, which asked for %.80s: %s", host, port, name, reason)
        return None

    def _join(self, connection: ssl.SSLSocket, peer: NodeId, host: str) -> None:
        try:
            set_edge_options(connection, stall_milliseconds=self._stall_milliseconds)
            splice = Splice(connection, peer, host, self._inner, self._client_context)
        except OSError as error:
            _LOG.warning("cannot accept node %s: %s", peer, describe(error))
            connection.close()
            return
        self._splices.add(splice)
        self._opening[splice] = time.monotonic() + HANDSHAKE_SECONDS
        splice.start(self._selector)
        self.reports.send(f"opened {splice.peer} {splice.host}")

    def _advance(self, splice: Splice) -> None:
        try:
            if splice.advance(self._selector):
                if splice.is_open:
                    self._opening.pop(splice, None)
            else:
                self._end(splice)
            return
        except ssl.SSLError as error:
            _LOG.warning("lost a connection from node %s: %s", splice.peer, describe(error))
        except OSError as error:
            _LOG.debug("a connection from node %s ended: %s", splice.peer, describe(error))
        self._end(splice, is_broken=True)

    def _expire(self, now: float) -> float | None:
        """Close connections that Zenoh has not answered in time, such as when the agent is stopped.

        Returns the next time (``time.monotonic``) to call this.
        """
        for splice, deadline in list(self._opening.items()):
            if now < deadline:
                return deadline
            _LOG.warning("Zenoh did not answer a connection from node %s in time", splice.peer)
            self._end(splice)
        return None

    def _end_removed(self) -> None:
        """Reset the connections of removed nodes."""
        removed = self._removed.nodes()
        for splice in [each for each in self._splices if each.peer in removed]:
            _LOG.warning("closed a connection from node %s, which was removed", splice.peer)
            self._end(splice, is_broken=True)

    def _end(self, splice: Splice, *, is_broken: bool = False) -> None:
        self._splices.remove(splice)
        self._opening.pop(splice, None)
        splice.close(self._selector, is_broken=is_broken)
        self.reports.send(f"closed {splice.peer} {splice.host}")


def _most_handshakes() -> int:
    """Return a limit that leaves at least three quarters of the descriptors for members.

    The same limit applies to connections whose receiver is not yet known.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HANDSHAKES if soft == resource.RLIM_INFINITY else min(MOST_HANDSHAKES, soft // 8)


def run_acceptor(settings: AcceptorSettings, reports: int, server: int, routes: int) -> None:
    """Accept connections until the agent exits.

    ``reports`` and ``routes`` are sockets to the agent, and ``server`` is the listening socket. All
    are inherited descriptors.
    """
    ignore_stop_signals()
    acceptor = Acceptor(
        socket.socket(fileno=server),
        (settings.inner_host, settings.inner_port),
        settings.read(),
        socket.socket(fileno=reports),
        socket.socket(fileno=routes),
        stall_milliseconds=settings.stall_milliseconds,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[acceptor.reports])
    acceptor.run()
