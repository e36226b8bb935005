"""The edges between the members of a group, for the compute thread of one of them.

There is an edge from each member to each other one. The leader forwards what it receives, so that
all members compute the same steps; slices are sent in both directions while a step is computed.
Frames carry the step's id, and slices a sequence number. A member that abandons a step sends a
message to that effect in place of its next slice, and continues with the next step; others drop
slices of the abandoned step when they read those of the next one.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from potluck.cluster.network.edges.edge import MAX_SLICE_BYTES, IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind
from potluck.cluster.wire.steps import (
    RestoreRequest,
    decode_failure,
    decode_restore_request,
    encode_restore_request,
)
from potluck.errors import EdgeError, EngineError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import NodeId
from potluck.types.groups import GroupPart
from potluck.types.step import StepId

TURN_BYTES = 2 * MAX_SLICE_BYTES
"""The maximum size of slices in transit on an edge while both of its ends send: a member sends a
turn when it has received the one before, and by then its peer has received the one before that."""

_SPIN_SECONDS = 200e-6
"""How long to poll for a slice before sleeping: a core that slept takes 20 µs to wake
(``exchange.py`` of the benchmarks), and members with the right shares are ready within this time of
each other."""

_ALONE_NANOSECONDS = 25_000
"""After this time, yield the core between two polls, possibly to the very member that is awaited.
Members that arrive at the same time wait for less, and yielding takes 5 µs."""

_MOST_SKIPPED_SPINS = 64
"""The maximum number of waits without polling after polling was useless; it doubles each time."""

_NO_STEP = StepId(-1)


@dataclass(slots=True, kw_only=True)
class ExchangeTotals:
    """Counted by the compute thread, and read by any.

    ``seconds`` is the time spent sending and awaiting slices; ``waiting_since`` is a time of
    ``time.perf_counter()``, and 0 while none is awaited.
    """

    num_exchanges: int = 0
    num_sent_bytes: int = 0
    seconds: float = 0.0
    waiting_since: float = 0.0

    @property
    def waiting_seconds(self) -> float:
        """Return how long the current exchange has taken."""
        since = self.waiting_since
        return time.perf_counter() - since if since else 0.0


@dataclass(slots=True, kw_only=True)
class _Peer:
    """Another member, and the numbers of the next slices to and from it."""

    member: int
    outgoing: OutgoingEdge
    incoming: IncomingEdge
    next_sent: int = 0
    next_received: int = 0


def mesh_limits(limits: EdgeLimits) -> EdgeLimits:
    """Return the limits of the edges in a group, given those of the pipeline's edges."""
    return EdgeLimits(
        max_header_bytes=limits.max_header_bytes,
        max_payload_bytes=max(limits.max_payload_bytes, MAX_SLICE_BYTES),
    )


class Spinner:
    """Briefly polls a descriptor without sleeping, if that is worthwhile.

    If polling was useless, for example on a core that the awaited member needs too, it is suspended
    for a while.
    """

    def __init__(self, seconds: float = _SPIN_SECONDS) -> None:
        self._nanoseconds = round(seconds * 1e9)
        self._polls: dict[int, Callable[[int], object]] = {}
        self._num_skipped = 0
        self._skip = 0

    def __call__(self, descriptor: int) -> None:
        """Return when data has arrived, or after a while without any."""
        if self._skip:
            self._skip -= 1
            return
        poll = self._polls.get(descriptor)
        if poll is None:
            poll = self._polls[descriptor] = _poll_of(descriptor)
        if poll(0):
            self._num_skipped = 0
            return
        clock, give_way = time.perf_counter_ns, os.sched_yield
        started = clock()
        alone, end = started + _ALONE_NANOSECONDS, started + self._nanoseconds
        while (now := clock()) < end:
            if poll(0):
                self._num_skipped = 0
                return
            if now > alone:
                give_way()
        self._num_skipped = min(_MOST_SKIPPED_SPINS, max(1, 2 * self._num_skipped))
        self._skip = self._num_skipped


def _poll_of(descriptor: int) -> Callable[[int], object]:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll


