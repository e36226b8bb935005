"""One datagram to the group by which nodes find each other, and whether it arrives.

Group and port are those of Zenoh's scouting, so that the way through switches and firewalls is the
very one that discovery takes. What is sent is no message of Zenoh, which ignores it.
"""

from __future__ import annotations

import socket

GROUP = "224.0.0.224"
PORT = 7446

NUM_NONCE_BYTES = 16
MAX_DATAGRAM_BYTES = 64
"""Longer ones are not ours, and may be cut off."""

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


def open_ear(interface: str) -> socket.socket:
    """A socket that hears what arrives for the group on the interface with this address.

    The caller closes it. Raises ``OSError``.
    """
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        # Zenoh of an agent on this machine listens there too.
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ear.bind((GROUP, PORT))
        member = socket.inet_aton(GROUP) + socket.inet_aton(interface)
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        # Without this Linux gives what arrives on any interface where anybody is a member.
        ear.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    except OSError:
        ear.close()
        raise
    return ear


def nonce_of(data: bytes) -> bytes | None:
    """The nonce of a datagram; None if it is another's, as those of Zenoh are."""
    return data.removeprefix(_MAGIC) if data.startswith(_MAGIC) else None
