"""The protocol by which two nodes measure the link between them, over an edge's connection.

The leader sends small frames and then ever larger ones, each of which the other side answers with
an empty frame as soon as it has received all of it. Then they swap roles. So each side measures its
own outgoing direction by its own clock, and trusts no figure of the other's. Frames are sent and
received by the same code as on edges in use: the same TLS, socket options, copies and system calls.

Sizes grow fourfold, and the next size is sent only if it is expected to stay within the allowed
seconds, so that a slow link is never busy for long. Each size is sent twice: the first frame opens
TCP's windows as far as the second one needs, so that the second does not wait for a round trip.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind
from potluck.errors import EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.step import StepId

SIZES = (4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024)
"""Sizes of the large frames, in bytes: 4 KB take 4 ms at 1 MB/s, 256 KB take 2 ms at 118 MB/s
(Gigabit Ethernet), which is well above the 0.1 ms by which round trips vary."""

LIMITS = EdgeLimits(max_header_bytes=0, max_payload_bytes=max(SIZES))

_NUM_SMALL = 16
"""The number of small frames; the median discards a few that met a busy CPU. The first is not
counted."""

_NUM_SMALL_AT_LEAST = 4
_SMALL_SECONDS = 0.5
"""The time limit for small frames beyond the minimum, so that long round trips get fewer."""

SILENCE_SECONDS = 5.0
"""The longest wait for a frame, or a part of one. A frame of 4 KB arrives within it at 1 KB/s."""

_NUM_EACH = 2
_NUM_AGAIN = 3
"""The number of extra frames for a size that was too slow for the next size, or was the last size,
although it took little more than a round trip longer than a small frame: the link may be fast but
TCP's window still small, or the frames met a busy CPU."""

_MOST_FRAMES = 2 * (_NUM_SMALL + _NUM_EACH * len(SIZES) + _NUM_AGAIN)
"""The most probes that one side answers: more than a node of this version sends."""

_UNRESOLVED_ROUND_TRIPS = 1.5
"""Frames that take at most this many round trips more than the first one do not show how fast the
link is: that is how TCP paces data on a long path, whether the link is fast or slow."""

_LEAST_PART = 0.1
"""The least share of a large frame's time that is counted as transfer, however round trips vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement of the path from this node to another.

    ``latency_seconds`` is half the round trip of a small frame. ``bytes_per_second`` is the rate of
    the largest frames beyond that. If ``is_lower_bound``, TCP limited them, and the link may be
    faster.
    """

    latency_seconds: float
    bytes_per_second: float
    is_lower_bound: bool = False


def run_client(
    outgoing: OutgoingEdge,
    incoming: IncomingEdge,
    *,
    allowed_seconds: float,
    unresolved_seconds: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Measure the path to the peer, then let the peer measure.

    The largest frames take at most ``allowed_seconds``, judging by the smaller ones; if those do
    not tell, because TCP limits them, at most ``unresolved_seconds`` (by default twice as much).
    Raises ``EdgeError`` if the connection fails, or the peer is silent or sends something
    unexpected.
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
            raise EdgeError(incoming.peer_node_id, "it sent an unexpected answer to a probe")
        return seconds

    # Random, so that nothing on the path can compress it.
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
        sizes.record(ask(data[:size]))
    outgoing.send(FrameKind.TURN, StepId(0))
    return Measured(
        latency_seconds=round_trip / 2,
        bytes_per_second=sizes.rate,
        is_lower_bound=sizes.is_unresolved,
    )


def run_server(outgoing: OutgoingEdge, incoming: IncomingEdge) -> None:
    """Answer the peer's frames until it ends its turn.

    Raises ``EdgeError`` as ``run_client`` does, and if the peer sends too many frames.
    """
    for _ in range(_MOST_FRAMES):
        frame = incoming.receive(SILENCE_SECONDS)
        if frame.kind is FrameKind.TURN:
            return
        if frame.kind is not FrameKind.PROBE:
            raise EdgeError(incoming.peer_node_id, f"it sent an unexpected {frame.kind.name} frame")
        outgoing.send(FrameKind.PROBE, frame.step_id)
    raise EdgeError(incoming.peer_node_id, f"it sent more than {_MOST_FRAMES} probes")


class _Sizes:
    """Chooses the size of the next large frame. ``rate`` is that of the last size."""

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

    def record(self, seconds: float) -> None:
        """Record how long the frame took until it was answered."""
        self._num_left -= 1
        excess = max(seconds - self._round_trip, _LEAST_PART * seconds)
        self._excess = min(self._excess, excess)
        self.rate = SIZES[self._index] / self._excess

    def _expected_rate(self) -> float:
        """Return the rate without the fixed cost per frame, if that is higher."""
        size, excess = SIZES[self._index] - self._before[0], self._excess - self._before[1]
        return max(self.rate, size / excess) if excess > 0 else self.rate


def _small_round_trips(
    ask: Callable[[memoryview], float], empty: memoryview, clock: Callable[[], float]
) -> list[float]:
    ask(empty)  # warm-up
    round_trips: list[float] = []
    started = clock()
    while len(round_trips) < _NUM_SMALL - 1:
        if len(round_trips) >= _NUM_SMALL_AT_LEAST and clock() - started > _SMALL_SECONDS:
            break
        round_trips.append(ask(empty))
    return round_trips
