"""Sources of incoming connections: a listening socket, or another process that passes them on.

All traffic between nodes arrives at one port. The acceptor (``cluster.network.acceptor``) peeks at
the start of each connection and passes the connection, unread, over a ``SOCK_SEQPACKET`` socket to
the process that it is for. A plain listening socket is a ``ConnectionSource``, too. Needs only the
standard library.
"""

from __future__ import annotations

import contextlib
import socket
from array import array
from typing import Any, Protocol

_MAX_MESSAGE_BYTES = 128
"""Enough for an address and a port as text."""

_CHANNEL_BYTES = 32 * 1024
"""The send buffer of a channel, which limits the connections waiting there to about 80."""


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of a numeric IP address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def open_listener(host: str, *, backlog: int) -> socket.socket:
    """Return a non-blocking listener at a free port of a numeric address. Raises ``OSError``."""
    server = socket.create_server((host, 0), family=family_of(host), backlog=backlog)
    server.setblocking(False)
    return server


class ConnectionSource(Protocol):
    """A source of new connections, from which nothing has been read."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there may be a connection."""
        ...

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection, in blocking mode, and its address, which begins (host, port).

        Never blocks if the source is non-blocking. Raises ``BlockingIOError`` if no connection is
        waiting, ``SourceEndedError`` if there will be no more, and other ``OSError``.
        """
        ...

    def close(self) -> None:
        """Stop accepting connections."""
        ...


class SourceEndedError(ConnectionError):
    """The process that passes connections on has exited or closed its end."""


class HandedConnections:
    """The receiving end of a channel made by :func:`connection_channel`. Never blocks.

    Several objects may share a channel (see ``duplicate``); each connection goes to one of them.
    For one thread at a time.
    """

    def __init__(self, channel: socket.socket) -> None:
        """Take ownership of ``channel``."""
        channel.setblocking(False)
        self._channel = channel

    def fileno(self) -> int:
        """Return the descriptor of the channel."""
        return self._channel.fileno()

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection and its peer's host and port."""
        data, descriptors = receive_descriptors(self._channel, _MAX_MESSAGE_BYTES)
        if not data and not descriptors:
            raise SourceEndedError("the channel was closed")
        if not descriptors:
            # This process had no descriptor left for it, and the kernel has closed the connection.
            raise ConnectionAbortedError("a connection could not be received")
        connection = socket.socket(fileno=descriptors[0])
        try:
            host, port = data.decode("ascii").split(" ")
            connection.setblocking(True)
            return connection, (host, int(port))
        except ValueError as error:
            connection.close()
            raise ConnectionAbortedError(
                "a connection was passed on with a malformed address"
            ) from error
        except BaseException:
            connection.close()
            raise

    def duplicate(self) -> HandedConnections:
        """Return another object for the same channel, which stays open when this one is closed."""
        return HandedConnections(self._channel.dup())

    def drop_waiting(self) -> None:
        """Close the connections that wait to be accepted."""
        with contextlib.suppress(BlockingIOError, SourceEndedError):
            while True:
                with contextlib.suppress(ConnectionAbortedError):
                    self.accept()[0].close()

    def close(self) -> None:
        """Close this end and the connections that wait to be accepted."""
        if self._channel.fileno() >= 0:
            with contextlib.suppress(OSError):
                self.drop_waiting()
            self._channel.close()


def connection_channel() -> tuple[socket.socket, socket.socket]:
    """Return a receiving end, for ``HandedConnections``, and a sending end, for ``hand_over``.

    Both can be inherited by child processes and sent to other processes.
    """
    receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHANNEL_BYTES)
    return receiving, sending


def hand_over(sending: socket.socket, connection: socket.socket, host: str, port: int) -> None:
    """Pass ``connection``, from ``host`` and ``port``, to the receiver; the caller closes its own
    copy.

    Never blocks. Raises ``BlockingIOError`` if too many connections wait there, and ``OSError`` if
    the receiver is gone.
    """
    send_descriptor(sending, f"{host} {port}".encode("ascii"), connection)


def send_descriptor(channel: socket.socket, message: bytes, passed: socket.socket | None) -> None:
    """Send a message, with a socket if one is given. Raises ``BlockingIOError`` rather than
    waiting.
    """
    rights = [] if passed is None else [passed.fileno()]
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", rights))] if rights else []
    # ``socket.send_fds`` ignores its flags, as ``socket.recv_fds`` does.
    channel.sendmsg([message], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive_descriptors(channel: socket.socket, max_bytes: int) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptor sent with it, if any.

    The list is empty also if this process has no descriptor left. Both are empty at the end of the
    stream. Raises ``BlockingIOError`` rather than waiting.
    """
    descriptors = array("i")
    data, ancillary, _, _ = channel.recvmsg(
        max_bytes,
        socket.CMSG_SPACE(descriptors.itemsize),
        socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)
