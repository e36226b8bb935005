"""Steps that are cancelled while they wait for a worker's stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cluster.edges import HELLO, bare_edge, edge
from support.processes.waiting import eventually

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import (
    PREAMBLE_BYTES,
    Frame,
    FrameKind,
    encode_preamble_into,
    encode_scope,
)
from potluck.cluster.wire.steps import StepDecoder, StepEncoder, decode_failure, decode_sampled
from potluck.cluster.worker import stage as module
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.errors import EdgeClosedError, EngineError
from potluck.grammars.step_masks import StepMasks
from potluck.types.engine import StepResult
from potluck.types.program import Shard
from potluck.types.step import BlockCopy, SequenceId, SequenceSlice, StateCopy, Step, StepId

WIDTH = 8


class Engine:
    """Computes one step whenever it is let: adds 1 to what it is given."""

    def __init__(self, *, is_last: bool) -> None:
        self.may_compute = threading.Semaphore(0)
        self.begun: list[Step] = []
        self.hidden: list[list[float]] = []
        self.fails: set[int] = set()
        self._is_last = is_last

    def step(self, step: Step, hidden: NDArray[np.float32] | None, masks: object) -> StepResult:
        self.begun.append(step)
        self.may_compute.acquire()
        if hidden is not None:
            self.hidden.append(hidden[:, 0].tolist())
        if step.step_id in self.fails:
            raise EngineError("it cannot")
        if self._is_last:
            return StepResult(hidden=None, sampled=())
        given = np.zeros((step.num_tokens, WIDTH), np.float32) if hidden is None else hidden
        return StepResult(hidden=given + 1, sampled=())

    @property
    def numbers(self) -> list[int]:
        return [step.step_id for step in self.begun]


class Served:
    """A stage between two edges that are the test's."""

    def __init__(self, engine: Engine, steps: OutgoingEdge, results: IncomingEdge) -> None:
        self.engine = engine
        self.steps = steps
        self.results = results
        self.totals = StageTotals()
        self.error: ValueError | None = None

    def let(self, number: int) -> None:
        """Let the stage compute a step, which is the next that it begins."""
        eventually(lambda: self.engine.numbers[-1:] == [number], within=5, what=f"{number} begins")
        self.engine.may_compute.release()

    def result(self, number: int, kind: FrameKind) -> Frame:
        frame = self.results.receive(20)
        assert (frame.step_id, frame.kind) == (number, kind)
        return frame


@contextmanager
def served(*, is_first: bool = True, is_last: bool = True, bare: Any = None) -> Iterator[Served]:
    shard = Shard(
        start_layer=0 if is_first else 1,
        end_layer=2 if is_last else 1,
        num_layers=2,
        has_embedding=is_first,
        has_head=is_last,
    )
    engine = Engine(is_last=is_last)
    with edge() as (steps, incoming), edge() as (outgoing, results):
        stages = Served(engine, steps, results)
        stage = Stage(
            cast(Any, engine),
            shard,
            WIDTH,
            incoming if bare is None else bare,
            outgoing,
            stages.totals,
            StepMasks(None),
        )

        def run() -> None:
            try:
                stage.run()
            except EdgeClosedError:
                pass
            except ValueError as error:
                stages.error = error

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stages
        finally:
            engine.may_compute.release(1000)
            incoming.close()
            if bare is not None:
                bare.close()
            thread.join(20)
            assert not thread.is_alive()


def step(number: int, *, num_drafts: int, cancels: Sequence[int] = ()) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1, 2),
        start_position=2 * number,
        block_table=tuple(range(number + 1)),
        sample=True,
        num_drafts=num_drafts,
    )
    return Step(step_id=StepId(number), slices=(part,), cancels=tuple(map(StepId, cancels)))


