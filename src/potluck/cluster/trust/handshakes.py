"""Connections to a listener that have not proven yet that they come from members.

Anyone who can reach a port can connect, say nothing, or say anything. So handshakes go on side by
side in one thread that never waits for any of them, each with a deadline, and their number is
bounded: beyond it the one that has waited longest is closed. Edges and the control port share
this code. Needs the standard library alone.
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

from potluck.cluster.trust.credentials import peer_node_id
from potluck.errors import ParameterError
from potluck.log_rate import LogRate
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""For TLS and hello together: three round trips and a few milliseconds of arithmetic."""

MOST_HANDSHAKES = 128
"""At once. A member is done in milliseconds."""

_LOG_LINES = 20
_LOG_SECONDS = 10.0
"""A line for each refusal, up to so many in so long; the others are counted in one line."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Failures of ``accept`` that are this machine's; the connection goes on waiting."""


@dataclass(slots=True, kw_only=True, eq=False)
class Handshake:
    """A connection that is not through yet. ``peer`` is known once its certificate is."""

    connection: ssl.SSLSocket
    host: str
    port: int
    deadline: float
    peer: NodeId | None = None
    data: bytearray = field(default_factory=bytearray)


def refusal_log() -> LogRate:
    """What bounds the log of one listener."""
    return LogRate(lines=_LOG_LINES, seconds=_LOG_SECONDS)


def _is_tls_enough(handshake: Handshake) -> bool:
    return True


def _tell_nothing(handshake: Handshake, reason: str) -> None:
    return


class Handshakes:
    """The handshakes at ``server``, for one thread, whose ``selector`` watches them.

    ``is_complete`` is called when something has arrived after TLS: it reads on without waiting,
    returns whether the connection is through, and raises ``OSError`` or ``ValueError`` with the
    reason to refuse it. ``tell`` is called with the reason before a connection is closed.
    """

    def __init__(
        self,
        server: socket.socket,
        context: ssl.SSLContext,
        selector: selectors.BaseSelector,
        *,
        log: LogRate,
        seconds: float = HANDSHAKE_SECONDS,
        most: int = MOST_HANDSHAKES,
        is_complete: Callable[[Handshake], bool] = _is_tls_enough,
        tell: Callable[[Handshake, str], None] = _tell_nothing,
    ) -> None:
        self._server = server
        self._context = context
        self._selector = selector
        self._log = log
        self._seconds = seconds
        self._most = most
        self._is_complete = is_complete
        self._tell = tell
        self._waiting: dict[Handshake, None] = {}  # oldest first
        selector.register(server, selectors.EVENT_READ, self)

    def handle(self, key: selectors.SelectorKey) -> Handshake | None:
        """Accept a connection, or go on with one, whichever ``key`` of this object stands for.

        Returns the handshake that is through: its connection, which does not block, is the
        caller's. Raises ``OSError`` when this process cannot have another connection though no
        handshake is left to close for it.
        """
        handshake = self._accept() if key.fileobj is self._server else _of(key)
        if handshake is None or handshake not in self._waiting or not self._advance(handshake):
            return None
        self._forget(handshake)
        return handshake

    def expire(self, now: float) -> float | None:
        """Close what is late at ``now``; return when (``time.monotonic``) to call this again."""
        while (oldest := next(iter(self._waiting), None)) is not None and now >= oldest.deadline:
            self._refuse(oldest, "it did not prove itself a member in time")
        if suppressed := self._log.take():
            _LOG.warning("refused %d more connections", suppressed)
        times = (None if oldest is None else oldest.deadline, self._log.ends_at)
        return min((each for each in times if each is not None), default=None)

    def close(self) -> None:
        """Close what is left, and accept nothing more. The listening socket stays open."""
        for handshake in list(self._waiting):
            self._forget(handshake)
            handshake.connection.close()
        self._selector.unregister(self._server)

    def _accept(self) -> Handshake | None:
        if len(self._waiting) >= self._most:
            self._refuse(next(iter(self._waiting)), "too many others wait as well")
        try:
            raw, (host, port, *_) = self._server.accept()
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                return None  # it was gone before it was accepted
            if not self._waiting:
                raise
            self._refuse(next(iter(self._waiting)), "no descriptor is left for another")
            return None
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

    def _advance(self, handshake: Handshake) -> bool:
        """Go on as far as what was received allows; return whether the connection is through."""
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
        """Close and log; a stranger is told nothing but what TLS itself says."""
        if self._log.allows():
            who = handshake.peer or "a stranger"
            _LOG.warning("refused %s at %s:%d: %s", who, handshake.host, handshake.port, reason)
        self._forget(handshake)
        self._tell(handshake, reason)
        handshake.connection.close()

    def _forget(self, handshake: Handshake) -> None:
        self._selector.unregister(handshake.connection)
        del self._waiting[handshake]


def _of(key: selectors.SelectorKey) -> Handshake | None:
    return key.data if isinstance(key.data, Handshake) else None


def describe(error: OSError) -> str:
    """One line about a failed call on a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster ({error.verify_message})"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was lost"  # A failed write; ``ssl`` does not say how it failed.
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error})"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or type(error).__name__
