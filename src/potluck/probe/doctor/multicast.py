"""Send one datagram to the group that nodes use for discovery, and check whether it arrives.

Group and port are those of Zenoh's scouting, so that it takes the same path through switches and
firewalls as discovery. The datagram is not a Zenoh message, so Zenoh ignores it.
"""

from __future__ import annotations

import socket

GROUP = "224.0.0.224"
PORT = 7446

NUM_NONCE_BYTES = 16
MAX_DATAGRAM_BYTES = 64
"""Longer datagrams are not Potluck's, and may be truncated."""

_MAGIC = b"potluck doctor\0"
_IP_MULTICAST_ALL = 49
"""``linux/in.h``; Python has no name for it."""


def send_datagram(interface: str, nonce: bytes, *, hops: int) -> None:
    """Send ``nonce`` once, from the interface with this IPv4 address; with 0 hops it stays on this
    machine.

    Raise ``OSError`` on failure.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sender.sendto(_MAGIC + nonce, (GROUP, PORT))


def open_multicast_receiver(interface: str) -> socket.socket:
    """Open a socket that receives datagrams for the group on the interface with this address.

    The caller closes it. Raise ``OSError`` on failure.
    """
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        # The Zenoh session of an agent on this machine may listen there too.
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.bind((GROUP, PORT))
        member = socket.inet_aton(GROUP) + socket.inet_aton(interface)
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        # Without this, Linux delivers datagrams from any interface on which any process has joined
        # the group.
        ear.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    except OSError:
        ear.close()
        raise
    return ear


def nonce_of(data: bytes) -> bytes | None:
    """Return the nonce of a datagram; None if it is not ours, such as Zenoh's."""
    return data.removeprefix(_MAGIC) if data.startswith(_MAGIC) else None
