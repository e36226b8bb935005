"""Stages in other processes, connected by two edges: one to the first stage, one from the last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from potluck.cluster.coordinator.token_rates import TokenRates
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.wire.steps import (
    RestoreRequest,
    StepEncoder,
    decode_failure,
    decode_restore_result,
    decode_sampled,
    encode_restore_request,
)
from potluck.errors import DefectError, EdgeError, EngineError, PotluckError
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.scheduling.step_times import StepTimes
from potluck.types.cluster import NodeId
from potluck.types.step import SampledToken, SequenceId, SequenceSlice, Step, StepId

_log = logging.getLogger(__name__)

FLOOR_SECONDS = 1.0
"""No step is overdue sooner. With ``TIMES``, all steps of less than a quarter of a second have this
deadline, so they need no history."""

TIMES = 4.0
"""A step is overdue after this multiple of the median of such steps. One kind spans a factor of two
in tokens and in depth, and a pipeline that runs empty takes as many times longer for a step as it
has stages in use."""

CEILING_SECONDS = 15.0
"""Every step is overdue by then, whatever others took, so that a frozen worker is found within this
time even among steps that take minutes."""

LIMIT_TIMES = 20.0
"""A step is lost after this multiple of what such steps took even if all stages report progress: as
many competing processes on a worker's cores slow it down as much."""

_END_SECONDS = 5.0
"""The time for both threads to end once their edges are closed, which wakes them: milliseconds."""


@dataclass(slots=True, kw_only=True)
class SentTotals:
    """Totals of the edge to the first stage. Counted by the sending thread, read by any."""

    num_frames: int = 0
    num_bytes: int = 0
    send_seconds: float = 0.0


_GRACE_SECONDS = 10.0
"""The time beyond the limit of a step in which the handler of an overdue step can determine the
culprit and close the pipeline."""

_LEAST_WAIT_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueStep:
    """A step that has been awaited for ``waited_seconds``, longer than others like it took.

    After ``limit_seconds`` it is lost even if all stages make progress. ``is_awaited`` returns, on
    any thread, whether it still is; ``is_being_sent`` whether the first stage has not received it
    yet.
    """

    step_id: StepId
    waited_seconds: float
    limit_seconds: float
    is_being_sent: bool
    is_awaited: Callable[[], bool]


def overdue_after(typical_seconds: float, step_seconds: float) -> float:
    """Return after how long a step is overdue, if such steps typically take ``typical_seconds``.

    A step that is overdue is not lost. The nodes of its stages are then asked whether their workers
    make progress (``coordinator.overdue``); a deadline that is too early costs a few messages, and
    one that is too late delays a recovery. For ``step_seconds`` see ``AgentConfig``; it limits
    both deadlines, and is the limit for steps without history, which typically take 0 seconds.
    """
    return min(step_seconds, max(FLOOR_SECONDS, min(TIMES * typical_seconds, CEILING_SECONDS)))


def limit_of(typical_seconds: float, step_seconds: float) -> float:
    """Return after how long a step is lost even if its stages seem to make progress."""
    return max(step_seconds, LIMIT_TIMES * typical_seconds)


