"""Accepts connections, and no more of them than there may be.

asyncio's own loop accepts everything that waits, and where a process has no descriptors left it
logs a traceback for each of them. Here nothing is accepted for which there is no room, and half of
the process's descriptors stay for other things.
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
from potluck.log_rate import LogRateFilter

_log = logging.getLogger(__name__)
_log.addFilter(LogRateFilter())

_ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before the loop turns to others."""

_SPARED = 8
"""When the system had no descriptor or memory for a connection, that many are given up…"""
_SPARED_SECONDS = 5.0
"""… for this time, …"""
_RETRY_SECONDS = 0.2
"""… and where there are not even so many, accepting waits for this time."""

_TLS_SHUTDOWN_SECONDS = 300.0
"""For a client to take the rest of an answer, and to agree that the connection is closed. One that
takes nothing is noticed earlier (``LimitedProtocol``)."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Length: 0\r\n\r\n"
)


def max_connections(asked: int) -> int:
    """``asked``, or half of the descriptors that this process may have, if that is less."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if soft == resource.RLIM_INFINITY else max(1, min(asked, soft // 2))


class Acceptor:
    """Accepts from one listening socket. For one event loop."""

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
        """``connections`` are the open ones, kept up to date by the protocols themselves.

        With ``tls`` a connection is open after its handshake, which may take so many seconds.
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
        """Listen, and accept from now on."""
        self._listener.setblocking(False)
        self._listener.listen(socket.SOMAXCONN)
        self._resume()

    def close(self) -> None:
        """Accept nothing more, and end handshakes; the socket stays the caller's."""
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
                return  # when the closed one is gone, the loop comes back here
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
                connection.close()  # whoever waits for a handshake understands nothing else

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            # asyncio sets it only for sockets of a named protocol. Without it an answer's body, and
            # every token of a stream, waits for the client to acknowledge what came before: 40 ms.
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
            _log.debug("a connection was lost as it was accepted: %s", error)

    def _on_opened(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        del self._opening[task]
        if task.cancelled():
            connection.close()  # the task may not even have begun

    def _make_room(self) -> bool:
        """Close the connection that has been silent for longest; False if all are busy.

        Without it, connections that say nothing would keep others out.
        """
        protocols = [each for each in self._connections if isinstance(each, LimitedProtocol)]
        if any(each.is_aborted for each in protocols):
            return True  # the loop must turn first
        if self._opening:
            return self._tls is None or self._give_up_handshake()
        silent = [each for each in protocols if each.is_between_requests]
        if not silent:
            return False
        min(silent, key=lambda each: each.silent_since).abort()
        return True

    def _give_up_handshake(self) -> bool:
        """Give up the oldest handshake, unless one is given up already; always True.

        Those that take their time would keep others out.
        """
        if not any(task.cancelling() for task in self._opening):
            min(self._opening, key=self._opening.__getitem__).cancel()
        return True

    def _give_up_some(self, error: OSError) -> None:
        """Keep fewer connections for a while, or wait where there are none to give up."""
        if error.errno not in _EXHAUSTED:
            _log.warning("a connection could not be accepted: %s", error.strerror)
            return
        _log.warning(
            "no connection can be accepted now: %s; raise the limit of open files (ulimit -n)",
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
            _log.debug("a client that was refused had gone")
