"""The loop of a worker's compute thread: a frame in, a step, a frame out."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind
from potluck.cluster.wire.steps import (
    RestoreRequest,
    RestoreResult,
    StepDecoder,
    decode_restore_request,
    encode_failure,
    encode_restore_request,
    encode_restore_result,
    encode_sampled,
)
from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.group import ExchangeTotals, FromLeader, Group, NullEdge
from potluck.errors import EdgeError, EngineError, PotluckError, UnitFaultError
from potluck.grammars.step_masks import StepMasks
from potluck.scheduling.step_times import StepTimes
from potluck.types.engine import NO_MASKS, Engine
from potluck.types.program import Shard
from potluck.types.step import Step, StepId

MAX_FRAMES_AHEAD = 64
"""The maximum number of frames that wait in a stage: slightly more than there are steps in
flight."""

MAX_BYTES_AHEAD = 1024 * 1024
"""The maximum size of frames that wait in a stage, not counting the last one."""


@dataclass(slots=True, kw_only=True)
class StageTotals:
    """Totals that the compute thread counts and the reporting thread reads.

    ``cpu_seconds`` are those of ``compute_seconds`` in which the thread ran, without those in which
    it waited for others or for a core. ``computing_since`` and ``sending_since`` are times of
    ``time.perf_counter()``, and 0 between two. ``exchange`` is that of a group member.
    """

    num_steps: int = 0
    num_tokens: int = 0
    compute_seconds: float = 0.0
    cpu_seconds: float = 0.0
    send_seconds: float = 0.0
    num_sent_bytes: int = 0
    num_dropped_frames: int = 0
    computing_since: float = 0.0
    sending_since: float = 0.0
    exchange: ExchangeTotals = field(default_factory=ExchangeTotals)
    times: StepTimes = field(default_factory=StepTimes)

    @property
    def busy_seconds(self) -> float:
        """Return how long the current step has been computing."""
        return _seconds_since(self.computing_since)

    @property
    def sending_seconds(self) -> float:
        """Return how long the current result has been sending."""
        return _seconds_since(self.sending_since)


def _seconds_since(started: float) -> float:
    return time.perf_counter() - started if started else 0.0


@dataclass(slots=True)
class _Arrived:
    """A frame that is next in order. ``step`` is that of a STEP frame."""

    frame: Frame
    step: Step | None
    is_cancelled: bool = False


class Stage:
    """Runs an engine between two edges, until one of them closes.

    The first frame may have any step id, each later one the next. A late or duplicate frame has a
    lower one: it is counted in ``totals`` and dropped. Without a ``keeper`` no cache blocks are
    saved or restored. The stage of a ``group`` member that does not lead has ``FromLeader`` and
    ``NullEdge`` as edges.

    Before a step that may be cancelled is computed, the frames that have arrived behind it are
    read: if one of them cancels it, it is skipped. This does not wait for frames.
    """

    def __init__(
        self,
        engine: Engine,
        shard: Shard,
        hidden_size: int,
        incoming: IncomingEdge | FromLeader,
        outgoing: OutgoingEdge | NullEdge,
        totals: StageTotals,
        masks: StepMasks,
        keeper: BlockKeeper | None = None,
        group: Group | None = None,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._hidden_size = hidden_size
        self._incoming = incoming
        self._outgoing = outgoing
        self._totals = totals
        self._masks = masks
        self._keeper = keeper
        self._group = group
        self._samples = shard.has_head and not shard.is_led
        self._steps = StepDecoder(is_first=shard.has_embedding, is_last=shard.has_head)
        self._next_step: StepId | None = None
        self._arrived: deque[_Arrived] = deque()

    def run(self) -> None:
        """Serve steps.

        Raise ``EdgeError`` when an edge ends (``EdgeClosedError`` if closed), and
        ``UnitFaultError`` when the engine's unit fails.
        """
        self._totals.computing_since = self._totals.sending_since = 0.0
        while True:
            while not self._arrived:
                self._take(self._incoming.receive())
            step = self._arrived[0].step
            if step is not None and step.can_be_skipped:
                self._look_ahead()
            self._serve(self._arrived.popleft())

    def _look_ahead(self) -> None:
        """Read the frames that have arrived behind the next one, within the limits."""
        first = self._arrived[0]
        if len(self._arrived) == 1:  # its views are into the edge's buffer
            first.frame = first.frame.copied()
        num_bytes = sum(len(each.frame.header) + len(each.frame.payload) for each in self._arrived)
        while (
            not first.is_cancelled
            and num_bytes < MAX_BYTES_AHEAD
            and len(self._arrived) < MAX_FRAMES_AHEAD
        ):
            frame = self._incoming.poll()
            if frame is None:
                return
            self._take(frame.copied())
            num_bytes += len(frame.header) + len(frame.payload)

    def _take(self, frame: Frame) -> None:
        """Append a frame to those that arrived before it."""
        kind, step = frame.kind, None
        if kind not in _EXPECTED:
            peer = self._incoming.peer_node_id
            raise EdgeError(peer, f"it sent an unexpected {kind.name} frame")
        if not self._is_next(frame.step_id):
            self._totals.num_dropped_frames += 1
            return
        cancels: tuple[StepId, ...] = ()
        if kind is FrameKind.STEP:
            step = self._steps.decode(frame.step_id, frame.header)
            cancels = step.cancels
        elif kind is FrameKind.FAILURE:
            cancels = self._steps.skip_failed(frame.header)
        elif kind is FrameKind.SKIPPED:
            cancels = self._steps.skip(frame.header)
        if cancels:
            self._cancel(frozenset(cancels))
        self._arrived.append(_Arrived(frame, step))

    def _cancel(self, step_ids: frozenset[StepId]) -> None:
        for each in self._arrived:
            step = each.step
            if step is not None and step.step_id in step_ids and step.can_be_skipped:
                each.is_cancelled = True

    def _serve(self, arrived: _Arrived) -> None:
        frame, step = arrived.frame, arrived.step
        if arrived.is_cancelled:
            self._send_skipped(frame.step_id, self._steps.skipped(frame.header))
        elif step is not None:
            self._step(frame, step)
        elif frame.kind is FrameKind.SKIPPED:
            self._send_skipped(frame.step_id, frame.header)
        elif frame.kind is FrameKind.RESTORE:
            self._restore(frame)
        else:
            self._pass_on(FrameKind.FAILURE, frame.step_id, frame.header)
            self._outgoing.send(FrameKind.FAILURE, frame.step_id, frame.header)

    def _pass_on(self, kind: FrameKind, step_id: StepId, header: bytes | memoryview) -> None:
        """Tell the members of a group that this one leads about a step that is not computed."""
        if self._group is not None and self._group.is_leader:
            self._group.pass_on(kind, step_id, header)

    def _send_skipped(self, step_id: StepId, header: bytes | memoryview) -> None:
        self._pass_on(FrameKind.SKIPPED, step_id, header)
        is_last = self._shard.has_head
        self._outgoing.send(FrameKind.SKIPPED, step_id, b"" if is_last else header)

    def _is_next(self, step_id: StepId) -> bool:
        """Return whether a frame is to be computed; raise ``EdgeError`` if one before it is
        missing.
        """
        expected = self._next_step
        if expected is not None and step_id < expected:
            return False
        if expected is not None and step_id > expected:
            peer = self._incoming.peer_node_id
            raise EdgeError(peer, f"it sent step {step_id} instead of {expected}")
        self._next_step = StepId(step_id + 1)
        return True

    def _step(self, frame: Frame, step: Step) -> None:
        if self._group is not None:
            self._group.begin(frame)
        totals = self._totals
        totals.computing_since = started = time.perf_counter()
        exchanged = totals.exchange.seconds
        try:
            hidden = None
            if not self._shard.has_embedding:
                flat = np.frombuffer(frame.payload, dtype="<f4")
                if flat.size != step.num_tokens * self._hidden_size:
                    raise EngineError(f"{step.num_tokens} tokens came with {flat.size} numbers")
                hidden = flat.reshape(step.num_tokens, self._hidden_size)
            masks = self._masks.before(step) if self._samples else NO_MASKS
            if (step.saves or step.state_saves) and self._keeper is not None:
                self._keeper.save(step.saves)
                self._keeper.save_states(step.state_saves)
                started = time.perf_counter()
            cpu_started = time.thread_time()
            result = self._engine.step(step, hidden, masks)
            totals.cpu_seconds += time.thread_time() - cpu_started
        except (UnitFaultError, EdgeError):
            raise  # no later step would be right
        except PotluckError as error:
            failure = self._steps.failed(frame.header, error)
            if self._group is not None:
                self._group.give_up(frame.step_id, failure)
            self._fail(frame, failure)
            return
        totals.sending_since = computed = time.perf_counter()
        totals.computing_since = 0.0
        if result.hidden is None:
            header = encode_sampled(self._masks.marked(result.sampled))
            payload = memoryview(b"")
            kind = FrameKind.RESULT
        else:
            header = self._steps.forwarded(frame.header)
            payload, kind = result.hidden.data, FrameKind.STEP
        self._outgoing.send(kind, frame.step_id, header, payload)
        sent = time.perf_counter()
        totals.sending_since = 0.0
        if self._samples:
            self._masks.after(step, result.sampled)  # while the tokens are being sent
        totals.num_steps += 1
        totals.num_tokens += step.num_tokens
        totals.compute_seconds += computed - started
        totals.send_seconds += sent - computed
        totals.num_sent_bytes += len(header) + payload.nbytes
        if step.slices:
            own_seconds = computed - started - (totals.exchange.seconds - exchanged)
            totals.times.record(step, own_seconds, at=computed)

    def _restore(self, frame: Frame) -> None:
        """Restore what the earlier stages have restored, as far as it is stored here."""
        restores = decode_restore_request(frame.header)
        totals = self._totals
        totals.computing_since = time.perf_counter()
        group = self._group if self._shard.is_led else None
        try:
            restored = self._put_back(frame.step_id, restores)
        except (UnitFaultError, EdgeError):
            raise
        except PotluckError as error:
            if group is not None:
                group.answer(FrameKind.FAILURE, frame.step_id, encode_failure(error))
            self._fail(frame, encode_failure(error))
            return
        totals.sending_since = time.perf_counter()
        totals.computing_since = 0.0
        if group is not None:
            group.answer(FrameKind.RESTORE, frame.step_id, encode_restore_request(restored))
        elif self._shard.has_head:
            state_end = max(restored.ends, default=0)
            header = encode_restore_result(RestoreResult(len(restored.blocks), state_end))
            self._outgoing.send(FrameKind.RESULT, frame.step_id, header)
        else:
            self._outgoing.send(FrameKind.RESTORE, frame.step_id, encode_restore_request(restored))
        totals.sending_since = 0.0

    def _put_back(self, step_id: StepId, restores: RestoreRequest) -> RestoreRequest:
        """Return what is restored here, and on all members of a group that this one leads."""
        leading = None if self._shard.is_led else self._group
        try:
            restored = _restored(self._keeper, restores)
        except EngineError:
            if leading is not None:
                with suppress(EngineError):
                    leading.restored(step_id, RestoreRequest(()))
            raise
        return restored if leading is None else leading.restored(step_id, restored)

    def _fail(self, frame: Frame, failure: bytes) -> None:
        """Send the reason why a step has no result."""
        self._totals.computing_since = 0.0
        self._outgoing.send(FrameKind.FAILURE, frame.step_id, failure)


_EXPECTED = (FrameKind.STEP, FrameKind.RESTORE, FrameKind.FAILURE, FrameKind.SKIPPED)


def _restored(keeper: BlockKeeper | None, restores: RestoreRequest) -> RestoreRequest:
    """Return what the stage has restored: the first blocks, and a state."""
    if keeper is None:
        return RestoreRequest(())
    count = keeper.restore(restores.blocks)
    blocks = restores.blocks[:count]
    hashes = {end: restores.blocks[end - 1].hash for end in restores.ends if end <= count}
    if restores.state is None:
        return RestoreRequest(blocks)
    return RestoreRequest(
        blocks, restores.state, tuple(keeper.restore_state(restores.state, hashes))
    )