class RemotePipeline:
    """A ``Pipeline`` over edges. Owns both and closes them.

    One thread sends what cannot be sent immediately and one receives, so that ``submit`` never
    waits for a stage that does not read. Results arrive in the order of the steps. When an edge
    ends, or anything fails in either thread, ``on_lost`` is called once, on a thread of the
    pipeline, before the steps in flight and all later ones fail with that reason. It is a
    ``DefectError`` if the failure was not that of an edge.

    ``on_overdue`` is called on a thread of the pipeline when a step takes longer than others like
    it (see ``StepTimes``), and repeatedly while it is awaited. It must return immediately. The
    pipeline keeps waiting, and is lost by itself only some seconds after the step's limit, which is
    ``step_seconds`` or a multiple of what such steps took.
    """

    def __init__(
        self,
        outgoing: OutgoingEdge,
        incoming: IncomingEdge,
        on_outcome: OnOutcome,
        on_lost: Callable[[PotluckError], None],
        on_overdue: Callable[[OverdueStep], None],
        *,
        step_seconds: float,
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._on_outcome = on_outcome
        self._on_lost = on_lost
        self._on_overdue = on_overdue
        self._encoder = StepEncoder()
        self._times = StepTimes(least_seconds=FLOOR_SECONDS / TIMES)
        self._step_seconds = step_seconds
        self._first_wait_seconds = min(FLOOR_SECONDS, step_seconds)
        self._grace_seconds = min(_GRACE_SECONDS, step_seconds)
        self._awaited: Step | None = None
        self._awaited_since = 0.0
        self._being_sent: Step | None = None
        self._submitted: SimpleQueue[tuple[Step, bytes] | None] = SimpleQueue()
        self._num_queued = 0
        self._num_taken = 0
        self._in_flight: SimpleQueue[Step | None] = SimpleQueue()
        self._results = ResultCheck()
        self._cancelled: frozenset[StepId] = frozenset()
        self._answered: StepId | None = None  # the last one that was answered
        self._not_sent: PotluckError | None = None
        self._lost: EngineError | None = None
        self._is_closing = False
        self.sent = SentTotals()
        self.rates = TokenRates()
        self._threads = (
            threading.Thread(target=self._send_all, name="steps", daemon=True),
            threading.Thread(target=self._receive_all, name="results", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def submit(self, step: Step) -> None:
        """Send a small step if the kernel accepts it immediately, or queue it; never waits.

        Called by one thread at a time, as the dispatcher does under its lock.
        """
        if step.cancels:
            self._note_cancelled(step)
        header = self._encoded(step)
        is_idle = self._num_queued == self._num_taken  # the sending thread has nothing to do
        if is_idle and self._not_sent is None and self._outgoing.takes_at_once(len(header)):
            self._in_flight.put(step)
            self._send(step, header)
            return
        self._num_queued += 1
        self._submitted.put((step, header))

    def path(self) -> tuple[NodeId, PathFigures] | None:
        """Return the figures of the edge to the first stage, and the node of that stage."""
        path = self._outgoing.path()
        return None if path is None else (self._outgoing.peer_node_id, path)

    def close(self) -> None:
        """Close the edges; steps in flight fail. Idempotent, and bounded in time."""
        self._is_closing = True
        self._submitted.put(None)
        self._outgoing.close()
        self._incoming.close()
        deadline = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():  # nothing waits for it
                _log.error("thread %s did not end, and is abandoned", thread.name)

    def _send_all(self) -> None:
        try:
            while (submitted := self._submitted.get()) is not None:
                step, header = submitted
                self._in_flight.put(step)
                if self._not_sent is None:
                    self._send(step, header)
                self._num_taken += 1
        finally:
            self._in_flight.put(None)

    def _note_cancelled(self, step: Step) -> None:
        """Note that the stages may skip the steps that ``step`` cancels."""
        cancelled, answered = self._cancelled.union(step.cancels), self._answered
        if answered is not None:
            cancelled = frozenset(each for each in cancelled if each > answered)
        self._cancelled = cancelled

    def _encoded(self, step: Step) -> bytes:
        try:
            if step.restores:
                return encode_restore_request(RestoreRequest.of(step))
            return self._encoder.encode(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, this step will have no result
            self._give_up_sending(error)
            return b""

    def _send(self, step: Step, header: bytes) -> None:
        started = time.perf_counter()
        kind = FrameKind.RESTORE if step.restores else FrameKind.STEP
        self._being_sent = step
        try:
            self._outgoing.send(kind, step.step_id, header)
        except Exception as error:  # noqa: BLE001 - whatever it is, this step will have no result
            self._give_up_sending(error)
            return
        self._being_sent = None
        self.sent.num_frames += 1
        self.sent.num_bytes += len(header)
        self.sent.send_seconds += time.perf_counter() - started

    def _give_up_sending(self, error: Exception) -> None:
        """Let the receiving thread report it in turn, by ending its wait."""
        self._not_sent = _as_loss_reason(error, "a step could not be sent")
        self._incoming.wake()

    def _receive_all(self) -> None:
        while (step := self._in_flight.get()) is not None:
            try:
                outcome = self._outcome(step)
                self._answered = step.step_id
                if outcome.error is None and not outcome.is_skipped:
                    self.rates.record(step, outcome.sampled, time.perf_counter())
                self._on_outcome(outcome)
            except Exception as error:  # noqa: BLE001 - this thread's end would hang all that waits
                self._lose(_as_loss_reason(error, "a result could not be accepted"))

    def _outcome(self, step: Step) -> StepOutcome:
        if self._lost is None:
            try:
                return self._receive(step)
            except Exception as error:  # noqa: BLE001 - told below, whatever it is
                self._lose(
                    self._not_sent or _as_loss_reason(error, "a result could not be received")
                )
        return StepOutcome(step=step, error=self._lost)

    def _lose(self, reason: PotluckError) -> None:
        if self._lost is not None:
            return
        kind = DefectError if isinstance(reason, DefectError) else EngineError
        self._lost = kind(
            f"a stage of the model was lost: {reason.message}",
            hint="send the request again: the model is being redeployed",
        )
        if self._is_closing:
            return
        try:
            self._on_lost(reason)
        except Exception:  # noqa: BLE001 - the steps in flight are still to fail
            _log.exception("the loss of a stage could not be reported")

    def _receive(self, step: Step) -> StepOutcome:
        """Receive the result of a step. Raise ``DefectError`` if it cannot be this step's
        result.
        """
        frame = self._await_frame(step)
        peer = self._incoming.peer_node_id
        if frame.step_id != step.step_id:
            raise DefectError(f"connection to node {peer}: it answered a different step")
        if frame.kind is FrameKind.SKIPPED:
            if step.step_id not in self._cancelled or not step.can_be_skipped:
                raise DefectError(
                    f"connection to node {peer}: it skipped a step that was not cancelled"
                )
            return StepOutcome(step=step, is_skipped=True)
        try:
            if frame.kind is FrameKind.FAILURE:
                error = decode_failure(frame.header)
                self._results.failed(step)
                return StepOutcome(step=step, error=error)
            if step.restores:
                restored = decode_restore_result(frame.header)
                count, state_end = restored.num_blocks, restored.state_end
                most_end = 0 if step.restored_state is None else count
                is_of_step = count <= len(step.restores) and state_end <= most_end
                if frame.kind is not FrameKind.RESULT or not is_of_step:
                    raise DefectError(
                        f"connection to node {peer}: the result does not match the step"
                    )
                return StepOutcome(step=step, num_restored=count, state_end=state_end)
            sampled = decode_sampled(frame.header)
        except ValueError as error:  # DecodeError, or invalid UTF-8
            raise DefectError(
                f"connection to node {peer}: it sent a malformed result ({error})"
            ) from error
        if frame.kind is not FrameKind.RESULT:
            raise DefectError(f"connection to node {peer}: the result does not match the step")
        try:
            self._results.take(step, sampled)
        except DefectError as error:
            raise DefectError(f"connection to node {peer}: {error.message}") from error
        return StepOutcome(step=step, sampled=sampled)

    def _await_frame(self, step: Step) -> Frame:
        # It is now the oldest in flight: those before it no longer delay it.
        self._awaited_since = started = time.monotonic()
        self._awaited = step
        try:
            frame = self._incoming.receive(self._first_wait_seconds, self._on_silence)
        finally:
            self._awaited = None
        if frame.kind is not FrameKind.SKIPPED:
            now = time.monotonic()
            self._times.record(step, now - started, at=now)
        return frame

    def _on_silence(self) -> float:
        """Handle a wait without a frame; return how long to keep waiting.

        Raise ``TimeoutError`` when it has been long enough.
        """
        step = self._awaited
        if step is None:  # only while a frame is awaited
            raise TimeoutError
        waited_seconds = time.monotonic() - self._awaited_since
        typical_seconds = self._times.typical_seconds(step)
        limit_seconds = limit_of(typical_seconds, self._step_seconds)
        if waited_seconds >= limit_seconds + self._grace_seconds:
            raise TimeoutError
        due_seconds = overdue_after(typical_seconds, self._step_seconds)
        if waited_seconds < due_seconds:
            return max(_LEAST_WAIT_SECONDS, due_seconds - waited_seconds)
        self._on_overdue(
            OverdueStep(
                step_id=step.step_id,
                waited_seconds=waited_seconds,
                limit_seconds=limit_seconds,
                is_being_sent=self._being_sent is step,
                is_awaited=lambda: self._awaited is step,
            )
        )
        if waited_seconds >= limit_seconds:
            return min(FLOOR_SECONDS, self._grace_seconds)
        pause_seconds = max(FLOOR_SECONDS, min(waited_seconds, CEILING_SECONDS))
        return max(_LEAST_WAIT_SECONDS, min(pause_seconds, limit_seconds - waited_seconds))


def _as_loss_reason(error: Exception, what: str) -> PotluckError:
    """Return ``error`` as the reason why the pipeline is lost; log what is not an edge failure."""
    if isinstance(error, EdgeError):
        return error
    _log.error("%s", what, exc_info=error)
    if isinstance(error, DefectError):
        return error
    return DefectError(f"{what}: {type(error).__name__}: {error}")


class ResultCheck:
    """Checks whether the last stage can produce the results of steps, in the order of the steps.

    With drafts, the number of entries depends on what was sampled, so counting them is not enough:
    a stage must continue exactly as far as the drafts are right (``SequenceSlice``). For use by one
    thread.
    """

    def __init__(self) -> None:
        self._last: dict[SequenceId, tuple[int, int]] = {}  # position and token of the last result

    def take(self, step: Step, sampled: Sequence[SampledToken]) -> None:
        """Record the result of a step. Raise ``DefectError`` if the step cannot have produced
        it.
        """
        if any(part.num_drafts for part in step.slices):
            self._take_verified(step, sampled)
        else:
            answered = tuple((each.sequence_id, each.position) for each in sampled)
            if answered != step.results:
                raise _not_of_step("the number of entries is wrong")
        for each in sampled:
            self._last[each.sequence_id] = each.position, each.token
        self._forget(step)

    def failed(self, step: Step) -> None:
        """Record that a step failed: what it sampled before that is unknown."""
        for part in step.slices:
            self._last.pop(part.sequence_id, None)
        self._forget(step)

    def _forget(self, step: Step) -> None:
        for sequence_id in step.closed:
            self._last.pop(sequence_id, None)

    def _take_verified(self, step: Step, sampled: Sequence[SampledToken]) -> None:
        num_taken = 0
        for part in step.slices:
            if part.begins_with_draft and not self._is_reached(part, sampled[num_taken:]):
                continue
            for index in part.wanted:
                expected = (part.sequence_id, part.start_position + index + 1)
                if num_taken == len(sampled):
                    raise _not_of_step("entries are missing")
                entry = sampled[num_taken]
                if (entry.sequence_id, entry.position) != expected:
                    raise _not_of_step("the number of entries is wrong")
                num_taken += 1
                has_draft = part.num_drafts and index + 1 < len(part.tokens)
                if has_draft and part.tokens[index + 1] != entry.token:
                    break
        vectors = step.results[step.num_wanted :]
        if tuple((each.sequence_id, each.position) for each in sampled[num_taken:]) != vectors:
            raise _not_of_step("there are too many entries")

    def _is_reached(self, part: SequenceSlice, following: Sequence[SampledToken]) -> bool:
        """Return whether the first draft of a slice is what was sampled for the sequence before.

        If that is not known, the result decides.
        """
        last = self._last.get(part.sequence_id)
        if last is not None:
            return last == (part.start_position, part.tokens[0])
        first = (part.sequence_id, part.start_position + 1)
        return bool(following) and (following[0].sequence_id, following[0].position) == first


def _not_of_step(why: str) -> DefectError:
    return DefectError(f"the result does not match the step: {why}")
