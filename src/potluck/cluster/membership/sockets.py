"""The TCP sockets of Zenoh's links: options that Zenoh sets badly for a peer that is gone.

Zenoh flushes a link without a limit before it says that a peer is lost, and has ``close(2)`` wait
ten seconds for data that nobody takes, on the threads that serve all other links as well. Neither
can be configured, but the sockets are this process's own and can be found by their addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_SOCKET_LINK = "socket:["  # proc_pid_fd(5)
_NO_LINGER = struct.pack("ii", 0, 0)

Endpoint = tuple[str, int]


def endpoint_of(locator: str) -> Endpoint:
    """Return ``("10.0.0.7", 7333)`` for ``tls/10.0.0.7:7333?…#…``, Zenoh's way to write it."""
    address = re.split(r"[?#]", locator.partition("/")[2])[0]
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def bound_waiting(own: Endpoint, peer: Endpoint, stall_milliseconds: int) -> None:
    """Give a connection up when its peer takes or acknowledges nothing for so long.

    Closing it never waits: the kernel goes on sending what is left, for as long at most. Does
    nothing where this process has no such connection.
    """

    def bound(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_milliseconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)

    _apply(own, peer, bound)


def abort(own: Endpoint, peer: Endpoint) -> None:
    """Reset a connection: what waits for it in this process fails, and the peer is told at once.

    An orderly end would be told only after all that was sent before is acknowledged, which a peer
    that is heard and hears nothing never does.
    """
    _apply(own, peer, _reset)


def _reset(connection: socket.socket) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)  # dissolves the association: connect(2)
    if libc.connect(connection.fileno(), nowhere, len(nowhere)):
        connection.shutdown(socket.SHUT_RDWR)  # something waits in the kernel for it


def _apply(own: Endpoint, peer: Endpoint, work: Callable[[socket.socket], None]) -> None:
    """Do ``work`` with this process's connection between two addresses."""
    for descriptor in [int(path.name) for path in _DESCRIPTORS.iterdir()]:
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if not str((_DESCRIPTORS / str(descriptor)).readlink()).startswith(_SOCKET_LINK):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as duplicate:
                if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                ends = (duplicate.getsockname(), duplicate.getpeername())
                if _are_same(ends[0], own) and _are_same(ends[1], peer):
                    work(duplicate)


def _are_same(name: tuple[str, int] | tuple[str, int, int, int], endpoint: Endpoint) -> bool:
    if name[1] != endpoint[1]:  # a numeric IPv6 address has many spellings
        return False
    return ipaddress.ip_address(name[0]) == ipaddress.ip_address(endpoint[0])
