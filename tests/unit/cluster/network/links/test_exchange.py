from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest
from support.cluster.edges import HELLO, RECEIVER, SENDER, credentials, listener

from potluck.cluster.network.edges.connect import connect_both_ways
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import PREAMBLE_BYTES, Frame, FrameKind
from potluck.cluster.network.links.exchange import LIMITS, SIZES, Measured, run_client, run_server
from potluck.errors import EdgeClosedError, EdgeError
from potluck.types.step import StepId

Ends = tuple[OutgoingEdge, IncomingEdge]


def a_frame(kind: FrameKind, step_id: int, payload: bytes = b"") -> Frame:
    return Frame(
        kind=kind,
        step_id=StepId(step_id),
        header=memoryview(b""),
        payload=memoryview(payload),
    )


class PlayedLink:
    """Both ends of a link of which the time is played: the peer answers as it should.

    ``window_bytes`` is what TCP sends before it waits for a round trip; it doubles every time.
    """

    peer_node_id = RECEIVER

    def __init__(
        self,
        *,
        round_trip: float,
        rate: float,
        window_bytes: float = float("inf"),
        stalls: dict[int, float] | None = None,
    ) -> None:
        self.now = 0.0
        self.sent: list[tuple[FrameKind, int]] = []
        self.longest = 0.0
        self._round_trip = round_trip
        self._rate = rate
        self._window_bytes = window_bytes
        self._stalls = stalls or {}
        self._last: StepId | None = None

    def clock(self) -> float:
        return self.now

    def send(self, kind: FrameKind, step_id: StepId, *, payload: memoryview | None = None) -> None:
        num_bytes = 0 if payload is None else payload.nbytes
        self.sent.append((kind, num_bytes))
        began = self.now
        self.now += (PREAMBLE_BYTES + num_bytes) / self._rate
        rest = num_bytes - self._window_bytes
        while rest > 0:
            self.now += self._round_trip
            self._window_bytes *= 2
            rest -= self._window_bytes
        self.now += self._stalls.get(len(self.sent), 0.0)
        self.longest = max(self.longest, self.now - began)
        self._last = step_id

    def receive(self, silence_seconds: float) -> Frame:
        assert silence_seconds > 0
        assert self._last is not None
        self.now += self._round_trip
        return a_frame(FrameKind.PROBE, self._last)

    @property
    def num_bytes(self) -> int:
        return sum(each for _, each in self.sent)

    def run_client(self, allowed_seconds: float = 0.1) -> Measured:
        ends = cast(Any, self)
        return run_client(ends, ends, allowed_seconds=allowed_seconds, clock=self.clock)


@pytest.mark.parametrize("rate", [1e5, 1e6, 12e6, 118e6])
@pytest.mark.parametrize("round_trip", [0.0002, 0.01, 0.04])
def test_latency_and_rate_are_those_of_the_link(round_trip: float, rate: float) -> None:
    link = PlayedLink(round_trip=round_trip, rate=rate)
    measured = link.run_client()
    small = PREAMBLE_BYTES / rate
    assert measured.latency_seconds == pytest.approx((round_trip + small) / 2)
    # The answer to a frame so large that it is but a part of the round trip cannot be told exactly.
    is_clear = max(SIZES) / rate > 0.12 * round_trip
    if is_clear:
        assert measured.bytes_per_second == pytest.approx(rate, rel=1e-6)
    else:
        assert max(SIZES) / round_trip < measured.bytes_per_second < rate
    assert link.sent[-1] == (FrameKind.TURN, 0)


@pytest.mark.parametrize("rate", [1e4, 1e5, 1e6, 12e6, 118e6])
@pytest.mark.parametrize("allowed", [0.02, 0.1])
def test_a_link_is_not_busy_for_longer_than_allowed(rate: float, allowed: float) -> None:
    link = PlayedLink(round_trip=0.001, rate=rate)
    link.run_client(allowed)
    smallest = 2 * SIZES[0] / rate
    small_frames = 17 * PREAMBLE_BYTES / rate
    # The largest size takes what is allowed at most, and those before a third of that.
    assert link.num_bytes / rate <= max(smallest, 4 / 3 * allowed) + small_frames
    if rate == 118e6:
        assert link.num_bytes == 2 * sum(SIZES)


