"""The acceptor's process: one thread, one loop, nothing in it waits for anybody.

Being a process of its own it goes on while the agent's interpreter is busy, as Zenoh's threads do,
so that keep-alives arrive; and strangers' connections cost the agent no descriptor. It ends when
the agent closes its end of the socket between them, or dies.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import signal
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.acceptor.splice import Splice
from potluck.cluster.edges.options import set_edge_options
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.trust.handshakes import (
    HANDSHAKE_SECONDS,
    MOST_HANDSHAKES,
    Handshakes,
    describe,
    refusal_log,
)
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

_MOST_UNSENT_BYTES = 65_536
"""Of lines for the agent. A log line beyond is dropped, so that an agent that does not read them
for a while costs no memory."""

_EXHAUSTED_SECONDS = 0.1
"""How long to accept nothing when no descriptor is left and none can be freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptorSettings:
    """What the agent tells it: where Zenoh listens, the node's PEM files, and how long a member may
    take or acknowledge nothing before its connection is given up.
    """

    inner_host: str
    inner_port: int
    node_id: str
    authority: str
    certificate: str
    key: str
    stall_milliseconds: int


class Reports(logging.Handler):
    """Lines to the agent: ``opened NODE HOST``, ``closed NODE HOST`` and ``log TEXT``."""

    def __init__(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        super().__init__()
        connection.setblocking(False)
        self._connection = connection
        self._selector = selector
        self._unsent = bytearray()
        selector.register(connection, selectors.EVENT_READ, self)

    def say(self, line: str) -> None:
        """Send a line, or keep it until the agent reads again. Never lost, so not for strangers."""
        self._unsent += line.encode("utf-8", "replace") + b"\n"
        self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log line, unless the agent has not read for so long that too much waits."""
        if len(self._unsent) < _MOST_UNSENT_BYTES:
            self.say("log " + " ".join(record.getMessage().splitlines()))

    def flush(self) -> None:
        """Send what is left, as far as that goes without waiting."""
        with contextlib.suppress(OSError):  # full, or gone: then ``has_ended`` says so
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._connection, events, self)

    def has_ended(self) -> bool:
        """Whether the agent has closed its end."""
        try:
            return not self._connection.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Acceptor:
    """Accepts at ``server`` and joins members to Zenoh at ``inner``."""

    def __init__(
        self,
        server: socket.socket,
        inner: tuple[str, int],
        credentials: Credentials,
        reports: socket.socket,
        *,
        stall_milliseconds: int,
    ) -> None:
        server.setblocking(False)
        self._stall_milliseconds = stall_milliseconds
        self._server = server
        self._inner = inner
        self._server_context = credentials.server_context()
        self._client_context = credentials.client_context()
        self._selector = selectors.DefaultSelector()
        self.reports = Reports(reports, self._selector)
        self._log = refusal_log()
        self._splices: set[Splice] = set()
        self._opening: dict[Splice, float] = {}  # with deadlines, earliest first

    def run(self) -> None:
        """Work until the agent ends."""
        while True:
            handshakes = Handshakes(
                self._server,
                self._server_context,
                self._selector,
                log=self._log,
                most=_most_handshakes(),
            )
            try:
                self._accept(handshakes)
            except OSError as error:
                if self._log.allows():
                    _LOG.warning("cannot accept control connections: %s", describe(error))
            else:
                return
            finally:
                handshakes.close()
            resumes_at = time.monotonic() + _EXHAUSTED_SECONDS
            while (wait := resumes_at - time.monotonic()) > 0:
                if self._handle(self._selector.select(wait), None):
                    return

    def _accept(self, handshakes: Handshakes) -> None:
        """Work until the agent ends; raises ``OSError`` when nothing can be accepted for now."""
        while True:
            now = time.monotonic()
            times = [
                each for each in (handshakes.expire(now), self._expire(now)) if each is not None
            ]
            events = self._selector.select(max(0.0, min(times) - now) if times else None)
            if self._handle(events, handshakes):
                return

    def _handle(
        self, events: list[tuple[selectors.SelectorKey, int]], handshakes: Handshakes | None
    ) -> bool:
        """Go on with all that is ready, members first; return whether the agent has ended."""
        for key, _ in events:
            if key.data is self.reports:
                if self.reports.has_ended():
                    return True
                self.reports.flush()
            elif isinstance(key.data, Splice) and key.data in self._splices:
                self._advance(key.data)
        for key, _ in events:
            if handshakes is not None and not isinstance(key.data, Splice | Reports):
                proven = handshakes.handle(key)
                if proven is not None and proven.peer is not None:
                    self._join(proven.connection, proven.peer, proven.host)
        return False

    def _join(self, connection: ssl.SSLSocket, peer: NodeId, host: str) -> None:
        try:
            set_edge_options(connection, stall_milliseconds=self._stall_milliseconds)
            splice = Splice(connection, peer, host, self._inner, self._client_context)
        except OSError as error:
            _LOG.warning("cannot let node %s in: %s", peer, describe(error))
            connection.close()
            return
        self._splices.add(splice)
        self._opening[splice] = time.monotonic() + HANDSHAKE_SECONDS
        splice.start(self._selector)
        self.reports.say(f"opened {splice.peer} {splice.host}")

    def _advance(self, splice: Splice) -> None:
        try:
            if splice.advance(self._selector):
                if splice.is_open:
                    self._opening.pop(splice, None)
            else:
                self._end(splice)
            return
        except ssl.SSLError as error:
            _LOG.warning("lost a connection of node %s: %s", splice.peer, describe(error))
        except OSError as error:
            _LOG.debug("a connection of node %s ended: %s", splice.peer, describe(error))
        self._end(splice, is_broken=True)

    def _expire(self, now: float) -> float | None:
        """Give up what Zenoh has not answered in time, as where the agent is stopped.

        Returns when (``time.monotonic``) to call this again.
        """
        for splice, deadline in list(self._opening.items()):
            if now < deadline:
                return deadline
            _LOG.warning("a connection of node %s was not answered here in time", splice.peer)
            self._end(splice)
        return None

    def _end(self, splice: Splice, *, is_broken: bool = False) -> None:
        self._splices.remove(splice)
        self._opening.pop(splice, None)
        splice.close(self._selector, is_broken=is_broken)
        self.reports.say(f"closed {splice.peer} {splice.host}")


def _most_handshakes() -> int:
    """Few enough that at least three quarters of the descriptors are left for members."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_HANDSHAKES if soft == resource.RLIM_INFINITY else min(MOST_HANDSHAKES, soft // 4)


def run_acceptor(settings: AcceptorSettings, server: int, reports: int) -> None:
    """Accept control connections until the agent ends.

    ``server`` and ``reports`` are inherited descriptors: the listening socket, and the agent's.
    """
    # Both may be sent to the whole process group; the agent decides, and leaves in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    credentials = Credentials(
        node_id=NodeId(settings.node_id),
        certificate_pem=Path(settings.certificate).read_bytes(),
        private_key_pem=Path(settings.key).read_bytes(),
        authority_pem=Path(settings.authority).read_bytes(),
    )
    acceptor = Acceptor(
        socket.socket(fileno=server),
        (settings.inner_host, settings.inner_port),
        credentials,
        socket.socket(fileno=reports),
        stall_milliseconds=settings.stall_milliseconds,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[acceptor.reports])
    acceptor.run()
