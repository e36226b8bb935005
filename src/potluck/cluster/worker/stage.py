"""The loop of a worker's compute thread: a frame in, a step, a frame out."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Frame, FrameKind
from potluck.cluster.steps import decode_step, encode_failure, encode_sampled
from potluck.errors import EdgeError, EngineError, PotluckError, UnitFaultError
from potluck.types.engine import Engine
from potluck.types.program import Shard


@dataclass(slots=True, kw_only=True)
class StageTotals:
    """Counted by the compute thread and read by the one that reports."""

    num_steps: int = 0
    num_tokens: int = 0
    compute_seconds: float = 0.0
    send_seconds: float = 0.0
    num_sent_bytes: int = 0


class Stage:
    """Runs an engine between two edges, until one of them closes."""

    def __init__(
        self,
        engine: Engine,
        shard: Shard,
        hidden_size: int,
        incoming: IncomingEdge,
        outgoing: OutgoingEdge,
    ) -> None:
        self._engine = engine
        self._shard = shard
        self._hidden_size = hidden_size
        self._incoming = incoming
        self._outgoing = outgoing
        self.totals = StageTotals()

    def run(self) -> None:
        """Serve steps. Raises ``EdgeError`` when an edge ends (``EdgeClosedError`` if closed), and
        ``UnitFaultError`` when the engine's unit fails.
        """
        while True:
            frame = self._incoming.receive()
            if frame.kind is FrameKind.FAILURE:
                self._outgoing.send(FrameKind.FAILURE, frame.step_id, frame.header)
            elif frame.kind is FrameKind.STEP:
                self._step(frame)
            else:
                raise EdgeError(
                    self._incoming.peer_node_id, f"it sent an unexpected {frame.kind.name} frame"
                )

    def close(self) -> None:
        """Close both edges, from any thread."""
        self._incoming.close()
        self._outgoing.close()

    def _step(self, frame: Frame) -> None:
        step = decode_step(frame.header)
        started = time.perf_counter()
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
            self._outgoing.send(FrameKind.FAILURE, frame.step_id, encode_failure(error))
            return
        computed = time.perf_counter()
        if result.hidden is None:
            header: bytes | memoryview = encode_sampled(result.sampled)
            payload = memoryview(b"")
            kind = FrameKind.RESULT
        else:
            header, payload, kind = frame.header, result.hidden.data, FrameKind.STEP
        self._outgoing.send(kind, frame.step_id, header, payload)
        totals = self.totals
        totals.num_steps += 1
        totals.num_tokens += step.num_tokens
        totals.compute_seconds += computed - started
        totals.send_seconds += time.perf_counter() - computed
        totals.num_sent_bytes += len(header) + payload.nbytes
