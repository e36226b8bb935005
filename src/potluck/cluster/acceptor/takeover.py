"""Takes over a listening socket from the library that opened it.

Zenoh itself advertises the addresses it listens on, and cannot be told to advertise others. So it
opens the public address; then this module unregisters the socket from the library's event loop and
gives it to the acceptor. The library keeps the socket but never sees a connection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_EPOLL_LINK = "anon_inode:[eventpoll]"  # proc_pid_fd(5)


def take_listener(address: tuple[str, int]) -> socket.socket:
    """Return a duplicate of the socket on which this process listens at ``address``.

    ``address`` is numeric. The listener is removed from every ``epoll(7)`` instance that watched
    it. Raises ``OSError`` if this process does not listen there, or nothing watches the socket.
    """
    for descriptor in _descriptors():
        listener = _listener(descriptor, address)
        if listener is not None:
            break
    else:
        raise OSError(f"this process does not listen at {address[0]} port {address[1]}")
    if not _forget(descriptor):
        listener.close()
        raise OSError("no event loop of this process watches its listening socket")
    return listener


def _descriptors() -> Iterator[int]:
    yield from (int(path.name) for path in _DESCRIPTORS.iterdir())


def _listener(descriptor: int, address: tuple[str, int]) -> socket.socket | None:
    """Return a duplicate of the descriptor if it is the TCP socket that listens there."""
    try:
        copy = os.dup(descriptor)
    except OSError:  # closed in the meantime
        return None
    try:
        duplicate = socket.socket(fileno=copy)
    except OSError:  # not a socket; a copy left open would keep a lock on its file
        os.close(copy)
        return None
    with contextlib.suppress(OSError):
        is_listening = duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        is_inet = duplicate.family in (socket.AF_INET, socket.AF_INET6)
        if is_listening and is_inet and _is_at(duplicate, address):
            return duplicate
    duplicate.close()
    return None


def _is_at(listener: socket.socket, address: tuple[str, int]) -> bool:
    host, port = listener.getsockname()[:2]
    is_there = port == address[1]  # a numeric IPv6 address has many spellings
    return is_there and ipaddress.ip_address(host) == ipaddress.ip_address(address[0])


def _forget(watched: int) -> bool:
    """Unregister a descriptor from every epoll instance of this process; return whether one knew
    it.
    """
    num_forgotten = 0
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            if str((_DESCRIPTORS / str(descriptor)).readlink()) != _EPOLL_LINK:
                continue
            with select.epoll.fromfd(os.dup(descriptor)) as instance:
                instance.unregister(watched)  # ENOENT: it watches others
                num_forgotten += 1
    return num_forgotten > 0
