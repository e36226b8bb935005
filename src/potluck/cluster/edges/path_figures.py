"""What the kernel knows of the network between the two ends of a TCP connection.

Read from ``TCP_INFO`` (``struct tcp_info`` in ``linux/tcp.h``): asking costs one system call, and
sends nothing. Kernels before 4.9 return a shorter structure.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_U64 = struct.Struct("=Q")
_BYTE_OF_FLAGS = 7
_APP_LIMITED = 1
_BYTES_ACKED = 120
_BYTES_RECEIVED = 128
_U32 = struct.Struct("=I")
_MIN_RTT_AT = 148
_RECENT_RTT_AT = 68
_DELIVERY_RATE_AT = 160
_NUM_BYTES = _DELIVERY_RATE_AT + _U64.size

_NO_RTT = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFigures:
    """Of one connection, as its sender sees it.

    ``round_trip_seconds`` is the least of the last five minutes, without the time that either
    process took to wake up, and ``recent_round_trip_seconds`` a mean of the last few, with what a
    receiver that computes delays them by (40 ms at most); None if nothing was acknowledged yet.
    ``bytes_per_second`` is what the
    last large transfer reached, 0 before any; where ``is_lower_bound`` the sender had too little to
    send to find out what the network can do. ``sent_bytes`` were acknowledged.
    """

    round_trip_seconds: float | None
    recent_round_trip_seconds: float | None
    bytes_per_second: float
    is_lower_bound: bool
    sent_bytes: int
    received_bytes: int


def path_figures(connection: socket.socket) -> PathFigures | None:
    """Return the figures of a connected TCP socket; None if the kernel does not have them."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _NUM_BYTES)
    except OSError:  # not TCP, or it was closed
        return None
    if len(info) < _NUM_BYTES:
        return None
    (rtt_microseconds,) = _U32.unpack_from(info, _MIN_RTT_AT)
    (recent_rtt_microseconds,) = _U32.unpack_from(info, _RECENT_RTT_AT)
    (bytes_acked,) = _U64.unpack_from(info, _BYTES_ACKED)
    (bytes_received,) = _U64.unpack_from(info, _BYTES_RECEIVED)
    (rate,) = _U64.unpack_from(info, _DELIVERY_RATE_AT)
    return PathFigures(
        round_trip_seconds=_seconds(rtt_microseconds),
        recent_round_trip_seconds=_seconds(recent_rtt_microseconds),
        bytes_per_second=float(rate),
        is_lower_bound=bool(info[_BYTE_OF_FLAGS] & _APP_LIMITED),
        sent_bytes=bytes_acked,
        received_bytes=bytes_received,
    )


def _seconds(microseconds: int) -> float | None:
    return None if microseconds in (0, _NO_RTT) else microseconds / 1e6
