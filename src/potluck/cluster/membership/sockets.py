"""The TCP sockets of Zenoh's links, for what Zenoh does badly with a peer that does not read.

A thread that sends waits for such a peer with a lock held that Zenoh's only writing thread takes to
close the link: then no keep-alive reaches any other peer. Zenoh also flushes a link without limit
before it says that a peer is lost, and has ``close(2)`` wait ten seconds for data that nobody
takes, on threads that serve all links. None of it can be configured, but the sockets are this
process's own, and can be found by their addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import re
import socket
import struct
import sys
import threading
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_SOCKET_LINK = "socket:["  # proc_pid_fd(5)
_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes that were never sent, not even once
_NO_LINGER = struct.pack("ii", 0, 0)

Endpoint = tuple[str, int]

MAX_UNSENT_BYTES = 32_768
"""What may wait in a socket before more is given to Zenoh. Half of what Linux grants a socket from
the start: so Zenoh's writer never waits for the network while it holds the locks of its queue."""


def endpoint_of(locator: str) -> Endpoint:
    """Return ``("10.0.0.7", 7333)`` for ``tls/10.0.0.7:7333?…#…``, Zenoh's way to write it."""
    address = re.split(r"[?#]", locator.partition("/")[2])[0]
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


class LinkSockets:
    """The sockets of a session's links, by the id of the session at the other end.

    Holds duplicates of Zenoh's descriptors. For use on any thread; nothing here waits.
    """

    def __init__(self, stall_milliseconds: int) -> None:
        self._stall_milliseconds = stall_milliseconds
        self._lock = threading.Lock()
        self._links: dict[str, list[_Held]] = {}
        self._is_closed = False

    def opened(self, peer: str, own_end: Endpoint, other_end: Endpoint) -> None:
        """Have a new link given up when its peer takes or acknowledges nothing for too long.

        Closing it never waits: the kernel goes on sending what is left. Does nothing where this
        process has no such connection.
        """
        connection = _find(own_end, other_end)
        if connection is None:
            return
        with contextlib.suppress(OSError):  # it has ended already
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._stall_milliseconds
            )
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        with self._lock:
            if not self._is_closed:
                self._links.setdefault(peer, []).append(_Held(own_end, other_end, connection))
                return
        connection.close()

    def given_up(self, peer: str, own_end: Endpoint, other_end: Endpoint) -> None:
        """Reset a link: what waits for it in this process fails, and the peer is told at once.

        An orderly end would be told only after all that was sent before is acknowledged, which a
        peer that is heard and hears nothing never does.
        """
        with self._lock:
            held = self._links.pop(peer, [])
            ended = [each for each in held if each.ends == (own_end, other_end)]
            others = [each for each in held if each not in ended]
            if others:
                self._links[peer] = others
        for each in ended:
            with contextlib.suppress(OSError), each.connection:
                _reset(each.connection)

    def forget(self, peer: str) -> None:
        """A session is gone, and its links with it."""
        with self._lock:
            held = self._links.pop(peer, [])
        for each in held:
            each.connection.close()

    def is_clear(self, peer: str) -> bool:
        """Whether what was sent to ``peer`` is on its way, as far as this process can tell."""
        with self._lock:
            return all(
                _unsent_bytes(each.connection) <= MAX_UNSENT_BYTES
                for each in self._links.get(peer, ())
            )

    def close(self) -> None:
        """Hold no more descriptors, and take no new ones."""
        with self._lock:
            self._is_closed = True
            held = [each for several in self._links.values() for each in several]
            self._links.clear()
        for each in held:
            each.connection.close()


class _Held:
    def __init__(self, own: Endpoint, other: Endpoint, connection: socket.socket) -> None:
        self.ends = (own, other)
        self.connection = connection


def _unsent_bytes(connection: socket.socket) -> int:
    try:
        packed = fcntl.ioctl(connection, _SIOCOUTQNSD, bytes(4))
    except OSError:  # it has ended
        return 0
    return int.from_bytes(packed, sys.byteorder)


def _reset(connection: socket.socket) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)  # dissolves the association: connect(2)
    if libc.connect(connection.fileno(), nowhere, len(nowhere)):
        connection.shutdown(socket.SHUT_RDWR)  # something waits in the kernel for it


def _find(own: Endpoint, other: Endpoint) -> socket.socket | None:
    """A duplicate of this process's connection between two addresses."""
    for descriptor in [int(path.name) for path in _DESCRIPTORS.iterdir()]:
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if not str((_DESCRIPTORS / str(descriptor)).readlink()).startswith(_SOCKET_LINK):
                continue
            duplicate = socket.socket(fileno=os.dup(descriptor))
            if _is_between(duplicate, own, other):
                return duplicate
            duplicate.close()
    return None


def _is_between(connection: socket.socket, own: Endpoint, other: Endpoint) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:  # not connected
        return False
    return _are_same(here, own) and _are_same(there, other)


def _are_same(name: tuple[str, int] | tuple[str, int, int, int], endpoint: Endpoint) -> bool:
    if name[1] != endpoint[1]:  # a numeric IPv6 address has many spellings
        return False
    return ipaddress.ip_address(name[0]) == ipaddress.ip_address(endpoint[0])
