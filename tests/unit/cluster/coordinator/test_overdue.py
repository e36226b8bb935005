"""Who is to blame for an overdue step, by answers that the test makes up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import A, B, PlayedMembership, a_record, stage_on
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator import overdue as module
from potluck.cluster.coordinator.excluded_units import StageStalledError
from potluck.cluster.coordinator.overdue import (
    IDLE_SECONDS,
    NOWHERE_SECONDS,
    SILENT_SECONDS,
    Evidence,
    OverdueSteps,
    Verdict,
)
from potluck.cluster.coordinator.pipeline import OverdueStep
from potluck.cluster.wire.calls import AbandonStage, StageCheck, StageChecks, decode, encode
from potluck.errors import CallError, PotluckError
from potluck.types.cluster import NodeId
from potluck.types.step import StepId

WAITS = StageCheck(answers=True, is_stopped=False, has_progress=True)
COMPUTES = msgspec.structs.replace(WAITS, busy_seconds=3.0)
SENDS = msgspec.structs.replace(WAITS, sending_seconds=3.0)
CROWDED = StageCheck(answers=False, is_stopped=False, has_progress=True)
"""It computes, and its other thread has had no turn yet."""
STARVED = StageCheck(answers=False, is_stopped=False, has_progress=False)
STOPPED = StageCheck(answers=False, is_stopped=True, has_progress=False)
HANGS = StageCheck(answers=True, is_stopped=False, has_progress=False, busy_seconds=9.0)


class Case:
    """Evidence about two stages, and a clock."""

    def __init__(self, limit_seconds: float = 300.0) -> None:
        self.evidence = Evidence(2)
        self.now = self.started = 1000.0
        self.limit_seconds = limit_seconds

    def hears(
        self, *checks: StageCheck | str | None, after: float = 0.0, is_being_sent: bool = False
    ) -> Verdict:
        """A text stands for a node that does not answer."""
        self.now += after
        answers = {index: check for index, check in enumerate(checks) if not isinstance(check, str)}
        return self.evidence.verdict(
            answers,
            self.now,
            waited_seconds=self.now - self.started,
            limit_seconds=self.limit_seconds,
            is_being_sent=is_being_sent,
        )


SILENT = "no answer"


@pytest.mark.parametrize("check", [WAITS, COMPUTES, SENDS, CROWDED])
def test_stages_that_make_progress_are_left_alone(check: StageCheck) -> None:
    case = Case()
    for _ in range(100):
        assert case.hears(COMPUTES, check, after=2.0) == Verdict()


def test_a_stopped_worker_is_lost_at_once_and_not_the_one_that_waits_for_it() -> None:
    verdict = Case().hears(SENDS, STOPPED)
    assert verdict.index == 1
    assert verdict.is_frozen
    assert "stopped by a signal" in verdict.reason


@pytest.mark.parametrize(
    ("check", "words"), [(STARVED, "has not answered"), (HANGS, "has been busy without progress")]
)
def test_one_that_does_nothing_is_lost_after_some_seconds(check: StageCheck, words: str) -> None:
    case = Case()
    assert case.hears(check, WAITS) == Verdict(is_doubtful=True)
    assert case.hears(check, WAITS, after=IDLE_SECONDS - 0.1).is_doubtful
    verdict = case.hears(check, WAITS, after=0.2)
    assert (verdict.index, verdict.is_frozen) == (0, True)
    assert words in verdict.reason


def test_doubt_counts_from_the_first_look_and_ends_with_progress() -> None:
    case = Case()
    assert case.hears(COMPUTES, WAITS) == Verdict()
    # Nobody has looked for a long time: that is no proof that it did nothing.
    assert case.hears(STARVED, WAITS, after=15) == Verdict(is_doubtful=True)
    assert case.hears(STARVED, WAITS, after=IDLE_SECONDS - 0.5).is_doubtful
    assert case.hears(CROWDED, WAITS, after=1) == Verdict()
    assert case.hears(STARVED, WAITS, after=1) == Verdict(is_doubtful=True)


def test_a_node_that_does_not_answer_is_lost_later_and_its_unit_is_not_blamed() -> None:
    case = Case()
    assert case.hears(WAITS, SILENT).is_doubtful
    assert case.hears(WAITS, SILENT, after=SILENT_SECONDS - 1).is_doubtful
    assert case.hears(WAITS, WAITS, after=1) == Verdict()
    assert case.hears(WAITS, SILENT, after=1).is_doubtful
    verdict = case.hears(WAITS, SILENT, after=SILENT_SECONDS)
    assert (verdict.index, verdict.is_frozen) == (1, False)


def test_a_worker_that_is_gone_is_lost() -> None:
    verdict = Case().hears(WAITS, None)
    assert (verdict.index, verdict.is_frozen) == (1, False)


def test_a_step_that_nobody_has_is_lost_and_nobody_blamed() -> None:
    case = Case()
    for _ in range(4):
        assert case.hears(WAITS, WAITS, after=NOWHERE_SECONDS / 4) == Verdict()
    verdict = case.hears(WAITS, WAITS, after=NOWHERE_SECONDS / 4)
    assert verdict.index is None
    assert "no stage is computing it" in verdict.reason
    for at_work in (SENDS, COMPUTES):
        case = Case()
        for number in range(8):
            check = at_work if number == 4 else WAITS
            assert case.hears(WAITS, check, after=NOWHERE_SECONDS / 5) == Verdict()
    case = Case()
    for _ in range(20):  # a slow network still takes it
        assert case.hears(WAITS, WAITS, after=10, is_being_sent=True) == Verdict()


def test_the_whole_wait_is_bounded_and_the_slowest_is_named() -> None:
    case = Case(limit_seconds=100.0)
    slower = msgspec.structs.replace(COMPUTES, busy_seconds=90.0)
    assert case.hears(COMPUTES, slower, after=99) == Verdict()
    verdict = case.hears(COMPUTES, slower, after=2)
    assert (verdict.index, verdict.is_frozen) == (1, True)
    assert case.hears(CROWDED, SENDS).index is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_stage_is_lost_that_has_a_turn_now_and_then(seed: int) -> None:
    """100 long steps each on machines with CPU hogs: a stage goes without a turn for up to ten
    seconds in a row, and an agent answers no question for up to eight.
    """
    draw = random.Random(seed)
    for _ in range(100):
        case = Case()
        starved = silent = 0.0
        while case.now - case.started < 120:
            pause = draw.uniform(0.05, 1.0)
            starved = starved + pause if draw.random() < 0.7 and starved + pause < 10 else 0.0
            silent = silent + pause if draw.random() < 0.5 and silent + pause < 8 else 0.0
            busy = STARVED if starved else draw.choice((COMPUTES, CROWDED))
            verdict = case.hears(busy, SILENT if silent else SENDS, after=pause)
            assert not verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_stage_that_stands_still_for_good_is_always_found(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(500):
        case = Case()
        for _ in range(draw.randint(0, 20)):
            busy = draw.choice((COMPUTES, CROWDED, WAITS))
            assert not case.hears(busy, SENDS, after=draw.uniform(0.1, 15)).reason
        frozen_at, frozen = case.now, draw.choice((STARVED, HANGS, STOPPED))
        while not (verdict := case.hears(SENDS, frozen, after=draw.uniform(0.5, 1.0))).reason:
            assert verdict.is_doubtful
        assert verdict.index == 1
        assert case.now - frozen_at <= (1 if frozen is STOPPED else IDLE_SECONDS + 2)


class Asking:
    """Stage 0 is on node A, stage 1 on B."""

    def __init__(self) -> None:
        self.checks: dict[NodeId, Callable[[], StageChecks]] = {}
        self.membership = PlayedMembership(
            others={B}, answers={"stage.check": lambda node, _: encode(self.checks[node]())}
        )
        self.losses: list[PotluckError] = []
        self.is_awaited = True
        self.record = a_record(3, stages=(stage_on(A), stage_on(B)))
        self.steps = OverdueSteps(cast(Any, self.membership), self.record, self.losses.append)
        self.says({0: WAITS}, {1: COMPUTES})

    def says(self, *checks: dict[int, StageCheck]) -> None:
        for node, each in zip((A, B), checks, strict=True):
            self.checks[node] = lambda each=each: StageChecks(stages=each)  # type: ignore[misc]

    async def ask(self, number: int = 7, *, waited_seconds: float = 1.0) -> None:
        overdue = OverdueStep(
            step_id=StepId(number),
            waited_seconds=waited_seconds,
            limit_seconds=300.0,
            is_being_sent=False,
            is_awaited=lambda: self.is_awaited,
        )
        await asyncio.to_thread(self.steps.ask, overdue)
        await asyncio.sleep(0.05)


def run(case: Callable[[Asking], Any]) -> None:
    async def inner() -> None:
        async with asyncio.timeout(10):
            await case(Asking())

    run_in_virtual_time(inner())


def test_every_node_is_asked_once_while_all_is_well() -> None:
    async def case(asking: Asking) -> None:
        await asking.ask()
        assert sorted(asking.membership.called("stage.check")) == [A, B]
        await asking.ask(waited_seconds=2.0)
        assert len(asking.membership.called("stage.check")) == 4
        assert asking.losses == []

    run(case)


def test_a_frozen_worker_is_ended_and_named() -> None:
    async def case(asking: Asking) -> None:
        asking.says({0: WAITS}, {1: STOPPED})
        await asking.ask()
        (error,) = asking.losses
        assert isinstance(error, StageStalledError)
        assert (error.node_id, error.unit_id) == (B, "cpu/native")
        assert error.message.startswith(f"stage 1 on node {B}: its worker was stopped")
        ((node, _, payload),) = [
            call for call in asking.membership.calls if call[1] == "stage.abandon"
        ]
        assert node == B
        request = decode(payload, AbandonStage)
        assert (request.epoch, request.index) == (asking.record.epoch, 1)
        await asking.ask(8)
        assert len(asking.losses) == 1

    run(case)


def test_the_end_of_the_wait_ends_the_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.01)

    async def case(asking: Asking) -> None:
        asking.says({0: STARVED}, {1: WAITS})
        await asking.ask()
        num_calls = len(asking.membership.calls)
        assert num_calls > 4  # one that is in doubt is asked again and again
        await asking.ask(waited_seconds=2.0)  # by one task
        asking.is_awaited = False
        await asyncio.sleep(0.05)
        num_calls = len(asking.membership.calls)
        await asyncio.sleep(0.1)
        assert len(asking.membership.calls) == num_calls
        assert asking.losses == []

    run(case)


def test_an_answer_that_comes_after_the_step_does_not_count() -> None:
    async def case(asking: Asking) -> None:
        def late() -> StageChecks:
            asking.is_awaited = False
            return StageChecks(stages={1: STOPPED})

        asking.checks[B] = late
        await asking.ask()
        assert asking.losses == []
        assert asking.membership.called("stage.abandon") == []

    run(case)


@pytest.mark.slow
def test_a_node_that_fails_to_answer_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.1)

    async def case(asking: Asking) -> None:
        def fails() -> StageChecks:
            raise CallError("it does not answer")

        asking.checks[B] = fails
        await asking.ask()
        await asyncio.sleep(0.3)
        (error,) = asking.losses
        assert not isinstance(error, StageStalledError)
        assert f"stage 1 on node {B}: its node has not answered" in error.message

    run(case)


def test_who_asks_after_the_loop_is_closed_asks_nobody() -> None:
    async def make() -> Asking:
        return Asking()

    asking = run_in_virtual_time(make())
    asking.steps.ask(
        OverdueStep(
            step_id=StepId(1),
            waited_seconds=1.0,
            limit_seconds=2.0,
            is_being_sent=False,
            is_awaited=lambda: True,
        )
    )
    assert asking.membership.calls == []
