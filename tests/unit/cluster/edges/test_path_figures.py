from __future__ import annotations

import socket
import time

import pytest
from support.edges import edge

from potluck.cluster.edges.frames import FrameKind
from potluck.cluster.edges.path_figures import path_figures
from potluck.types.step import StepId

PAYLOAD_BYTES = 10_000


def test_the_kernel_counts_what_an_edge_has_sent() -> None:
    with edge() as (outgoing, incoming):
        before = outgoing.path()
        assert before is not None
        for step in range(5):
            outgoing.send(FrameKind.STEP, StepId(step), payload=bytes(PAYLOAD_BYTES))
            incoming.receive(5)
        least = before.sent_bytes + 5 * PAYLOAD_BYTES
        end = time.monotonic() + 5
        while (after := outgoing.path()) is not None and after.sent_bytes < least:
            assert time.monotonic() < end, after  # the last is acknowledged with a delay
            time.sleep(0.01)
        assert after is not None
        # Each frame has a preamble, and each TLS record 22 bytes of its own.
        assert after.sent_bytes - least < 5 * 200
        assert after.round_trip_seconds is not None
        assert 0 < after.round_trip_seconds < 0.1
        assert after.bytes_per_second > 0


def test_a_closed_edge_shows_nothing() -> None:
    with edge() as (outgoing, _):
        outgoing.close()
        assert outgoing.path() is None


def test_a_socket_that_is_not_tcp_shows_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert path_figures(one) is None


def test_an_old_kernel_says_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldSocket:
        def getsockopt(self, *_: int) -> bytes:
            return bytes(148)

    assert path_figures(OldSocket()) is None  # type: ignore[arg-type]
