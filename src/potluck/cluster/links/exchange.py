"""What two nodes send each other to measure the link between them, over an edge's connection.

One side leads: it sends small frames and then ever larger ones, each of which the other side
answers with an empty frame as soon as it has all of it. Then they change places. So each side
measures the way from itself, by its own clock alone, and trusts no figure of the other's. The code
that sends and receives is that of edges in use: the same TLS, socket options, copies and system
calls.

Sizes grow fourfold, and the next is sent only if what was seen so far says that it stays within the
seconds allowed, so that a slow link is never busy for long. Each size is sent twice: the first
frame opens TCP's windows as far as the second needs, which then goes out without waiting for a
round trip.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from potluck.cluster.edges.edge import EdgeLimits, IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import FrameKind
from potluck.errors import EdgeError
from potluck.types.step import StepId

SIZES = (4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024)
"""Of the large frames, in bytes: 4 KB take 4 ms at 1 MB/s, 256 KB take 2 ms at 118 MB/s (Gigabit
Ethernet), which is well above the tenth of a millisecond by which round trips vary."""

LIMITS = EdgeLimits(max_header_bytes=0, max_payload_bytes=max(SIZES))

_NUM_SMALL = 16
"""Small frames; the median drops a few that met a busy processor. The first is not counted."""

_NUM_SMALL_AT_LEAST = 4
_SMALL_SECONDS = 0.5
"""For the small frames beyond the least number: links with long round trips get fewer."""

SILENCE_SECONDS = 5.0
"""The longest wait for a frame, or for a part of one. A frame of 4 KB arrives in that at 1 KB/s."""

_NUM_EACH = 2
_NUM_AGAIN = 3
"""Further frames of a size that was too slow for the next one, or was the last, though it took no
more than about a round trip beyond the first: the link may be fast and TCP's window not open yet,
or the frames met a busy processor."""

_MOST_FRAMES = 2 * (_NUM_SMALL + _NUM_EACH * len(SIZES) + _NUM_AGAIN)
"""That one side answers: more than a node of this version sends."""

_UNRESOLVED_ROUND_TRIPS = 1.5
"""Frames that take no more than this beyond the first round trip do not show how fast the link is:
that is how TCP paces what it sends over a long way, be the link fast or slow."""

_LEAST_PART = 0.1
"""The part of a large frame's time that is its transfer at least: never nothing, however the round
trips vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The way from this node to another, once.

    ``latency_seconds`` is half of the round trip of a small frame. ``bytes_per_second`` is what the
    largest frames reached beyond that. ``is_lower_bound``: it is TCP that they waited for, so that
    the link may be faster.
    """

    latency_seconds: float
    bytes_per_second: float
    is_lower_bound: bool = False


def lead(
    outgoing: OutgoingEdge,
    incoming: IncomingEdge,
    *,
    allowed_seconds: float,
    unresolved_seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Measure the way to the peer, then give it its turn.

    The largest frames take ``allowed_seconds`` at most, as far as the smaller ones can tell; where
    those cannot, because TCP waits, ``unresolved_seconds`` (by default twice as much). Raises
    ``EdgeError`` if the connection fails, or the peer is silent or sends anything else.
    """
    step_id = 0

    def ask(payload: memoryview) -> float:
        nonlocal step_id
        step_id += 1
        started = clock()
        outgoing.send(FrameKind.PROBE, StepId(step_id), payload=payload)
        frame = incoming.receive(SILENCE_SECONDS)
        seconds = clock() - started
        if frame.kind is not FrameKind.PROBE or frame.step_id != step_id or frame.payload.nbytes:
            raise EdgeError(incoming.peer_node_id, "it did not answer a probe as expected")
        return seconds

    # Random, so that nothing on the way can compress it.
    data = memoryview(os.urandom(max(SIZES)))
    round_trips = _small_round_trips(ask, data[:0], clock)
    round_trip = statistics.median(round_trips)
    if unresolved_seconds is None:
        unresolved_seconds = 2 * allowed_seconds
    sizes = _Sizes(
        round_trip=round_trip,
        allowed_seconds=allowed_seconds,
        unresolved_seconds=max(allowed_seconds, unresolved_seconds),
    )
    while (size := sizes.next()) is not None:
        sizes.took(ask(data[:size]))
    outgoing.send(FrameKind.TURN, StepId(0))
    return Measured(
        latency_seconds=round_trip / 2,
        bytes_per_second=sizes.rate,
        is_lower_bound=sizes.is_unresolved,
    )


def follow(outgoing: OutgoingEdge, incoming: IncomingEdge) -> None:
    """Answer the peer's frames until it gives the turn.

    Raises ``EdgeError`` as ``lead`` does, and for more frames than a measurement has.
    """
    for _ in range(_MOST_FRAMES):
        frame = incoming.receive(SILENCE_SECONDS)
        if frame.kind is FrameKind.TURN:
            return
        if frame.kind is not FrameKind.PROBE:
            raise EdgeError(incoming.peer_node_id, f"it sent a {frame.kind.name} frame")
        outgoing.send(FrameKind.PROBE, frame.step_id)
    raise EdgeError(incoming.peer_node_id, "it sent more probes than a measurement has")


class _Sizes:
    """Which large frame is sent next, given what those before took. ``rate`` is the last size's."""

    def __init__(
        self, *, round_trip: float, allowed_seconds: float, unresolved_seconds: float
    ) -> None:
        self.rate = 0.0
        self._round_trip = round_trip
        self._allowed_seconds = allowed_seconds
        self._unresolved_seconds = unresolved_seconds
        self._index = 0
        self._num_left = _NUM_EACH
        self._num_again = _NUM_AGAIN
        self._excess = math.inf
        self._before = (0, 0.0)

    @property
    def is_unresolved(self) -> bool:
        """Whether the frames of this size do not show how fast the link is."""
        return self._excess <= _UNRESOLVED_ROUND_TRIPS * self._round_trip

    def next(self) -> int | None:
        """Return the size of the next frame; None when it was the last."""
        if self._num_left > 0:
            return SIZES[self._index]
        is_last = self._index + 1 == len(SIZES)
        limit = self._unresolved_seconds if self.is_unresolved else self._allowed_seconds
        if not is_last and _NUM_EACH * SIZES[self._index + 1] / self._expected_rate() <= limit:
            self._before = (SIZES[self._index], self._excess)
            self._index += 1
            self._num_left = _NUM_EACH
            self._excess = math.inf
            return SIZES[self._index]
        waits = self._excess > self._round_trip / 2 or not is_last
        if self.is_unresolved and waits and self._num_again > 0:
            self._num_again -= 1
            return SIZES[self._index]
        return None

    def took(self, seconds: float) -> None:
        """Take note of how long the frame took until it was answered."""
        self._num_left -= 1
        excess = max(seconds - self._round_trip, _LEAST_PART * seconds)
        self._excess = min(self._excess, excess)
        self.rate = SIZES[self._index] / self._excess

    def _expected_rate(self) -> float:
        """Without what frames of all sizes take alike, if that is more."""
        size, excess = SIZES[self._index] - self._before[0], self._excess - self._before[1]
        return max(self.rate, size / excess) if excess > 0 else self.rate


def _small_round_trips(
    ask: Callable[[memoryview], float], empty: memoryview, clock: Callable[[], float]
) -> list[float]:
    ask(empty)  # wakes what sleeps
    round_trips: list[float] = []
    started = clock()
    while len(round_trips) < _NUM_SMALL - 1:
        if len(round_trips) >= _NUM_SMALL_AT_LEAST and clock() - started > _SMALL_SECONDS:
            break
        round_trips.append(ask(empty))
    return round_trips
