from __future__ import annotations

import socket
import sys

import pytest
from support.cluster.edges import edge
from support.processes.waiting import eventually

from potluck.cluster.network.edges.frames import FrameKind
from potluck.cluster.network.edges.path_figures import (
    PathFigures,
    decode_tcp_info,
    path_figures,
)
from potluck.types.step import StepId

PAYLOAD_BYTES = 10_000


def test_the_kernel_counts_what_an_edge_has_sent() -> None:
    with edge() as (outgoing, incoming):
        before = outgoing.path()
        assert before is not None
        for step in range(5):
            outgoing.send(FrameKind.STEP, StepId(step), payload=bytes(PAYLOAD_BYTES))
            incoming.receive(20)
        least = before.sent_bytes + 5 * PAYLOAD_BYTES

        def is_acknowledged() -> bool:
            path = outgoing.path()
            return path is None or path.sent_bytes >= least

        eventually(is_acknowledged, within=5)  # the last is, with a delay
        after = outgoing.path()
        assert after is not None
        # Each frame has a preamble, and each TLS record 22 bytes of its own.
        assert after.sent_bytes - least < 5 * 200
        assert after.round_trip_seconds is not None
        assert after.round_trip_seconds > 0
        assert after.bytes_per_second > 0


@pytest.mark.timing
def test_the_round_trip_on_loopback_is_short() -> None:
    with edge() as (outgoing, incoming):
        for step in range(5):
            outgoing.send(FrameKind.STEP, StepId(step), payload=bytes(PAYLOAD_BYTES))
            incoming.receive(20)
        path = outgoing.path()
    assert path is not None
    assert path.round_trip_seconds is not None
    assert 0 < path.round_trip_seconds < 0.1


def test_a_closed_edge_shows_nothing() -> None:
    with edge() as (outgoing, _):
        outgoing.close()
        assert outgoing.path() is None


def test_a_socket_that_is_not_tcp_shows_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert path_figures(one) is None


def tcp_info(*, rate: int, window: int, flags: int = 0, round_trip: int = 10_000) -> bytes:
    """Laid out as in ``linux/tcp.h``; times in microseconds."""
    info = bytearray(240)
    info[7] = flags
    for offset, number in ((16, 1000), (68, 12_000), (80, window), (148, round_trip)):
        info[offset : offset + 4] = number.to_bytes(4, sys.byteorder)
    for offset, number in ((120, 7), (128, 8), (160, rate)):
        info[offset : offset + 8] = number.to_bytes(8, sys.byteorder)
    return bytes(info)


@pytest.mark.parametrize(
    ("rate", "window", "flags", "is_lower_bound"),
    [
        (1_000_000, 100, 0, False),  # 10 segments in flight of 100
        (1_000_000, 11, 0, True),
        (1_000_000, 100, 1, True),
        (1_000_000, 100, 2, False),  # another flag
    ],
)
def test_rates_count_where_it_is_the_network_that_limits_them(
    rate: int, window: int, flags: int, *, is_lower_bound: bool
) -> None:
    assert decode_tcp_info(tcp_info(rate=rate, window=window, flags=flags)) == PathFigures(
        round_trip_seconds=0.01,
        recent_round_trip_seconds=0.012,
        bytes_per_second=1e6,
        is_lower_bound=is_lower_bound,
        sent_bytes=7,
        received_bytes=8,
    )


@pytest.mark.parametrize("round_trip", [0, 2**32 - 1])
def test_there_is_no_round_trip_before_the_first(round_trip: int) -> None:
    found = decode_tcp_info(tcp_info(rate=1, window=10, round_trip=round_trip))
    assert found is not None
    assert found.round_trip_seconds is None


def test_an_old_kernel_says_too_little() -> None:
    assert decode_tcp_info(bytes(148)) is None