def test_a_stage_skips_what_a_frame_behind_it_cancels() -> None:
    encoder = StepEncoder()
    with served() as stage:
        for each in (
            step(0, num_drafts=1),
            step(1, num_drafts=2),
            step(2, num_drafts=2),
            step(3, num_drafts=1, cancels=(1, 2)),
            step(4, num_drafts=2),
        ):
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        for number in (0, 3, 4):
            stage.let(number)
        stage.result(0, FrameKind.RESULT)
        assert not stage.result(1, FrameKind.SKIPPED).header
        stage.result(2, FrameKind.SKIPPED)
        stage.result(3, FrameKind.RESULT)
        assert decode_sampled(stage.result(4, FrameKind.RESULT).header) == ()
        assert stage.engine.numbers == [0, 3, 4]
        assert [each.slices[0].block_table[-1] for each in stage.engine.begun] == [0, 3, 4]
    # A step is counted after its result was sent; the stage has ended by now.
    assert stage.totals.num_steps == 3


def test_what_is_cancelled_too_late_or_does_more_is_computed() -> None:
    encoder = StepEncoder()
    plain = step(2, num_drafts=1)
    more = (
        replace(step(3, num_drafts=2), closed=(SequenceId(9),)),
        replace(step(4, num_drafts=2), copies=(BlockCopy(source=1, target=2),)),
        replace(step(5, num_drafts=2), state_copies=(StateCopy(source=1, target=2),)),
    )
    with served() as stage:
        begun = step(1, num_drafts=2)
        for each in (step(0, num_drafts=1), begun):
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        stage.let(0)
        eventually(lambda: stage.engine.numbers == [0, 1], within=5, what="the second begins")
        for each in (plain, *more, step(6, num_drafts=2, cancels=(1, 2, 3, 4, 5, 77))):
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        for number in range(1, 7):
            stage.let(number)
        for number in range(7):
            stage.result(number, FrameKind.RESULT)
        assert stage.engine.numbers == [*range(7)]


def test_of_what_was_read_ahead_only_steps_without_effects_are_skipped() -> None:
    encoder = StepEncoder()
    with served() as stage:
        for each in (
            step(0, num_drafts=1),
            step(1, num_drafts=2),  # which looks ahead
            step(2, num_drafts=1),
            replace(step(3, num_drafts=2), closed=(SequenceId(9),)),
            replace(step(4, num_drafts=2), copies=(BlockCopy(source=1, target=2),)),
            step(5, num_drafts=2),
            step(6, num_drafts=2, cancels=(0, 2, 3, 4, 5, 77)),
        ):
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        for number in (0, 1, 2, 3, 4, 6):
            stage.let(number)
        for number in range(7):
            stage.result(number, FrameKind.SKIPPED if number == 5 else FrameKind.RESULT)


def test_the_stages_after_it_skip_too_and_know_all_tables() -> None:
    encoder, second = StepEncoder(), StepDecoder(is_first=False, is_last=True)
    with served(is_last=False) as stage:
        frames = (
            step(0, num_drafts=1),
            step(1, num_drafts=2),
            step(2, num_drafts=0, cancels=(1,)),
        )
        for each in frames:
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        stage.let(0)
        stage.let(2)
        frame = stage.result(0, FrameKind.STEP).copied()
        second.decode(StepId(0), frame.header)
        skipped = bytes(stage.result(1, FrameKind.SKIPPED).header)
        for is_last in (False, True):
            with served(is_first=False, is_last=is_last) as later:
                later.steps.send(FrameKind.STEP, StepId(0), frame.header, frame.payload)
                later.steps.send(FrameKind.SKIPPED, StepId(1), skipped)
                later.let(0)
                later.result(0, FrameKind.RESULT if is_last else FrameKind.STEP)
                header = bytes(later.result(1, FrameKind.SKIPPED).header)
                assert header == (b"" if is_last else skipped)
                assert later.engine.numbers == [0]
        assert second.skip(skipped) == ()
        frame = stage.result(2, FrameKind.STEP)
        assert second.decode(StepId(2), frame.header).slices[0].block_table == (0, 1, 2)


