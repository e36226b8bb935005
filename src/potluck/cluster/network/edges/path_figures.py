"""The kernel's figures of the network path of a TCP connection.

Read from ``TCP_INFO`` (``struct tcp_info`` in ``linux/tcp.h``), which costs one system call and
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
"""The fraction of TCP's window that a rate must fill to be limited by the window: on a slower
network the window opens until data queues on the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFigures:
    """Figures of one connection, as seen by its sender.

    ``round_trip_seconds`` is the minimum of the last five minutes, without the time that either
    process took to wake up. ``recent_round_trip_seconds`` is a mean of the last few, including
    delays by a receiver that computes (40 ms at most). Both are None if nothing was acknowledged
    yet. ``bytes_per_second`` is the rate of the last large transfer, 0 before any; if
    ``is_lower_bound``, the sender had too little to send, or TCP's window was too small, to
    saturate the network. ``sent_bytes`` were acknowledged.
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
    except OSError:  # not TCP, or closed
        return None
    return decode_tcp_info(info)


def decode_tcp_info(info: bytes) -> PathFigures | None:
    """Decode a ``struct tcp_info``; None if it is too short."""
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