def test_windows_that_open_slowly_do_not_look_like_a_slow_link() -> None:
    link = PlayedLink(round_trip=0.03, rate=50e6, window_bytes=14_480)
    assert link.run_client().bytes_per_second == pytest.approx(50e6, rel=0.02)


def test_frames_that_met_a_busy_processor_do_not_count() -> None:
    stalls = {5: 0.03, 8: 0.02, 18: 0.1, 24: 0.1}
    measured = PlayedLink(round_trip=0.001, rate=12e6, stalls=stalls).run_client()
    assert measured.latency_seconds == pytest.approx(0.0005, rel=0.02)
    assert measured.bytes_per_second == pytest.approx(12e6, rel=0.02)


def test_long_round_trips_get_fewer_small_frames() -> None:
    link = PlayedLink(round_trip=0.5, rate=1e6)
    link.run_client()
    assert sum(num_bytes == 0 for kind, num_bytes in link.sent if kind is FrameKind.PROBE) == 5


@contextmanager
def both_sides() -> Iterator[tuple[Ends, Ends]]:
    """A connection over TLS: the side that connected, and the one that listened."""
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(
            connect_both_ways,
            listening.address,
            credentials(SENDER),
            HELLO,
            peer=RECEIVER,
            limits=LIMITS,
            timeout_seconds=10,
        )
        there = listening.accept_both_ways(HELLO, peer=SENDER, limits=LIMITS, timeout_seconds=10)
        here = connecting.result()
    try:
        yield here, there
    finally:
        here[0].close()
        there[0].close()


def test_both_sides_measure_in_turn_over_tls() -> None:
    with both_sides() as (here, there), ThreadPoolExecutor(1) as pool:
        server = pool.submit(run_server, *there)
        first = run_client(*here, allowed_seconds=0.1)
        server.result(20)
        client = pool.submit(run_client, *there, allowed_seconds=0.1)
        run_server(*here)
        for measured in (first, client.result(20)):
            assert 1e-6 < measured.latency_seconds < 10
            assert 0 < measured.bytes_per_second < 1e11
        path = here[0].path()
        assert path is not None
        assert 2 * sum(SIZES) < path.sent_bytes < 2 * sum(SIZES) + 15_000
        assert 2 * sum(SIZES) < path.received_bytes < 2 * sum(SIZES) + 15_000


@pytest.mark.timing
def test_loopback_is_fast() -> None:
    with both_sides() as (here, there), ThreadPoolExecutor(1) as pool:
        server = pool.submit(run_server, *there)
        measured = run_client(*here, allowed_seconds=0.1)
        server.result(20)
    assert measured.latency_seconds < 0.01
    assert measured.bytes_per_second > 10e6


def test_closing_one_end_closes_the_connection_and_wakes_who_waits() -> None:
    with both_sides() as (here, there), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here[1].receive, 60)
        here[0].close()
        with pytest.raises(EdgeError):
            waiting.result(20)
        with pytest.raises(EdgeClosedError):
            there[1].receive(20)
        assert here[0].path() is None


@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (FrameKind.TURN, b"", "unexpected answer"),
        (FrameKind.STEP, b"", "unexpected answer"),
        (FrameKind.PROBE, b"x", "unexpected answer"),
    ],
)
def test_a_peer_that_answers_wrongly_is_given_up(
    kind: FrameKind, payload: bytes, reason: str
) -> None:
    with both_sides() as (here, there), ThreadPoolExecutor(1) as pool:
        client = pool.submit(run_client, *here, allowed_seconds=0.1)
        frame = there[1].receive(20)
        there[0].send(kind, frame.step_id, payload=payload)
        with pytest.raises(EdgeError, match=reason):
            client.result(20)


def test_a_peer_that_sends_without_end_is_given_up() -> None:
    with both_sides() as (here, there), ThreadPoolExecutor(1) as pool:
        server = pool.submit(run_server, *here)
        for step in range(1000):
            there[0].send(FrameKind.PROBE, StepId(step))
            there[1].receive(20)
            if concurrent.futures.wait([server], 0.001).done:
                break
        with pytest.raises(EdgeError, match="more than"):
            server.result(20)


def test_a_peer_that_sends_steps_is_given_up() -> None:
    with both_sides() as (here, there):
        there[0].send(FrameKind.STEP, StepId(1))
        with pytest.raises(EdgeError, match="an unexpected STEP frame"):
            run_server(*here)
