"""The HTTPS front end for newcomers: strict, and bounded in time, bytes, threads and log lines.

Anyone who can reach the port can connect. So every connection has one request, a deadline until it
has arrived, and a thread; the number of connections that have not yet sent a valid token is
limited, and the oldest is closed to make room for the next. A token is compared in constant time
with every known one, and a wrong one gets the same answer as any unknown path.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import io
import logging
import re
import selectors
import socket
import ssl
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from potluck.cluster.invitations.answers import (
    Answer,
    NewcomerRequest,
    Responder,
    error_answer,
)
from potluck.cluster.invitations.channel import KnownInvitation
from potluck.cluster.invitations.invitation import is_token, token_digest
from potluck.cluster.network.trust.connection_sources import ConnectionSource, SourceEndedError
from potluck.cluster.network.trust.handshakes import EXHAUSTED, describe
from potluck.host.log_rate import LogRate

_LOG = logging.getLogger(__name__)

REQUEST_SECONDS = 20.0
"""The time for TLS and the whole request: a board on a bad Wi-Fi completes the handshake in a
second."""

MOST_STRANGERS = 32
"""The maximum number of concurrent connections without a valid token; a newcomer sends it within
milliseconds."""

MOST_NEWCOMERS = 32
"""The maximum number of concurrent connections with a valid token: fourteen boards with two
downloads each."""

MAX_BODY_BYTES = 65_536
_MAX_HEAD_BYTES = 16_384
_MAX_PATH_CHARACTERS = 512

_SEND_SECONDS = 60.0
"""The longest wait for a newcomer that does not read an answer."""

_END_SECONDS = 2.0
"""The time for the newcomer to acknowledge the end of an answer."""

_EXHAUSTED_SECONDS = 0.1
"""How long to stop accepting when no file descriptor is left."""

_MOST_REFUSALS = 20
_REFUSAL_SECONDS = 60.0
_MOST_REFUSED_HOSTS = 1024
"""A host that has sent this many wrong tokens in this time is ignored for the same time."""

_LOG_LINES = 20
_LOG_SECONDS = 10.0

_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} [!-~]+ HTTP/\d\.\d\r?\n")
_NAME = re.compile(r"[A-Za-z0-9_+!-][A-Za-z0-9._+!-]*(?:/[A-Za-z0-9_+!-][A-Za-z0-9._+!-]*)*")


class Front:
    """Answers newcomers with what ``respond`` returns. ``run`` is for one thread, the rest for
    any.
    """

    def __init__(
        self,
        source: ConnectionSource,
        context: ssl.SSLContext,
        respond: Responder,
    ) -> None:
        self._source = source
        self._context = context
        self._respond = respond
        self._lock = threading.Lock()
        self._known: tuple[KnownInvitation, ...] = ()
        self._strangers: OrderedDict[_Visit, None] = OrderedDict()
        self._num_newcomers = 0
        self._refusals: OrderedDict[str, deque[float]] = OrderedDict()
        self._log = LogRate(lines=_LOG_LINES, seconds=_LOG_SECONDS)

    def know(self, invitations: Sequence[KnownInvitation]) -> None:
        """Use these invitations from now on."""
        with self._lock:
            self._known = tuple(invitations)

    def accept_from(self, selector: selectors.BaseSelector) -> None:
        """Register the source with ``selector``; call :meth:`accept` when it is readable."""
        selector.register(self._source.fileno(), selectors.EVENT_READ, self)

    def accept(self) -> None:
        """Accept one connection and answer it on a thread of its own.

        Raise ``SourceEndedError`` if there will be no more.
        """
        try:
            connection, (host, *_) = self._source.accept()
        except SourceEndedError:
            raise
        except OSError as error:  # usually it was closed before it was accepted
            if error.errno in EXHAUSTED:
                time.sleep(_EXHAUSTED_SECONDS)
            return
        if self._is_refused(host):
            connection.close()
            return
        visit = _Visit(connection, host)
        with self._lock:
            oldest = None
            if len(self._strangers) >= MOST_STRANGERS:
                oldest, _ = self._strangers.popitem(last=False)
            self._strangers[visit] = None
        if oldest is not None:
            oldest.cut()
        serving = threading.Thread(target=self._serve, args=(visit,), name="newcomer", daemon=True)
        try:
            serving.start()
        except RuntimeError:  # no further thread can be started
            self._forget(visit)
            connection.close()

    def find(self, token: str) -> KnownInvitation | None:
        """Return the invitation of a token. Takes the same time for a wrong one as for any
        other.
        """
        with self._lock:
            known = self._known
        digest = token_digest(token)
        found = None
        for each in known:
            if hmac.compare_digest(each.token_sha256, digest):
                found = each
        return found

    def answer(self, request: NewcomerRequest, invitation: KnownInvitation) -> Answer:
        """Return the answer for a client with the token of ``invitation``."""
        closed = invitation.closed
        if not closed and time.time() >= invitation.expires:
            closed = "it has expired"
        if closed and not (invitation.is_used_up and request.name == "certificate"):
            return error_answer(
                410, f"the invitation is not open: {closed}", "ask for a new one: potluck invite"
            )
        return self._respond(request) or error_answer(404, "not found")

    def enter(self, visit: _Visit) -> bool:
        """Admit a connection that has sent a valid token; return whether there is room for it."""
        with self._lock:
            self._strangers.pop(visit, None)
            if self._num_newcomers >= MOST_NEWCOMERS:
                return False
            self._num_newcomers += 1
            return True

    def leave(self) -> None:
        """Note that an admitted connection has ended."""
        with self._lock:
            self._num_newcomers -= 1

    def note_refusal(self, host: str, reason: str) -> None:
        """Count and log a connection that was refused."""
        with self._lock:
            if self._log.allows():
                _LOG.warning(
                    "refused a connection from %s to the invitation server: %s", host, reason
                )
            if suppressed := self._log.take():
                _LOG.warning("refused %d more connections to the invitation server", suppressed)

    def note_wrong_token(self, host: str) -> None:
        """Count a host that has sent an unknown token."""
        with self._lock:
            times = self._refusals.setdefault(host, deque(maxlen=_MOST_REFUSALS))
            self._refusals.move_to_end(host)
            times.append(time.monotonic())
            while len(self._refusals) > _MOST_REFUSED_HOSTS:
                self._refusals.popitem(last=False)
        self.note_refusal(host, "unknown token")

    def _is_refused(self, host: str) -> bool:
        with self._lock:
            times = self._refusals.get(host)
            return (
                times is not None
                and len(times) == _MOST_REFUSALS
                and time.monotonic() - times[0] < _REFUSAL_SECONDS
            )

    def _serve(self, visit: _Visit) -> None:
        deadline = time.monotonic() + REQUEST_SECONDS
        try:
            visit.connection.settimeout(REQUEST_SECONDS)
            with visit.secured(self._context) as connection:
                connection.do_handshake()
                _Exchange(connection, visit, self, deadline)
                connection.settimeout(_END_SECONDS)
                with contextlib.suppress(OSError):
                    connection.unwrap()
        except OSError as error:
            self.note_refusal(visit.host, describe(error))
        except Exception:  # noqa: BLE001 - a defect of one request must not pass unseen
            _LOG.exception("a request for an invitation failed")
        finally:
            self._forget(visit)
            visit.connection.close()

    def _forget(self, visit: _Visit) -> None:
        with self._lock:
            self._strangers.pop(visit, None)


class _Visit:
    """A connection, before and after TLS is added."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        self.connection = connection
        self.host = host

    def secured(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return the same connection with TLS, before its handshake."""
        secured = context.wrap_socket(
            self.connection, server_side=True, do_handshake_on_connect=False
        )
        self.connection = secured
        return secured

    def cut(self) -> None:
        """Make the thread that serves it see its end. On any thread."""
        with contextlib.suppress(OSError):
            # Not that of ``ssl``, which would remove TLS while the other thread uses it.
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


class _Bounded(io.RawIOBase):
    """The data that a connection sends, until a deadline and up to a number of bytes."""

    def __init__(self, connection: ssl.SSLSocket, deadline: float, max_bytes: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = max_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for some bytes. Raise ``TimeoutError`` at the deadline."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it did not send its request in time")
        self._connection.settimeout(seconds)
        view = memoryview(buffer)[: self._left]
        if not view:
            return 0
        num_bytes = self._connection.recv_into(view)
        self._left -= num_bytes
        return num_bytes


class _Exchange(http.server.BaseHTTPRequestHandler):
    """One request and its answer."""

    server_version = "potluck"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    raw_requestline = b""
    default_request_version = "HTTP/1.1"  # of an answer to a request without a version

    def __init__(
        self, connection: ssl.SSLSocket, visit: _Visit, front: Front, deadline: float
    ) -> None:
        self._visit = visit
        self._host = visit.host
        self._front = front
        self._deadline = deadline
        self._tls = connection
        super().__init__(connection, (visit.host, 0), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Read with limits; write without a buffer."""
        super().setup()
        self.rfile.close()
        bounded = _Bounded(self._tls, self._deadline, _MAX_HEAD_BYTES + MAX_BODY_BYTES)
        self.rfile = io.BufferedReader(bounded)

    def handle(self) -> None:
        """Handle a single request: the connection ends with its answer."""
        self.handle_one_request()

    def parse_request(self) -> bool:
        """Refuse what HTTP/1.1 does not allow or this server does not need."""
        self.close_connection = True
        if len(self.raw_requestline) > _MAX_PATH_CHARACTERS + 32:
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            return self._refuse(414, "its request line is too long")
        if not _REQUEST_LINE.fullmatch(self.raw_requestline):
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            return self._refuse(400, "it did not send an HTTP request")
        if not super().parse_request():
            self._front.note_refusal(self._host, "it did not send an HTTP request")
            return False
        self.close_connection = True
        if self.request_version not in ("HTTP/1.0", "HTTP/1.1"):
            self.request_version = "HTTP/1.1"
            return self._refuse(505, "it uses another version of HTTP")
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) > 1:
            return self._refuse(400, "its request must have exactly one Content-Length")
        if self.command == "POST" and not lengths:
            return self._refuse(411, "its request has no Content-Length")
        if lengths and not (lengths[0].isascii() and lengths[0].isdigit() and len(lengths[0]) < 9):
            return self._refuse(400, "its request has an invalid Content-Length")
        if lengths and int(lengths[0]) > MAX_BODY_BYTES:
            return self._refuse(413, f"its request is larger than {MAX_BODY_BYTES:,} bytes")
        if self.command == "GET" and lengths and int(lengths[0]):
            return self._refuse(400, "its request has a body")
        return True

    def do_GET(self) -> None:
        """Answer a GET."""
        self._respond(b"")

    def do_POST(self) -> None:
        """Answer a POST."""
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) != length:
            self._front.note_refusal(self._host, "its request is incomplete")
            return
        self._respond(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: paths contain tokens."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error in the same form as every other error here."""
        self._send(error_answer(code, message or "malformed request"))

    def _refuse(self, status: int, reason: str) -> bool:
        self._front.note_refusal(self._host, reason)
        self._send(error_answer(status, f"refused: {reason}"))
        return False

    def _respond(self, body: bytes) -> None:
        prefix, _, rest = self.path.removeprefix("/").partition("/")
        token, _, name = rest.partition("/")
        invitation = self._front.find(token) if prefix == "join" and is_token(token) else None
        if invitation is None:
            self._front.note_wrong_token(self._host)
            self._send(error_answer(404, "not found"))
            return
        if not _NAME.fullmatch(name):
            self._send(error_answer(404, "not found"))
            return
        if not self._front.enter(self._visit):
            self._send(
                error_answer(503, "too many machines are joining at the moment", "try again")
            )
            return
        try:
            own_host, own_port = self._tls.getsockname()[:2]
            request = NewcomerRequest(
                invitation_id=invitation.invitation_id,
                token=token,
                host=own_host,
                port=own_port,
                newcomer=self._host,
                method=self.command,
                name=name,
                body=body,
            )
            self._send(self._front.answer(request, invitation))
        finally:
            self._front.leave()

    def _send(self, answer: Answer) -> None:
        self._tls.settimeout(_SEND_SECONDS)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        if answer.length is not None:
            self.send_header("Content-Length", str(answer.length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        num_sent = 0
        try:
            for chunk in answer.chunks:
                self.wfile.write(chunk)
                num_sent += len(chunk)
        finally:
            close = getattr(answer.chunks, "close", None)
            if close is not None:
                close()
        if answer.length is not None and num_sent != answer.length:
            raise ConnectionAbortedError(f"only {num_sent} of {answer.length} bytes were available")
