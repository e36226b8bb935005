"""What the kernel knows of the network between the two ends of a TCP connection.

Read from ``TCP_INFO`` (``struct tcp_info`` in ``linux/tcp.h``): asking costs one system call, and
sends nothing. Kernels before 4.9 return a shorter structure.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")

_FLAGS_AT = 7
_SEND_MSS_AT = 16
_RTT_AT = 68
_SEND_WINDOW_AT = 80  # of congestion control, in segments
_BYTES_ACKED_AT = 120
_BYTES_RECEIVED_AT = 128
_MIN_RTT_AT = 148
_DELIVERY_RATE_AT = 160
_NUM_BYTES = _DELIVERY_RATE_AT + _U64.size

_APP_LIMITED = 1  # the lowest bit of the flags
_NO_RTT = 2**32 - 1

_FULL = 0.7
"""The part of TCP's window that a rate fills, above which it is the window that limits it: on a
network that is slower than that, the window opens until data queues on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFigures:
    """Of one connection, as its sender sees it.

    ``round_trip_seconds`` is the least of the last five minutes, without the time that either
    process took to wake up, and ``recent_round_trip_seconds`` a mean of the last few, with what a
    receiver that computes delays them by (40 ms at most); None if nothing was acknowledged yet.
    ``bytes_per_second`` is what the last large transfer reached, 0 before any; where
    ``is_lower_bound`` the sender had too little to send, or TCP's window was too small, to find out
    what the network can do. ``sent_bytes`` were acknowledged.
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
    return decode_tcp_info(info)


def decode_tcp_info(info: bytes) -> PathFigures | None:
    """Return what a ``struct tcp_info`` says; None if it is too short."""
    if len(info) < _NUM_BYTES:
        return None

    def number(layout: struct.Struct, offset: int) -> int:
        return int(layout.unpack_from(info, offset)[0])

    rate = number(_U64, _DELIVERY_RATE_AT)
    round_trip = _seconds(number(_U32, _MIN_RTT_AT))
    window_bytes = number(_U32, _SEND_WINDOW_AT) * number(_U32, _SEND_MSS_AT)
    fills_window = round_trip is not None and rate * round_trip > _FULL * window_bytes
    return PathFigures(
        round_trip_seconds=round_trip,
        recent_round_trip_seconds=_seconds(number(_U32, _RTT_AT)),
        bytes_per_second=float(rate),
        is_lower_bound=fills_window or bool(info[_FLAGS_AT] & _APP_LIMITED),
        sent_bytes=number(_U64, _BYTES_ACKED_AT),
        received_bytes=number(_U64, _BYTES_RECEIVED_AT),
    )


def _seconds(microseconds: int) -> float | None:
    return None if microseconds in (0, _NO_RTT) else microseconds / 1e6
