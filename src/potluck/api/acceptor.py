"""Accept connections up to a limit.

asyncio's own loop accepts every pending connection, and when the process has run out of file
descriptors it logs a traceback for each one. The acceptor here accepts a connection only when there
is room for it, and leaves half of the process's descriptors for other uses.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Collection
from functools import partial

from potluck.api.protocol import LimitedProtocol
from potluck.host.log_rate import LogRateFilter

_log = logging.getLogger(__name__)
_log.addFilter(LogRateFilter())

_ACCEPTED_AT_ONCE = 32
"""Connections accepted before control returns to the event loop."""

_SPARED = 8
"""Connections given up when the system has no descriptor or memory for another one…"""
_SPARED_SECONDS = 5.0
"""… for this many seconds. …"""
_RETRY_SECONDS = 0.2
"""… If there are not that many to give up, accepting pauses for this many seconds."""

_TLS_SHUTDOWN_SECONDS = 300.0
"""Time for a client to receive the rest of a response and acknowledge the close. A client that
receives nothing is detected earlier (``LimitedProtocol``)."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Length: 0\r\n\r\n"
)


def max_connections(requested: int) -> int:
    """Return ``requested``, or half of this process's file descriptor limit if that is lower."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return requested if soft == resource.RLIM_INFINITY else max(1, min(requested, soft // 2))


class Acceptor:
    """Accepts connections from one listening socket. Belongs to one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Collection[object],
        new_protocol: Callable[[], asyncio.Protocol],
        limit: int,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_seconds: float = 10.0,
    ) -> None:
        """Initialize; ``connections`` holds the open connections, and the protocols update it.

        With ``tls``, a connection is open once its handshake completes, which may take
        ``handshake_seconds``.
        """
        self._listener = listener
        self._connections = connections
        self._new_protocol = new_protocol
        self._limit = limit
        self._limit_now = limit
        self._restore: asyncio.TimerHandle | None = None
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._opening: dict[asyncio.Task[None], float] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Start listening and accepting connections."""
        self._listener.setblocking(False)
        self._listener.listen(socket.SOMAXCONN)
        self._resume()

    def close(self) -> None:
        """Stop accepting and abort handshakes in progress; the caller still owns the socket."""
        for timer in (self._retry, self._restore):
            if timer is not None:
                timer.cancel()
        for task in self._opening:
            task.cancel()
        self._loop.remove_reader(self._listener)

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener, self._on_waiting)

    def _on_waiting(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            is_full = len(self._connections) + len(self._opening) >= self._limit_now
            if is_full and self._make_room():
                return  # the loop resumes here once the closed connection is gone
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._give_up_some(error)
                return
            if not is_full:
                task = self._loop.create_task(self._open(connection))
                self._opening[task] = self._loop.time()
                task.add_done_callback(partial(self._on_opened, connection))
            elif self._tls is None:
                _refuse(connection)
            else:
                # a client that is still in the handshake could not read a response
                connection.close()

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            # asyncio sets TCP_NODELAY only on sockets with a named protocol. Without it a response
            # body, and every token of a stream, would wait up to 40 ms for the client to
            # acknowledge the previous segment.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._new_protocol, connection)
            else:
                await self._loop.connect_accepted_socket(
                    self._new_protocol,
                    connection,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._handshake_seconds,
                    ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
                )
        except OSError as error:
            connection.close()
            _log.debug("a connection was lost while it was being accepted: %s", error)

    def _on_opened(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        del self._opening[task]
        if task.cancelled():
            connection.close()  # the task may not have started yet

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; return False if all are busy.

        Otherwise idle connections would keep new clients out.
        """
        protocols = [each for each in self._connections if isinstance(each, LimitedProtocol)]
        if any(each.is_aborted for each in protocols):
            return True  # the event loop has to run first
        if self._opening:
            # Slow handshakes would keep new clients out: the oldest is aborted, one at a time.
            if self._tls is not None and not any(task.cancelling() for task in self._opening):
                min(self._opening, key=self._opening.__getitem__).cancel()
            return True
        silent = [each for each in protocols if each.is_between_requests]
        if not silent:
            return False
        min(silent, key=lambda each: each.silent_since).abort()
        return True

    def _give_up_some(self, error: OSError) -> None:
        """Lower the connection limit for a while, or pause accepting if that is impossible."""
        if error.errno not in _EXHAUSTED:
            _log.warning("could not accept a connection: %s", error.strerror)
            return
        _log.warning(
            "cannot accept connections at the moment: %s; raise the limit of open files "
            "(ulimit -n)",
            error.strerror,
        )
        if self._restore is not None:
            self._restore.cancel()
        self._restore = self._loop.call_later(_SPARED_SECONDS, self._restore_limit)
        self._limit_now = max(1, len(self._connections) - _SPARED)
        if len(self._connections) <= self._limit_now:
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)

    def _restore_limit(self) -> None:
        self._restore = None
        self._limit_now = self._limit


def _refuse(connection: socket.socket) -> None:
    with connection:
        connection.setblocking(False)
        try:
            connection.send(_REFUSAL)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            _log.debug("a refused client had already disconnected")
