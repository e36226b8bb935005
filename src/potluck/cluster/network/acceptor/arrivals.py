"""New connections, before it is known which process they are for.

The start of what a client sends is peeked at and left on the connection for its receiver. As in
``trust.handshakes``, nothing blocks, each connection has a deadline, and their number is bounded:
beyond the limit the oldest one is closed.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from dataclasses import dataclass

from potluck.cluster.network.acceptor.routes import ClientHello, read_client_hello
from potluck.cluster.network.trust.connection_sources import ConnectionSource
from potluck.cluster.network.trust.handshakes import EXHAUSTED, HANDSHAKE_SECONDS, describe
from potluck.host.log_rate import LogRate

_LOG = logging.getLogger(__name__)

_MOST_LOOKS = 16
"""The most times that one connection is peeked at. The kernel wakes us when the bytes needed are
there (``SO_RCVLOWAT``), so that even a ClientHello in many pieces takes two or three. A connection
that has ended, which stays readable, and one made of tiny records take more."""

_FIRST_LOOK_BYTES = 2048


@dataclass(slots=True, kw_only=True, eq=False)
class Arrival:
    """A connection whose receiver is known. ``hello`` is None if the client sent no valid TLS."""

    connection: socket.socket
    host: str
    port: int
    deadline: float
    hello: ClientHello | None = None
    num_needed_bytes: int = 0
    num_looks: int = 0


class Arrivals:
    """The new connections at ``server``, for one thread, whose ``selector`` watches them."""

    def __init__(
        self,
        server: ConnectionSource,
        selector: selectors.BaseSelector,
        *,
        log: LogRate,
        most: int,
        seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._server = server
        self._selector = selector
        self._log = log
        self._most = most
        self._seconds = seconds
        self._waiting: dict[Arrival, None] = {}  # oldest first
        selector.register(server, selectors.EVENT_READ, self)

    def handle(self, key: selectors.SelectorKey) -> Arrival | None:
        """Accept a connection, or peek at one, depending on what ``key`` refers to.

        Returns a connection whose receiver is known; it is non-blocking and belongs to the caller.
        Raises ``OSError`` if this process cannot open another connection.
        """
        is_new = key.fileobj is self._server
        arrival: Arrival | None = self._accept() if is_new else key.data
        if arrival is None or arrival not in self._waiting or not self._look(arrival):
            return None
        self._forget(arrival)
        if arrival.num_needed_bytes:
            arrival.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return arrival

    def expire(self, now: float) -> float | None:
        """Close connections past their deadline at ``now``; return the next time (monotonic) to
        call this.
        """
        while (oldest := next(iter(self._waiting), None)) is not None:
            if now < oldest.deadline:
                return oldest.deadline
            self._refuse(oldest, "it sent no complete ClientHello in time")
        return None

    def refuse_oldest(self, reason: str) -> bool:
        """Close the oldest connection; return whether there was one."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            self._refuse(oldest, reason)
        return oldest is not None

    def close(self) -> None:
        """Close the remaining connections and stop accepting. The listening socket stays open."""
        for arrival in list(self._waiting):
            self._drop(arrival)
        self._selector.unregister(self._server)

    def _accept(self) -> Arrival | None:
        if len(self._waiting) >= self._most:
            self.refuse_oldest("too many connections are pending")
        try:
            connection, (host, port, *_) = self._server.accept()
        except OSError as error:
            if error.errno in EXHAUSTED and not self.refuse_oldest("no file descriptors are left"):
                raise
            return None  # else the client closed it before it was accepted
        connection.setblocking(False)
        deadline = time.monotonic() + self._seconds
        arrival = Arrival(connection=connection, host=host, port=port, deadline=deadline)
        self._waiting[arrival] = None
        self._selector.register(connection, selectors.EVENT_READ, arrival)
        return arrival

    def _look(self, arrival: Arrival) -> bool:
        """Return whether the connection's receiver is known; close it if it cannot be found."""
        arrival.num_looks += 1
        try:
            data = arrival.connection.recv(
                max(arrival.num_needed_bytes, _FIRST_LOOK_BYTES), socket.MSG_PEEK
            )
        except BlockingIOError:
            return False
        except OSError as error:
            self._refuse(arrival, describe(error))
            return False
        if not data:
            # Nodes do this to find out whether the port accepts connections (``doctor``).
            _LOG.debug("%s:%d connected and sent nothing", arrival.host, arrival.port)
            self._drop(arrival)
            return False
        try:
            read = read_client_hello(data)
        except ValueError:
            return True  # TLS itself will report what is wrong with it
        if isinstance(read, ClientHello):
            arrival.hello = read
            return True
        if arrival.num_looks >= _MOST_LOOKS:
            self._refuse(arrival, "it sent no complete ClientHello")
            return False
        if arrival.num_needed_bytes != read.num_bytes:
            arrival.num_needed_bytes = read.num_bytes
            arrival.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, read.num_bytes)
        return False

    def _refuse(self, arrival: Arrival, reason: str) -> None:
        if self._log.allows():
            _LOG.warning(
                "refused an unknown client at %s:%d: %s", arrival.host, arrival.port, reason
            )
        self._drop(arrival)

    def _drop(self, arrival: Arrival) -> None:
        self._forget(arrival)
        arrival.connection.close()

    def _forget(self, arrival: Arrival) -> None:
        self._selector.unregister(arrival.connection)
        del self._waiting[arrival]
