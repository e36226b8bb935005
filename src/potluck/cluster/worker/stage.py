"""The loop of a worker's compute thread: a frame in, a step, a frame out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Frame, FrameKind
from potluck.cluster.steps import (
    Restored,
    Restores,
    StepDecoder,
    decode_restores,
    encode_failure,
    encode_restored,
    encode_restores,
    encode_sampled,
)
from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.pace import Pace
from potluck.cluster.worker.step_times import RecentSteps
from potluck.errors import EdgeError, EngineError, PotluckError, UnitFaultError
from potluck.grammars.step_masks import StepMasks
from potluck.types.engine import NO_MASKS, Engine
from potluck.types.program import Shard
from potluck.types.step import StepId


@dataclass(slots=True, kw_only=True)
class StageTotals:
    """Counted by the compute thread and read by the one that reports.

    ``cpu_seconds`` are those of ``compute_seconds`` in which the thread ran: without those in which
    it waited for others or for a core. ``computing_since`` and ``sending_since`` are of
    ``time.perf_counter()``, and 0 between two.
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
    pace: Pace = field(default_factory=Pace)
    recent: RecentSteps = field(default_factory=RecentSteps)

    @property
    def busy_seconds(self) -> float:
        """How long the present step has been computed."""
        return _seconds_since(self.computing_since)

    @property
    def sending_seconds(self) -> float:
        """How long the present result has been on its way out."""
        return _seconds_since(self.sending_since)


def _seconds_since(started: float) -> float:
    return time.perf_counter() - started if started else 0.0


class Stage:
    """Runs an engine between two edges, until one of them closes.

    The first frame may have any step id, each later one the next. A frame that comes late or twice
    has a lower one: it is counted in ``totals`` and dropped. Without a ``keeper`` no cache blocks
    are saved, and none is restored.
    """

    def __init__(
        self,
        engine: Engine,
        shard: Shard,
        hidden_size: int,
        incoming: IncomingEdge,
        outgoing: OutgoingEdge,
        totals: StageTotals,
        masks: StepMasks,
        keeper: BlockKeeper | None = None,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._hidden_size = hidden_size
        self._incoming = incoming
        self._outgoing = outgoing
        self._totals = totals
        self._masks = masks
        self._keeper = keeper
        self._steps = StepDecoder(is_first=shard.has_embedding, is_last=shard.has_head)
        self._next_step: StepId | None = None

    def run(self) -> None:
        """Serve steps. Raises ``EdgeError`` when an edge ends (``EdgeClosedError`` if closed), and
        ``UnitFaultError`` when the engine's unit fails.
        """
        self._totals.computing_since = self._totals.sending_since = 0.0
        while True:
            frame = self._incoming.receive()
            if frame.kind not in (FrameKind.STEP, FrameKind.RESTORE, FrameKind.FAILURE):
                raise EdgeError(
                    self._incoming.peer_node_id, f"it sent an unexpected {frame.kind.name} frame"
                )
            if not self._is_next(frame.step_id):
                self._totals.num_dropped_frames += 1
            elif frame.kind is FrameKind.FAILURE:
                self._steps.skip(frame.header)
                self._outgoing.send(FrameKind.FAILURE, frame.step_id, frame.header)
            elif frame.kind is FrameKind.RESTORE:
                self._restore(frame)
            else:
                self._step(frame)

    def _is_next(self, step_id: StepId) -> bool:
        """Whether a frame is to be computed; raises ``EdgeError`` if one before it is missing."""
        expected = self._next_step
        if expected is not None and step_id < expected:
            return False
        if expected is not None and step_id > expected:
            peer = self._incoming.peer_node_id
            raise EdgeError(peer, f"it sent step {step_id} and not {expected}, which comes first")
        self._next_step = StepId(step_id + 1)
        return True

    def _step(self, frame: Frame) -> None:
        step = self._steps.decode(frame.step_id, frame.header)
        totals = self._totals
        totals.computing_since = started = time.perf_counter()
        try:
            hidden = None
            if not self._shard.has_embedding:
                flat = np.frombuffer(frame.payload, dtype="<f4")
                if flat.size != step.num_tokens * self._hidden_size:
                    raise EngineError(f"{step.num_tokens} tokens came with {flat.size} numbers")
                hidden = flat.reshape(step.num_tokens, self._hidden_size)
            masks = self._masks.before(step) if self._shard.has_head else NO_MASKS
            if (step.saves or step.state_saves) and self._keeper is not None:
                self._keeper.save(step.saves)
                self._keeper.save_states(step.state_saves)
                started = time.perf_counter()
            cpu_started = time.thread_time()
            result = self._engine.step(step, hidden, masks)
            totals.cpu_seconds += time.thread_time() - cpu_started
        except UnitFaultError:
            raise  # no later step would be right
        except PotluckError as error:
            self._fail(frame, self._steps.failed(frame.header, error))
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
        if result.hidden is None:
            self._masks.after(step, result.sampled)  # while the tokens are on their way
        totals.num_steps += 1
        totals.num_tokens += step.num_tokens
        totals.compute_seconds += computed - started
        totals.send_seconds += sent - computed
        totals.num_sent_bytes += len(header) + payload.nbytes
        if step.slices:
            totals.pace.took(step, computed - started, at=computed)
            totals.recent.took(step, computed - started, at=computed)

    def _restore(self, frame: Frame) -> None:
        """Put back what the stages before have put back too, as far as it is here."""
        asked = decode_restores(frame.header)
        totals = self._totals
        totals.computing_since = time.perf_counter()
        try:
            restored = _restored(self._keeper, asked)
        except UnitFaultError:
            raise
        except PotluckError as error:
            self._fail(frame, encode_failure(error))
            return
        totals.sending_since = time.perf_counter()
        totals.computing_since = 0.0
        if self._shard.has_head:
            state_end = max(restored.ends, default=0)
            header = encode_restored(Restored(len(restored.blocks), state_end))
            self._outgoing.send(FrameKind.RESULT, frame.step_id, header)
        else:
            self._outgoing.send(FrameKind.RESTORE, frame.step_id, encode_restores(restored))
        totals.sending_since = 0.0

    def _fail(self, frame: Frame, failure: bytes) -> None:
        """Send on why a step has no result."""
        self._totals.computing_since = 0.0
        self._outgoing.send(FrameKind.FAILURE, frame.step_id, failure)


def _restored(keeper: BlockKeeper | None, asked: Restores) -> Restores:
    """Return what of it the stage has put back: the beginning of the blocks, and a state."""
    if keeper is None:
        return Restores(())
    count = keeper.restore(asked.blocks)
    blocks = asked.blocks[:count]
    hashes = {end: asked.blocks[end - 1].hash for end in asked.ends if end <= count}
    if asked.state is None:
        return Restores(blocks)
    return Restores(blocks, asked.state, tuple(keeper.restore_state(asked.state, hashes)))
