"""Stages in other processes, reached over two edges: one to the first stage, one from the last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import FrameKind
from potluck.cluster.steps import decode_failure, decode_sampled, encode_step
from potluck.errors import EdgeError, EngineError, PotluckError
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.step import Step


class RemotePipeline:
    """A ``Pipeline`` over edges. Owns both and closes them.

    Results come in the order of the steps. When an edge ends, ``on_lost`` is called once, on the
    pipeline's thread, before the steps in flight and all later ones fail with that reason.
    """

    def __init__(
        self,
        outgoing: OutgoingEdge,
        incoming: IncomingEdge,
        on_outcome: OnOutcome,
        on_lost: Callable[[PotluckError], None],
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._on_outcome = on_outcome
        self._on_lost = on_lost
        self._submitted: SimpleQueue[Step | None] = SimpleQueue()
        self._lost: EngineError | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def submit(self, step: Step) -> None:
        """Send a step on its way; returns when the kernel has taken it."""
        if self._lost is None:
            try:
                self._outgoing.send(FrameKind.STEP, step.step_id, encode_step(step))
            except EdgeError:
                # The thread that waits for results says so: it must not be said from in here.
                self._incoming.close()
        self._submitted.put(step)

    def close(self) -> None:
        """Close the edges; steps in flight fail. Idempotent."""
        self._is_closing = True
        self._outgoing.close()
        self._incoming.close()
        self._submitted.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (step := self._submitted.get()) is not None:
            self._on_outcome(self._outcome(step))

    def _outcome(self, step: Step) -> StepOutcome:
        if self._lost is not None:
            return StepOutcome(step=step, error=self._lost)
        try:
            frame = self._incoming.receive()
            if frame.step_id != step.step_id:
                raise EdgeError(self._incoming.peer_node_id, "it answered another step")
            if frame.kind is FrameKind.FAILURE:
                return StepOutcome(step=step, error=decode_failure(frame.header))
            return StepOutcome(step=step, sampled=decode_sampled(frame.header))
        except EdgeError as error:
            self._lost = EngineError(
                f"a stage of the model was lost: {error.message}",
                hint="send the request again: the model is being deployed anew",
            )
            if not self._is_closing:
                self._on_lost(error)
            return StepOutcome(step=step, error=self._lost)
