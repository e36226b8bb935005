"""One datagram to the group by which nodes find each other, and whether it arrives.

Group and port are those of Zenoh's scouting, so that the way through switches and firewalls is the
very one that discovery takes. What is sent is no message of Zenoh, which ignores it.
"""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Self

GROUP = "224.0.0.224"
PORT = 7446

NUM_NONCE_BYTES = 16
_MAGIC = b"potluck doctor\0"
_IP_MULTICAST_ALL = 49
"""``linux/in.h``; Python has no name for it."""


def send_datagram(interface: str, nonce: bytes, *, hops: int) -> None:
    """Send ``nonce`` once, from the interface with this IPv4 address; with 0 hops it stays here.

    Raises ``OSError``.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sender.sendto(_MAGIC + nonce, (GROUP, PORT))


class MulticastEar:
    """Listens on one interface from its making until the block ends. Raises ``OSError``."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            # Zenoh of an agent on this machine listens there too.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((GROUP, PORT))
            member = socket.inet_aton(GROUP) + socket.inet_aton(interface)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            # Without this Linux gives what arrives on any interface where anybody is a member.
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        except OSError:
            self._socket.close()
            raise

    def hear(self, nonce: bytes, *, seconds: float) -> bool:
        """Wait for ``nonce``; whether it came in time. Other datagrams are passed over."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(len(_MAGIC) + NUM_NONCE_BYTES + 1)
            except TimeoutError:
                return False
            if data == _MAGIC + nonce:
                return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
