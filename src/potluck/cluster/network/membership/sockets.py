"""The TCP sockets of Zenoh's links, to handle peers that do not read, which Zenoh does badly.

A thread that sends to such a peer waits with a lock held that Zenoh's only writer thread needs to
close the link; meanwhile no keep-alive reaches any other peer. Zenoh also flushes a link without a
time limit before it reports a peer as lost, and has ``close(2)`` linger for ten seconds, on threads
that serve all links. None of this can be configured, but the sockets belong to this process and can
be found by their addresses.
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
from collections.abc import Callable, Iterator
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_SOCKET_LINK = "socket:["
_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes that were never sent
_NO_LINGER = struct.pack("ii", 0, 0)

Endpoint = tuple[str, int]

MAX_UNSENT_BYTES = 32_768
"""How much may be queued in a socket before more is given to Zenoh: half of the initial buffer that
Linux grants, so that Zenoh's writer never blocks on the network while it holds the queue's locks.
"""


def endpoint_of(locator: str) -> Endpoint:
    """Return ``("10.0.0.7", 7333)`` for ``tls/10.0.0.7:7333?…#…``, Zenoh's notation."""
    address = re.split(r"[?#]", locator.partition("/")[2])[0]
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


class LinkSockets:
    """The sockets of a session's links, by the id of the session at the other end.

    Holds duplicates of Zenoh's descriptors. Thread-safe; nothing here blocks.
    """

    def __init__(self, stall_milliseconds: int) -> None:
        self._stall_milliseconds = stall_milliseconds
        self._lock = threading.Lock()
        self._links: dict[str, list[_Held]] = {}
        self._is_closed = False

    def opened(
        self, peer: str, own_end: Endpoint, other_end: Endpoint, node: str | None = None
    ) -> None:
        """Have a new link closed if its peer reads or acknowledges nothing for too long.

        Closing it never blocks: the kernel continues to send what is left. ``node`` is the common
        name of the peer's certificate. Does nothing if this process has no such connection.
        """
        found = find_socket(
            lambda each: (
                are_same(each.getsockname(), own_end) and are_same(each.getpeername(), other_end)
            )
        )
        if found is None:
            return
        _, connection = found
        with contextlib.suppress(OSError):  # it has ended already
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._stall_milliseconds
            )
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        with self._lock:
            if not self._is_closed:
                held = _Held(own_end, other_end, connection, node)
                self._links.setdefault(peer, []).append(held)
                return
        connection.close()

    def given_up(self, peer: str, own_end: Endpoint, other_end: Endpoint) -> None:
        """Reset a link: pending sends in this process fail, and the peer is notified immediately.

        An orderly close would be sent only after all earlier data is acknowledged, which may never
        happen if packets reach this node but not the peer.
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

    def refuse(self, is_refused: Callable[[str], bool]) -> None:
        """Reset every link whose peer's certificate names a refused node."""
        self._reset_all(lambda node: node is not None and is_refused(node))

    def reset(self) -> None:
        """Reset all links, so that no send waits for a peer any longer."""
        self._reset_all(lambda node: True)

    def forget(self, peer: str) -> None:
        """Release the links of a session that has ended."""
        with self._lock:
            held = self._links.pop(peer, [])
        for each in held:
            each.connection.close()

    def is_clear(self, peer: str) -> bool:
        """Return whether everything sent to ``peer`` has left this machine, as far as is known."""
        with self._lock:
            return all(
                _unsent_bytes(each.connection) <= MAX_UNSENT_BYTES
                for each in self._links.get(peer, ())
            )

    def close(self) -> None:
        """Release all descriptors, and accept no new ones."""
        with self._lock:
            self._is_closed = True
            held = [each for several in self._links.values() for each in several]
            self._links.clear()
        for each in held:
            each.connection.close()

    def _reset_all(self, should_reset: Callable[[str | None], bool]) -> None:
        """Reset the links for whose node ``should_reset`` is true; the node is None without TLS."""
        with self._lock:
            held = [each for several in self._links.values() for each in several]
        for each in held:
            if should_reset(each.node):
                with contextlib.suppress(OSError):  # it has ended already
                    _reset(each.connection)


class _Held:
    def __init__(
        self, own: Endpoint, other: Endpoint, connection: socket.socket, node: str | None
    ) -> None:
        self.ends = (own, other)
        self.connection = connection
        self.node = node


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
        connection.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for it in the kernel


def find_socket(is_wanted: Callable[[socket.socket], bool]) -> tuple[int, socket.socket] | None:
    """Return the descriptor of this process's first IPv4 or IPv6 socket for which ``is_wanted`` is
    true, and a duplicate, which the caller owns; None if there is none.

    ``is_wanted`` may raise ``OSError``, such as for a socket that is not connected.
    """
    for descriptor, target in descriptors():
        if not target.startswith(_SOCKET_LINK):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as unless_wanted:
            copy = os.dup(descriptor)  # perhaps of a file by now: left open, it would keep a lock
            unless_wanted.callback(os.close, copy)
            duplicate = socket.socket(fileno=copy)
            unless_wanted.callback(duplicate.detach)
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and is_wanted(duplicate):
                unless_wanted.pop_all()
                return descriptor, duplicate
    return None


def descriptors() -> Iterator[tuple[int, str]]:
    """Yield the descriptors of this process with what they refer to: proc_pid_fd(5)."""
    for path in list(_DESCRIPTORS.iterdir()):
        try:
            target = str(path.readlink())
        except OSError:  # closed in the meantime
            continue
        yield int(path.name), target


def are_same(name: tuple[str, int] | tuple[str, int, int, int], endpoint: Endpoint) -> bool:
    """Return whether the name of a socket is ``endpoint``, in any spelling of its numeric host."""
    if name[1] != endpoint[1]:
        return False
    return ipaddress.ip_address(name[0]) == ipaddress.ip_address(endpoint[0])
