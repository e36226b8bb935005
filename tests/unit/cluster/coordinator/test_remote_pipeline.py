"""The pipeline over edges, against a last stage that is played by the test."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import cast

import pytest
from support.cluster.edges import HELLO, bare_edge, edge
from support.processes.waiting import done_within, eventually

from potluck.cluster.coordinator import pipeline as module
from potluck.cluster.coordinator.pipeline import OverdueStep, RemotePipeline
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import (
    PREAMBLE_BYTES,
    FrameKind,
    encode_preamble_into,
    encode_scope,
)
from potluck.cluster.wire.steps import (
    RestoreRequest,
    RestoreResult,
    decode_restore_request,
    encode_failure,
    encode_restore_result,
    encode_sampled,
)
from potluck.errors import DefectError, EdgeError, EngineError, PotluckError
from potluck.scheduling.pipeline import StepOutcome
from potluck.types.step import (
    HashedBlock,
    SampledToken,
    SequenceId,
    SequenceSlice,
    Step,
    StepId,
)


def step(number: int, *, num_tokens: int = 1) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(number),
        tokens=tuple(range(num_tokens)),
        start_position=0,
        block_table=(0,),
        sample=True,
    )
    return Step(step_id=StepId(number), slices=(part,), opened=(), closed=())


def result(sequence: int) -> bytes:
    token = SampledToken(
        sequence_id=SequenceId(sequence), position=1, token=7, logprob=None, top=()
    )
    return encode_sampled((token,))


class Played:
    """A pipeline whose stages are the test: ``steps`` come in, ``results`` go out."""

    def __init__(
        self,
        pipeline: RemotePipeline,
        steps: IncomingEdge,
        results: OutgoingEdge,
        outcomes: SimpleQueue[StepOutcome],
        losses: SimpleQueue[PotluckError],
        overdue: SimpleQueue[OverdueStep],
    ) -> None:
        self.pipeline = pipeline
        self.steps = steps
        self.results = results
        self.outcomes = outcomes
        self.losses = losses
        self.overdue = overdue


@contextmanager
def played(step_seconds: float = 10.0) -> Iterator[Played]:
    outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
    losses: SimpleQueue[PotluckError] = SimpleQueue()
    overdue: SimpleQueue[OverdueStep] = SimpleQueue()
    with edge() as (outgoing, steps), edge() as (results, incoming):
        pipeline = RemotePipeline(
            outgoing, incoming, outcomes.put, losses.put, overdue.put, step_seconds=step_seconds
        )
        try:
            yield Played(pipeline, steps, results, outcomes, losses, overdue)
        finally:
            pipeline.close()


def test_outcomes_come_in_the_order_of_the_steps_failures_among_them() -> None:
    with played() as stages:
        for number in range(3):
            stages.pipeline.submit(step(number))
            assert stages.steps.receive(20).step_id == number
        stages.results.send(FrameKind.RESULT, StepId(0), result(0))
        failure = encode_failure(EngineError("not finite"))
        stages.results.send(FrameKind.FAILURE, StepId(1), failure)
        stages.results.send(FrameKind.RESULT, StepId(2), result(2))
        outcomes = [stages.outcomes.get(timeout=20) for _ in range(3)]
        assert [outcome.step.step_id for outcome in outcomes] == [0, 1, 2]
        assert [outcome.sampled[0].token for outcome in outcomes[::2]] == [7, 7]
        assert outcomes[1].error is not None
        assert outcomes[1].error.message == "not finite"
        assert stages.losses.empty()
        # The thread that sends counts a frame after it has been received, perhaps.
        eventually(lambda: stages.pipeline.sent.num_frames == 3)


BLOCKS = tuple(HashedBlock(block=i, hash=bytes([i]) * 32, parent=bytes(32)) for i in range(3))


def test_steps_that_restore_blocks_say_how_many() -> None:
    with played() as stages:
        for number, (count, end) in enumerate(((3, 3), (0, 0), (2, 1))):
            restore_step = Step(
                step_id=StepId(number),
                slices=(),
                restores=BLOCKS,
                restored_state=4 if end else None,
            )
            stages.pipeline.submit(restore_step)
            frame = stages.steps.receive(20)
            assert (frame.kind, frame.step_id) == (FrameKind.RESTORE, number)
            assert decode_restore_request(frame.header) == RestoreRequest.of(restore_step)
            header = encode_restore_result(RestoreResult(count, end))
            stages.results.send(FrameKind.RESULT, StepId(number), header)
            assert stages.outcomes.get(timeout=20) == StepOutcome(
                step=restore_step, num_restored=count, state_end=end
            )
        stages.pipeline.submit(Step(step_id=StepId(3), slices=(), restores=BLOCKS))
        stages.results.send(FrameKind.FAILURE, StepId(3), encode_failure(EngineError("none")))
        failed = stages.outcomes.get(timeout=20)
        assert failed.error is not None
        assert failed.num_restored == 0


@pytest.mark.parametrize(
    "header",
    [
        encode_restore_result(RestoreResult(4)),
        encode_restore_result(RestoreResult(-1)),
        encode_restore_result(RestoreResult(2, 1)),  # no state was asked for
        b"",
        result(0),
    ],
)
def test_more_restored_blocks_than_were_asked_for_are_a_defect(header: bytes) -> None:
    with played() as stages:
        stages.pipeline.submit(Step(step_id=StepId(0), slices=(), restores=BLOCKS))
        stages.steps.receive(20)
        stages.results.send(FrameKind.RESULT, StepId(0), header)
        assert isinstance(stages.losses.get(timeout=20), DefectError)
        assert stages.outcomes.get(timeout=20).num_restored == 0


def test_scores_come_back_each_at_its_position() -> None:
    scored = replace(step(4, num_tokens=3).slices[0], sample=False, score_from=1, next_token=9)
    scoring_step = Step(step_id=StepId(0), slices=(scored,))

    def scores(*positions: int) -> bytes:
        return encode_sampled(
            tuple(
                SampledToken(sequence_id=SequenceId(4), position=position, token=2, logprob=-1.0)
                for position in positions
            )
        )

    for positions in ((2, 3), (2,), (1, 2), (2, 3, 4)):
        with played() as stages:
            stages.pipeline.submit(scoring_step)
            stages.results.send(FrameKind.RESULT, StepId(0), scores(*positions))
            outcome = stages.outcomes.get(timeout=20)
            assert (outcome.error is None) == (positions == (2, 3))
            assert [each.position for each in outcome.sampled] == (
                [2, 3] if positions == (2, 3) else []
            )


@pytest.mark.slow
def test_submit_does_not_wait_for_a_stage_that_does_not_read() -> None:
    with played(step_seconds=60) as stages:
        with done_within(10):
            for number in range(12_000):  # 10 MB: more than the sockets between them hold
                stages.pipeline.submit(step(number, num_tokens=300))
            stages.pipeline.close()  # not held up by the thread that is sending
        outcomes = [stages.outcomes.get(timeout=20) for _ in range(12_000)]
        assert all(outcome.error is not None for outcome in outcomes)
        assert stages.losses.empty()


@pytest.mark.slow
def test_a_step_that_is_overdue_is_told_and_awaited_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FLOOR_SECONDS", 0.1)
    with played(step_seconds=60.0) as stages:
        for number in range(2):
            stages.pipeline.submit(step(number))
            overdue = stages.overdue.get(timeout=20)
            assert overdue.step_id == number
            assert overdue.waited_seconds >= 0.1
            assert overdue.limit_seconds == 60
            assert overdue.is_awaited()
            assert not overdue.is_being_sent
            again = stages.overdue.get(timeout=20)  # after as long again
            assert again.waited_seconds >= 2 * overdue.waited_seconds
            stages.results.send(FrameKind.RESULT, StepId(number), result(number))
            assert stages.outcomes.get(timeout=20).error is None
            assert not overdue.is_awaited()
            while not stages.overdue.empty():  # told once more before the result came
                assert stages.overdue.get().step_id == number
        assert stages.losses.empty()


def test_a_result_that_comes_in_pieces_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLOOR_SECONDS", 0.05)
    with bare_edge() as (writing, incoming), edge() as (outgoing, _):
        outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
        overdue: SimpleQueue[OverdueStep] = SimpleQueue()
        pipeline = RemotePipeline(
            outgoing, incoming, outcomes.put, lambda _: None, overdue.put, step_seconds=60
        )
        pipeline.submit(step(0))
        header = result(0)
        preamble = bytearray(PREAMBLE_BYTES)
        scope = encode_scope(HELLO.scope)
        encode_preamble_into(preamble, scope, FrameKind.RESULT, StepId(0), len(header), 0)
        frame = bytes(preamble) + header
        for start in range(0, len(frame), 40):
            overdue.get(timeout=20)
            writing.sendall(frame[start : start + 40])
        assert outcomes.get(timeout=20).error is None
        pipeline.close()


def test_a_step_that_the_first_stage_does_not_take_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FLOOR_SECONDS", 0.1)
    with played(step_seconds=60) as stages:
        sending = threading.Event()
        monkeypatch.setattr(OutgoingEdge, "takes_at_once", lambda *_: False)
        monkeypatch.setattr(OutgoingEdge, "send", lambda *_: sending.wait(60))
        stages.pipeline.submit(step(0))
        assert stages.overdue.get(timeout=20).is_being_sent
        sending.set()
        while stages.overdue.get(timeout=20).is_being_sent:
            pass


@pytest.mark.slow
def test_a_stage_that_nobody_finds_fault_with_is_lost_after_the_limit() -> None:
    with played(step_seconds=0.3) as stages:
        time.sleep(0.5)  # idle: nothing is due
        assert stages.losses.empty()
        assert stages.overdue.empty()
        stages.pipeline.submit(step(0))
        overdue = stages.overdue.get(timeout=20)
        assert overdue.waited_seconds >= overdue.limit_seconds == 0.3
        error = stages.losses.get(timeout=20)
        assert "does not answer" in error.message
        outcome = stages.outcomes.get(timeout=20)
        assert outcome.error is not None
        assert "does not answer" in outcome.error.message
        stages.pipeline.submit(step(1))
        assert stages.outcomes.get(timeout=20).error is outcome.error
        assert stages.losses.empty()


@pytest.mark.parametrize(
    ("kind", "step_id", "header", "words"),
    [
        (FrameKind.RESULT, 0, b"\xc1 no msgpack", "malformed"),
        (FrameKind.FAILURE, 0, b"\xc1 no msgpack", "malformed"),
        (FrameKind.RESULT, 1, result(0), "a different step"),
        (FrameKind.RESULT, 0, result(5), "does not match the step"),
        (FrameKind.RESULT, 0, encode_sampled(()), "does not match the step"),
        (FrameKind.STEP, 0, result(0), "does not match the step"),
    ],
)
def test_a_result_that_makes_no_sense_ends_the_epoch(
    kind: FrameKind, step_id: int, header: bytes, words: str
) -> None:
    with played() as stages:
        stages.pipeline.submit(step(0))
        stages.results.send(kind, StepId(step_id), header)
        error = stages.losses.get(timeout=20)
        assert words in error.message
        assert isinstance(error, DefectError)
        assert stages.outcomes.get(timeout=20).error is not None


def test_a_step_that_is_over_the_limits_ends_the_epoch_and_says_so() -> None:
    with played() as stages:
        stages.pipeline.submit(step(0, num_tokens=1500))  # the test's edges allow 1000 bytes
        assert "over the edge's limit" in stages.losses.get(timeout=20).message
        assert stages.outcomes.get(timeout=20).error is not None


def test_a_lost_edge_fails_what_is_in_flight_and_all_that_comes() -> None:
    with played() as stages:
        for number in range(3):
            stages.pipeline.submit(step(number))
        stages.results.close()
        stages.losses.get(timeout=20)
        stages.pipeline.submit(step(3))
        errors = [stages.outcomes.get(timeout=20).error for _ in range(4)]
        assert all(error is not None and "was lost" in error.message for error in errors)
        assert stages.losses.empty()


UNSENDABLE = [2**64, -(2**63) - 1, object()]


@pytest.mark.parametrize("token", UNSENDABLE, ids=["too large", "too small", "no number"])
def test_a_step_that_cannot_be_encoded_is_a_defect_and_nobody_hangs(token: object) -> None:
    with played(step_seconds=60) as stages:
        good = step(0)
        stages.pipeline.submit(good)
        part = dataclasses.replace(good.slices[0], tokens=(cast(int, token),))
        stages.pipeline.submit(dataclasses.replace(good, step_id=StepId(1), slices=(part,)))
        error = stages.losses.get(timeout=20)
        assert isinstance(error, DefectError)
        assert "a step could not be sent" in error.message
        outcomes = [stages.outcomes.get(timeout=20) for _ in range(2)]
        assert all(isinstance(outcome.error, DefectError) for outcome in outcomes)
        stages.pipeline.submit(step(2))
        assert stages.outcomes.get(timeout=20).error is outcomes[0].error
        assert stages.losses.empty()
    assert not any(thread.is_alive() for thread in stages.pipeline._threads)


@pytest.mark.parametrize("failing", ["send", "receive"])
def test_any_exception_of_an_edge_loses_the_pipeline(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def broken(*_: object) -> None:
        raise BufferError("nobody expected this")

    owner = OutgoingEdge if failing == "send" else IncomingEdge
    with played() as stages:
        monkeypatch.setattr(owner, failing, broken)
        stages.pipeline.submit(step(0))
        error = stages.losses.get(timeout=20)
        assert isinstance(error, DefectError)
        assert "BufferError: nobody expected this" in error.message
        assert stages.outcomes.get(timeout=20).error is not None


def test_an_edge_that_is_cut_is_no_defect() -> None:
    with played() as stages:
        stages.pipeline.submit(step(0))
        stages.results.close()
        assert isinstance(stages.losses.get(timeout=20), EdgeError)
        assert not isinstance(stages.outcomes.get(timeout=20).error, DefectError)


def test_an_exception_of_whoever_is_told_neither_ends_the_thread_nor_hangs_it() -> None:
    outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
    losses: SimpleQueue[PotluckError] = SimpleQueue()

    def on_outcome(outcome: StepOutcome) -> None:
        outcomes.put(outcome)
        raise KeyError("the dispatcher is broken")

    def on_lost(error: PotluckError) -> None:
        losses.put(error)
        raise RuntimeError("and so is the deployment")

    with edge() as (outgoing, steps), edge() as (results, incoming):
        pipeline = RemotePipeline(
            outgoing, incoming, on_outcome, on_lost, lambda _: None, step_seconds=10
        )
        for number in range(3):
            pipeline.submit(step(number))
            steps.receive(20)
            results.send(FrameKind.RESULT, StepId(number), result(number))
        assert [outcomes.get(timeout=20).step.step_id for _ in range(3)] == [0, 1, 2]
        assert isinstance(losses.get(timeout=20), DefectError)
        pipeline.close()
        assert losses.empty()


def test_close_does_not_wait_for_a_thread_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_END_SECONDS", 0.1)
    holding, entered = threading.Event(), threading.Event()

    def on_outcome(_: StepOutcome) -> None:
        entered.set()
        holding.wait(60)

    with edge() as (outgoing, steps), edge() as (results, incoming):
        pipeline = RemotePipeline(
            outgoing, incoming, on_outcome, lambda _: None, lambda _: None, step_seconds=10
        )
        pipeline.submit(step(0))
        steps.receive(20)
        results.send(FrameKind.RESULT, StepId(0), result(0))
        assert entered.wait(20)
        with done_within(2):
            pipeline.close()
        assert "thread results did not end" in caplog.text
        holding.set()
        for thread in pipeline._threads:
            thread.join(20)
            assert not thread.is_alive()


def verifying(
    number: int, tokens: tuple[int, ...], start: int, num_drafts: int, cancels: tuple[int, ...] = ()
) -> Step:
    """A step that verifies drafts of sequence 0."""
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=tokens,
        start_position=start,
        block_table=(0,),
        sample=True,
        num_drafts=num_drafts,
    )
    return Step(step_id=StepId(number), slices=(part,), cancels=tuple(map(StepId, cancels)))


def tokens_from(position: int, *tokens: int) -> bytes:
    return encode_sampled(
        tuple(
            SampledToken(sequence_id=SequenceId(0), position=position + index, token=token)
            for index, token in enumerate(tokens)
        )
    )


def test_results_go_as_far_as_drafts_are_right() -> None:
    with played() as stages:
        for number, (each, result_) in enumerate(
            (
                (verifying(0, (5, 6, 7), 0, 2), tokens_from(1, 6, 7, 8)),
                (verifying(1, (8, 9, 1), 3, 3), tokens_from(4, 9, 4)),
                (verifying(2, (2, 3), 6, 2), tokens_from(7)),
                (verifying(3, (4, 3), 5, 1), tokens_from(6, 2)),
            )
        ):
            stages.pipeline.submit(each)
            stages.results.send(FrameKind.RESULT, StepId(number), result_)
            outcome = stages.outcomes.get(timeout=20)
            assert outcome.error is None
            assert encode_sampled(outcome.sampled) == result_
        assert stages.losses.empty()


@pytest.mark.parametrize(
    ("second", "answer"),
    [
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(2)),  # the first one is always sampled
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(2, 7)),  # it is right: there is a second one
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(2, 7, 8)),
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(2, 7, 9, 9)),  # it is wrong: there is no third
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(2, 7, 8, 9, 9)),
        (verifying(1, (6, 7, 8), 1, 2), tokens_from(3, 7, 8, 9)),
        (verifying(1, (6, 7, 8), 1, 2), result(7)),
        (verifying(1, (6, 7), 1, 2), tokens_from(2)),  # what it begins with is right
        (verifying(1, (5, 7), 1, 2), tokens_from(2, 7, 7)),  # and here it is wrong
        (verifying(1, (6, 7), 2, 2), tokens_from(3, 7, 7)),  # and here at another position
    ],
)
def test_results_that_go_too_far_or_not_far_enough_end_the_epoch(
    second: Step, answer: bytes
) -> None:
    with played() as stages:
        stages.pipeline.submit(verifying(0, (5,), 0, 0))
        stages.results.send(FrameKind.RESULT, StepId(0), tokens_from(1, 6))
        assert stages.outcomes.get(timeout=20).error is None
        stages.pipeline.submit(second)
        stages.results.send(FrameKind.RESULT, StepId(1), answer)
        error = stages.losses.get(timeout=20)
        assert isinstance(error, DefectError)
        assert "the result does not match the step" in error.message
        assert stages.outcomes.get(timeout=20).error is not None


def test_after_a_failure_it_is_the_stage_that_knows_where_a_sequence_ends() -> None:
    for answer in (tokens_from(4, 9), tokens_from(4)):
        with played() as stages:
            stages.pipeline.submit(verifying(0, (4,), 0, 0))
            stages.pipeline.submit(verifying(1, (5, 6), 1, 1))
            stages.pipeline.submit(verifying(2, (7,), 3, 1))
            stages.results.send(FrameKind.RESULT, StepId(0), tokens_from(1, 5))
            stages.results.send(FrameKind.FAILURE, StepId(1), encode_failure(EngineError("no")))
            stages.results.send(FrameKind.RESULT, StepId(2), answer)
            assert stages.outcomes.get(timeout=20).error is None
            assert stages.outcomes.get(timeout=20).error is not None
            assert stages.outcomes.get(timeout=20).error is None
            assert stages.losses.empty()


def test_cancelled_steps_may_be_skipped_or_answered() -> None:
    with played() as stages:
        stages.pipeline.submit(verifying(0, (5, 6), 0, 1))
        for number in (1, 2):
            stages.pipeline.submit(verifying(number, (7,), number + 1, 1))
        stages.results.send(FrameKind.RESULT, StepId(0), tokens_from(1, 9))
        stages.pipeline.submit(verifying(3, (9,), 1, 0, cancels=(1, 2)))
        stages.results.send(FrameKind.SKIPPED, StepId(1))
        stages.results.send(FrameKind.RESULT, StepId(2), tokens_from(3))
        stages.results.send(FrameKind.RESULT, StepId(3), tokens_from(2, 4))
        outcomes = [stages.outcomes.get(timeout=20) for _ in range(4)]
        assert [each.error for each in outcomes] == [None] * 4
        assert [each.is_skipped for each in outcomes] == [False, True, False, False]
        assert [len(each.sampled) for each in outcomes] == [1, 0, 0, 1]
        stages.pipeline.submit(verifying(4, (4,), 2, 1, cancels=(0, 1, 2)))
        assert not stages.pipeline._cancelled, "only steps in flight are remembered"


@pytest.mark.parametrize(
    ("num_drafts", "cancels"),
    [(2, ()), (1, (0,)), (0, (0,))],
    ids=["not cancelled", "begins with no draft", "without drafts"],
)
def test_a_stage_that_skips_what_it_must_compute_ends_the_epoch(
    num_drafts: int, cancels: tuple[int, ...]
) -> None:
    with played() as stages:
        stages.pipeline.submit(verifying(0, (5, 6), 0, num_drafts))
        stages.pipeline.submit(verifying(1, (5,), 3, 0, cancels))
        stages.results.send(FrameKind.SKIPPED, StepId(0))
        error = stages.losses.get(timeout=20)
        assert isinstance(error, DefectError)
        assert "skipped a step that was not cancelled" in error.message
