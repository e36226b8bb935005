"""TLS handshakes of connections to a listener, whose peers have not yet authenticated.

Anyone who can reach a port can connect and send nothing, or anything. So handshakes run
concurrently in one thread that never blocks on any of them, each with a deadline. Their number is
bounded: beyond the limit the oldest one is closed. Edges and the control port share this code.
Needs only the standard library.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from potluck.cluster.network.trust.connection_sources import ConnectionSource, SourceEndedError
from potluck.cluster.network.trust.credentials import peer_node_id
from potluck.errors import ParameterError
from potluck.host.log_rate import LogRate
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""The deadline for TLS and the hello together: three round trips and a few milliseconds of CPU
time."""

MOST_HANDSHAKES = 128
"""The most handshakes at one time. A member's takes milliseconds."""

_LOG_LINES = 20
_LOG_SECONDS = 10.0
"""``_LOG_LINES`` refusals are logged in this time; further ones are only counted, in one line."""

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of ``accept`` caused by this machine's limits; the connection stays in the backlog."""


@dataclass(slots=True, kw_only=True, eq=False)
class Handshake:
    """A connection whose handshake is in progress. ``peer`` is known once its certificate is."""

    connection: ssl.SSLSocket
    host: str
    port: int
    deadline: float
    peer: NodeId | None = None
    data: bytearray = field(default_factory=bytearray)


def refusal_log() -> LogRate:
    """Return the rate limit for the log of one listener."""
    return LogRate(lines=_LOG_LINES, seconds=_LOG_SECONDS)


class Handshakes:
    """The handshakes at ``server``, for one thread, whose ``selector`` watches them.

    Without a ``server``, only connections given to ``begin`` are handled. ``is_complete`` is called
    when data has arrived after TLS: it reads on without blocking, returns whether the handshake is
    complete, and raises ``OSError`` or ``ValueError`` with the reason to refuse it.
    ``on_refused`` is called with the reason before a connection is closed.
    """

    def __init__(
        self,
        server: ConnectionSource | None,
        context: ssl.SSLContext,
        selector: selectors.BaseSelector,
        *,
        log: LogRate,
        seconds: float = HANDSHAKE_SECONDS,
        most: int = MOST_HANDSHAKES,
        is_complete: Callable[[Handshake], bool] = lambda handshake: True,
        on_refused: Callable[[Handshake, str], None] = lambda handshake, reason: None,
    ) -> None:
        self._server = server
        self._context = context
        self._selector = selector
        self._log = log
        self._seconds = seconds
        self._most = most
        self._is_complete = is_complete
        self._on_refused = on_refused
        self._waiting: dict[Handshake, None] = {}  # oldest first
        if server is not None:
            selector.register(server, selectors.EVENT_READ, self)

    def handle(self, key: selectors.SelectorKey) -> Handshake | None:
        """Accept a connection, or continue a handshake, depending on what ``key`` refers to.

        Returns a completed handshake; its connection, which is non-blocking, then belongs to the
        caller. Raises ``OSError`` when this process cannot open another connection and there is no
        handshake to close instead, and when ``server`` has no more connections.
        """
        server = self._server
        if server is not None and key.fileobj is server:
            return self._completed(self._accept(server))
        return self._completed(key.data)

    def expire(self, now: float) -> float | None:
        """Close handshakes past their deadline at ``now``; return the next time (monotonic) to call
        this.
        """
        while (oldest := next(iter(self._waiting), None)) is not None and now >= oldest.deadline:
            self._refuse(oldest, "it did not authenticate in time")
        if suppressed := self._log.take():
            _LOG.warning("refused %d more connections", suppressed)
        times = (None if oldest is None else oldest.deadline, self._log.ends_at)
        return min((each for each in times if each is not None), default=None)

    def refuse_oldest(self, reason: str) -> bool:
        """Close the oldest handshake; return whether there was one."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            self._refuse(oldest, reason)
        return oldest is not None

    def close(self) -> None:
        """Close the remaining handshakes and stop accepting. The listening socket stays open."""
        for handshake in list(self._waiting):
            self._forget(handshake)
            handshake.connection.close()
        if self._server is not None:
            self._selector.unregister(self._server)

    def begin(self, raw: socket.socket, host: str, port: int) -> Handshake | None:
        """Begin the handshake of a connection from ``host``, taking ownership of the connection.

        Returns the handshake if it is already complete, as ``handle`` does.
        """
        self._make_room()
        return self._completed(self._secure(raw, host, port))

    def _accept(self, server: ConnectionSource) -> Handshake | None:
        self._make_room()
        try:
            raw, (host, port, *_) = server.accept()
        except SourceEndedError:
            raise
        except OSError as error:
            if error.errno not in EXHAUSTED:
                return None  # the client closed it before it was accepted
            if not self.refuse_oldest("no file descriptors are left"):
                raise
            return None
        return self._secure(raw, host, port)

    def _make_room(self) -> None:
        if len(self._waiting) >= self._most:
            self.refuse_oldest("too many connections are pending")

    def _secure(self, raw: socket.socket, host: str, port: int) -> Handshake | None:
        try:
            raw.setblocking(False)
            connection = self._context.wrap_socket(
                raw, server_side=True, do_handshake_on_connect=False
            )
        except OSError:
            raw.close()
            return None
        deadline = time.monotonic() + self._seconds
        handshake = Handshake(connection=connection, host=host, port=port, deadline=deadline)
        self._waiting[handshake] = None
        self._selector.register(connection, selectors.EVENT_READ, handshake)
        return handshake

    def _completed(self, handshake: Handshake | None) -> Handshake | None:
        """Continue a handshake; return it if it is complete."""
        if handshake is None or handshake not in self._waiting or not self._advance(handshake):
            return None
        self._forget(handshake)
        return handshake

    def _advance(self, handshake: Handshake) -> bool:
        """Continue with the data received so far; return whether the handshake is complete."""
        try:
            if handshake.peer is None:
                handshake.connection.do_handshake()
                handshake.peer = peer_node_id(handshake.connection)
            return self._is_complete(handshake)
        except ssl.SSLWantReadError:
            return False
        except OSError as error:
            self._refuse(handshake, describe(error))
        except ParameterError as error:
            self._refuse(handshake, error.message)
        except ValueError as error:
            self._refuse(handshake, str(error))
        return False

    def _refuse(self, handshake: Handshake, reason: str) -> None:
        """Close and log it. An unauthenticated client learns only what TLS itself sends."""
        if self._log.allows():
            who = handshake.peer or "an unknown client"
            _LOG.warning("refused %s at %s:%d: %s", who, handshake.host, handshake.port, reason)
        self._forget(handshake)
        self._on_refused(handshake, reason)
        handshake.connection.close()

    def _forget(self, handshake: Handshake) -> None:
        self._selector.unregister(handshake.connection)
        del self._waiting[handshake]


def describe(error: OSError) -> str:
    """Return a one-line description of a failed call on a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate was not issued by this cluster's authority ({error.verify_message})"
        )
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was lost"  # A failed write; ``ssl`` does not say how it failed.
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or type(error).__name__
