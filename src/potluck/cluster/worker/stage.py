"""The loop of a worker's compute thread: a frame in, a step, a frame out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Frame, FrameKind
from potluck.cluster.steps import StepDecoder, encode_sampled
from potluck.cluster.worker.pace import Pace
from potluck.cluster.worker.step_times import RecentSteps
from potluck.errors import EdgeError, EngineError, PotluckError, UnitFaultError
from potluck.types.engine import Engine
from potluck.types.program import Shard
from potluck.types.step import StepId


@dataclass(slots=True, kw_only=True)
class StageTotals:
    """Counted by the compute thread and read by the one that reports.

    ``computing_since`` and ``sending_since`` are of ``time.perf_counter()``, and 0 between two.
    """

    num_steps: int = 0
    num_tokens: int = 0
    compute_seconds: float = 0.0
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
    has a lower one: it is counted in ``totals`` and dropped.
    """

    def __init__(
        self,
        engine: Engine,
        shard: Shard,
        hidden_size: int,
        incoming: IncomingEdge,
        outgoing: OutgoingEdge,
        totals: StageTotals,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._hidden_size = hidden_size
        self._incoming = incoming
        self._outgoing = outgoing
        self._totals = totals
        self._steps = StepDecoder(is_first=shard.has_embedding, is_last=shard.has_head)
        self._next_step: StepId | None = None

    def run(self) -> None:
        """Serve steps. Raises ``EdgeError`` when an edge ends (``EdgeClosedError`` if closed), and
        ``UnitFaultError`` when the engine's unit fails.
        """
        self._totals.computing_since = self._totals.sending_since = 0.0
        while True:
            frame = self._incoming.receive()
            if frame.kind not in (FrameKind.STEP, FrameKind.FAILURE):
                raise EdgeError(
                    self._incoming.peer_node_id, f"it sent an unexpected {frame.kind.name} frame"
                )
            if not self._is_next(frame.step_id):
                self._totals.num_dropped_frames += 1
            elif frame.kind is FrameKind.FAILURE:
                self._steps.skip(frame.header)
                self._outgoing.send(FrameKind.FAILURE, frame.step_id, frame.header)
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
            result = self._engine.step(step, hidden)
        except UnitFaultError:
            raise  # no later step would be right
        except PotluckError as error:
            totals.computing_since = 0.0
            failure = self._steps.failed(frame.header, error)
            self._outgoing.send(FrameKind.FAILURE, frame.step_id, failure)
            return
        totals.sending_since = computed = time.perf_counter()
        totals.computing_since = 0.0
        if result.hidden is None:
            header = encode_sampled(result.sampled)
            payload = memoryview(b"")
            kind = FrameKind.RESULT
        else:
            header = self._steps.forwarded(frame.header)
            payload, kind = result.hidden.data, FrameKind.STEP
        self._outgoing.send(kind, frame.step_id, header, payload)
        totals.sending_since = 0.0
        totals.num_steps += 1
        totals.num_tokens += step.num_tokens
        totals.compute_seconds += computed - started
        totals.send_seconds += time.perf_counter() - computed
        totals.num_sent_bytes += len(header) + payload.nbytes
        totals.pace.took(step, computed - started, at=computed)
        totals.recent.took(step, computed - started, at=computed)