class Group:
    """The other members, as seen by one of them. An ``Exchange`` for its engine.

    Used by the compute thread. The caller keeps ownership of the edges, which are by member.
    """

    def __init__(
        self,
        part: GroupPart,
        outgoing: Mapping[int, OutgoingEdge],
        incoming: Mapping[int, IncomingEdge],
        totals: ExchangeTotals,
        spin: Callable[[int], None] | None = None,
    ) -> None:
        size = len(part.shares)
        # Each starts with the member after it, so that they do not all send to the same one at the
        # same time.
        others = [(part.member + distance) % size for distance in range(1, size)]
        self._peers = [
            _Peer(member=each, outgoing=outgoing[each], incoming=incoming[each]) for each in others
        ]
        self._by_member = {peer.member: peer for peer in self._peers}
        self._part = part
        self._totals = totals
        self._spin = Spinner() if spin is None else spin
        self._step_id = _NO_STEP
        self._given_up: set[StepId] = set()

    @property
    def is_leader(self) -> bool:
        """Return whether the others follow this member."""
        return self._part.is_leader

    @property
    def step_id(self) -> StepId:
        """Return the id of the most recent step."""
        return self._step_id

    def begin(self, frame: Frame) -> None:
        """Begin a step; the leader also forwards it."""
        self._step_id = frame.step_id
        for peer in self._peers:
            peer.next_sent = peer.next_received = 0
        if self.is_leader:
            self.pass_on(frame.kind, frame.step_id, frame.header, frame.payload)

    def pass_on(
        self,
        kind: FrameKind,
        step_id: StepId,
        header: bytes | memoryview,
        payload: bytes | memoryview = b"",
    ) -> None:
        """Send a frame to all members. For the leader."""
        for peer in self._peers:
            peer.outgoing.send(kind, step_id, header, payload)

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        """See ``Exchange``."""
        totals = self._totals
        totals.waiting_since = started = time.perf_counter()
        try:
            largest = max(max(map(len, sent)), max(map(len, received)))
            if largest <= MAX_SLICE_BYTES:
                self._exchange(sent, received)
            else:
                self._exchange_in_turns(sent, received, largest)
        finally:
            totals.waiting_since = 0.0
        totals.seconds += time.perf_counter() - started
        totals.num_exchanges += 1

    def _exchange_in_turns(
        self, sent: Sequence[memoryview], received: Sequence[memoryview], largest: int
    ) -> None:
        """Exchange slices in turns of ``MAX_SLICE_BYTES``.

        Data in transit to a member that is itself sending fits in the socket buffers, so that no
        two members wait for each other to read.
        """
        for start in range(0, largest, MAX_SLICE_BYTES):
            end = start + MAX_SLICE_BYTES
            self._exchange(
                [each[start:end] for each in sent], [each[start:end] for each in received]
            )

    def _exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        step_id, spin = self._step_id, self._spin
        for peer in self._peers:
            data = sent[peer.member]
            if data:
                peer.outgoing.send_slice(step_id, peer.next_sent, data)
                peer.next_sent += 1
                self._totals.num_sent_bytes += len(data)
        for peer in self._peers:
            room = received[peer.member]
            if not room:
                continue
            reason = peer.incoming.receive_slice(
                step_id, peer.next_received, room, spin, self._check_given_up
            )
            if reason is not None:
                raise decode_failure(reason)
            peer.next_received += 1

    def _check_given_up(self, step_id: StepId) -> None:
        """Raise ``ValueError`` if another member abandoned a step whose result this one has
        sent.
        """
        if self.is_leader and step_id not in self._given_up:
            raise ValueError(f"it abandoned step {step_id}, which has a result")

    def give_up(self, step_id: StepId, failure: bytes) -> None:
        """Tell the others, in place of a slice, why a step cannot be computed here."""
        self._given_up.add(step_id)
        for peer in self._peers:
            peer.outgoing.send(FrameKind.ABANDON, step_id, failure)

    def receive(self) -> Frame:
        """Return the next frame that the leader forwards; see ``IncomingEdge.receive``."""
        return _next_frame(self._by_member[0].incoming)

    def answer(self, kind: FrameKind, step_id: StepId, header: bytes) -> None:
        """Send the leader the result of restoring blocks."""
        self._by_member[0].outgoing.send(kind, step_id, header)

    def restored(self, step_id: StepId, restores: RestoreRequest) -> RestoreRequest:
        """Have the others restore, one after the other, what the leader has restored of a step.

        Return what all have. Raise the ``EngineError`` of a member that failed.
        """
        problem: EngineError | None = None
        for peer in sorted(self._peers, key=lambda each: each.member):
            peer.outgoing.send(FrameKind.RESTORE, step_id, encode_restore_request(restores))
            frame = _next_frame(peer.incoming)
            if frame.step_id != step_id:
                raise EdgeError(
                    peer.incoming.peer_node_id, f"it answered step {frame.step_id}, not {step_id}"
                )
            if frame.kind is FrameKind.FAILURE:
                problem = decode_failure(frame.header)
                restores = RestoreRequest(())
            else:
                restores = decode_restore_request(frame.header)
        if problem is not None:
            raise problem
        return restores


def _next_frame(edge: IncomingEdge) -> Frame:
    """Return the next frame that is not left from the exchanges of an abandoned step."""
    while True:
        frame = edge.receive()
        if frame.kind not in (FrameKind.SLICE, FrameKind.ABANDON):
            return frame


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLeader:
    """The incoming edge of a member that does not lead."""

    group: Group
    peer_node_id: NodeId

    def receive(self) -> Frame:
        """Return the next frame of the leader."""
        return self.group.receive()

    def poll(self) -> Frame | None:
        """Return nothing: the leader sends only the slices of a step behind it."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class NullEdge:
    """The outgoing edge of a member that does not lead: only the leader sends results."""

    peer_node_id: NodeId

    def send(
        self,
        kind: FrameKind,
        step_id: StepId,
        header: bytes | bytearray | memoryview = b"",
        payload: bytes | bytearray | memoryview = b"",
    ) -> None:
        """Drop it."""
