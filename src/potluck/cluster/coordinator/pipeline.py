"""Stages in other processes, reached over two edges: one to the first stage, one from the last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

import msgspec

from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import FrameKind
from potluck.cluster.steps import decode_failure, decode_sampled, encode_step
from potluck.errors import EdgeError, EngineError, PotluckError
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.step import Step


@dataclass(slots=True, kw_only=True)
class SentTotals:
    """Of the edge to the first stage. Counted by the thread that sends, read by any."""

    num_frames: int = 0
    num_bytes: int = 0
    send_seconds: float = 0.0


class RemotePipeline:
    """A ``Pipeline`` over edges. Owns both and closes them.

    One thread sends and one receives, so that ``submit`` never waits for a stage that does not
    read. Results come in the order of the steps. When an edge ends, or the last stage says nothing
    for ``step_seconds`` while steps are in flight, ``on_lost`` is called once, on a thread of the
    pipeline, before the steps in flight and all later ones fail with that reason.
    """

    def __init__(
        self,
        outgoing: OutgoingEdge,
        incoming: IncomingEdge,
        on_outcome: OnOutcome,
        on_lost: Callable[[PotluckError], None],
        *,
        step_seconds: float,
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._on_outcome = on_outcome
        self._on_lost = on_lost
        self._step_seconds = step_seconds
        self._submitted: SimpleQueue[Step | None] = SimpleQueue()
        self._in_flight: SimpleQueue[Step | None] = SimpleQueue()
        self._not_sent: EdgeError | None = None
        self._lost: EngineError | None = None
        self._is_closing = False
        self.sent = SentTotals()
        self._threads = (
            threading.Thread(target=self._send_all, name="steps", daemon=True),
            threading.Thread(target=self._receive_all, name="results", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def submit(self, step: Step) -> None:
        """Queue a step; returns at once."""
        self._submitted.put(step)

    def close(self) -> None:
        """Close the edges; steps in flight fail. Idempotent."""
        self._is_closing = True
        self._outgoing.close()
        self._incoming.close()
        self._submitted.put(None)
        for thread in self._threads:
            thread.join()

    def _send_all(self) -> None:
        while (step := self._submitted.get()) is not None:
            self._in_flight.put(step)
            if self._not_sent is None:
                try:
                    self._send(step)
                except EdgeError as error:
                    # Told by the thread that receives, in its turn: this ends its wait.
                    self._not_sent = error
                    self._incoming.close()
        self._in_flight.put(None)

    def _send(self, step: Step) -> None:
        started = time.perf_counter()
        header = encode_step(step)
        try:
            self._outgoing.send(FrameKind.STEP, step.step_id, header)
        except ValueError as error:
            raise EdgeError(self._outgoing.peer_node_id, str(error)) from error
        self.sent.num_frames += 1
        self.sent.num_bytes += len(header)
        self.sent.send_seconds += time.perf_counter() - started

    def _receive_all(self) -> None:
        while (step := self._in_flight.get()) is not None:
            self._on_outcome(self._outcome(step))

    def _outcome(self, step: Step) -> StepOutcome:
        if self._lost is None:
            try:
                return self._receive(step)
            except EdgeError as error:
                reason = self._not_sent or error
                self._lost = EngineError(
                    f"a stage of the model was lost: {reason.message}",
                    hint="send the request again: the model is being deployed anew",
                )
                if not self._is_closing:
                    self._on_lost(reason)
        return StepOutcome(step=step, error=self._lost)

    def _receive(self, step: Step) -> StepOutcome:
        """Raises ``EdgeError`` also for what makes no sense as this step's result."""
        frame = self._incoming.receive(self._step_seconds)
        peer = self._incoming.peer_node_id
        if frame.step_id != step.step_id:
            raise EdgeError(peer, "it answered another step")
        try:
            if frame.kind is FrameKind.FAILURE:
                return StepOutcome(step=step, error=decode_failure(frame.header))
            sampled = decode_sampled(frame.header)
        except msgspec.DecodeError as error:
            raise EdgeError(peer, f"it sent a malformed result ({error})") from error
        asked = [part.sequence_id for part in step.slices if part.sample]
        if frame.kind is not FrameKind.RESULT or [each.sequence_id for each in sampled] != asked:
            raise EdgeError(peer, "its result is not that of the step")
        return StepOutcome(step=step, sampled=sampled)