def test_a_later_stage_keeps_what_it_was_given_while_it_looks_ahead() -> None:
    first, encoder = StepDecoder(is_first=True, is_last=False), StepEncoder()
    with served(is_first=False) as stage:
        for each in (
            step(0, num_drafts=2),
            step(1, num_drafts=2),
            step(2, num_drafts=2),
            step(3, num_drafts=1, cancels=(2,)),
            step(4, num_drafts=2),
        ):
            header = encoder.encode(each)
            first.decode(each.step_id, header)
            hidden = np.full((2, WIDTH), each.step_id, np.float32)
            stage.steps.send(FrameKind.STEP, each.step_id, first.forwarded(header), hidden.data)
        for number in (0, 1, 3, 4):
            stage.let(number)
        for number in range(5):
            stage.result(number, FrameKind.SKIPPED if number == 2 else FrameKind.RESULT)
        assert stage.engine.hidden == [[n, n] for n in (0.0, 1.0, 3.0, 4.0)]


def test_a_step_that_fails_or_was_skipped_before_may_cancel_others() -> None:
    before, encoder = StepDecoder(is_first=True, is_last=False), StepEncoder()
    steps = (
        step(0, num_drafts=1),
        step(1, num_drafts=2),
        step(2, num_drafts=2),
        step(3, num_drafts=2, cancels=(1,)),
        step(4, num_drafts=1, cancels=(2,)),
    )
    with served(is_first=False) as stage:
        for each in steps:
            header = encoder.encode(each)
            before.decode(each.step_id, header)
            hidden = np.zeros((2, WIDTH), np.float32)
            if each.step_id == 3:
                stage.steps.send(FrameKind.SKIPPED, each.step_id, before.skipped(header))
            elif each.step_id == 4:
                failed = before.failed(header, EngineError("no"))
                stage.steps.send(FrameKind.FAILURE, each.step_id, failed)
            else:
                stage.steps.send(
                    FrameKind.STEP, each.step_id, before.forwarded(header), hidden.data
                )
        stage.let(0)
        stage.result(0, FrameKind.RESULT)
        for number in (1, 2, 3):
            stage.result(number, FrameKind.SKIPPED)
        assert decode_failure(stage.result(4, FrameKind.FAILURE).header).message == "no"
        assert stage.engine.numbers == [0]


def test_nothing_is_waited_for() -> None:
    """Half a frame behind a step does not hold it up, and is read on later."""
    encoder = StepEncoder()
    headers = [
        encoder.encode(each)
        for each in (step(0, num_drafts=2), step(1, num_drafts=1, cancels=(0,)))
    ]
    frames = []
    for number, header in enumerate(headers):
        preamble = bytearray(PREAMBLE_BYTES)
        scope = encode_scope(HELLO.scope)
        encode_preamble_into(preamble, scope, FrameKind.STEP, StepId(number), len(header), 0)
        frames.append(bytes(preamble) + header)
    for count in (1, PREAMBLE_BYTES, len(frames[1]) - 1):
        with bare_edge() as (writing, incoming), served(bare=incoming) as stage:
            writing.sendall(frames[0] + frames[1][:count])
            stage.let(0)
            stage.result(0, FrameKind.RESULT)
            writing.sendall(frames[1][count:])
            stage.let(1)
            stage.result(1, FrameKind.RESULT)


def test_only_so_much_waits_in_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FRAMES_AHEAD", 3)
    encoder = StepEncoder()
    with served() as stage:
        for number in range(4):
            each = step(number, num_drafts=2, cancels=(0,) if number == 3 else ())
            stage.steps.send(FrameKind.STEP, each.step_id, encoder.encode(each))
        # The fourth was not seen: it does not fit in.
        eventually(lambda: bool(stage.engine.begun), within=5, what="a step begins")
        assert stage.engine.numbers == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        step(0, num_drafts=1),
        replace(step(0, num_drafts=2), closed=(SequenceId(3),)),
        Step(step_id=StepId(0), slices=()),
    ],
)
def test_a_peer_that_skips_what_must_be_computed_is_refused(wrong: Step) -> None:
    header = StepDecoder(is_first=True, is_last=False).skipped(StepEncoder().encode(wrong))
    with served(is_first=False) as stage:
        stage.steps.send(FrameKind.SKIPPED, StepId(0), header)
        eventually(lambda: stage.error is not None, within=5, what="the stage refuses")
        assert "does more than verify drafts" in str(stage.error)
