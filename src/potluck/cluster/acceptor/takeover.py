"""Taking a listening socket from the library that opened it.

Zenoh tells other nodes the addresses that it listens on itself, and cannot be told to name others.
So it opens the public address; then this module has the library's event loop forget the socket,
and gives it to the acceptor. The library goes on holding it, and never hears of a connection.
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
    """A socket of its own that accepts what comes to ``address``, where this process listens.

    ``address`` is numeric. Whatever watched the listener by ``epoll(7)`` does not any more. Raises
    ``OSError`` where this process does not listen there, or nothing watches it.
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
    """A duplicate of the descriptor if it is the TCP socket that listens there."""
    try:
        copy = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return None
    try:
        duplicate = socket.socket(fileno=copy)
    except OSError:  # no socket; a copy that stays open would keep a lock on its file
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
    """Have every epoll instance of this process forget a descriptor; whether one knew it."""
    num_forgotten = 0
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            if str((_DESCRIPTORS / str(descriptor)).readlink()) != _EPOLL_LINK:
                continue
            with select.epoll.fromfd(os.dup(descriptor)) as instance:
                instance.unregister(watched)  # ENOENT: it watches others
                num_forgotten += 1
    return num_forgotten > 0
