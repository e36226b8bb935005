"""When steps are overdue, by histories that no cluster need have lived through."""

from __future__ import annotations

import random

import pytest
from support.processes.proportion import least_busy_seconds

from potluck.cluster.coordinator.pipeline import (
    CEILING_SECONDS,
    FLOOR_SECONDS,
    LIMIT_TIMES,
    TIMES,
    limit_of,
    overdue_after,
)
from potluck.scheduling.step_times import StepTimes
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId


def step(num_tokens: int, depth: int = 0, *, num_sequences: int = 1) -> Step:
    """``num_sequences`` slices of ``num_tokens`` new ones after ``depth`` earlier ones."""
    slices = tuple(
        SequenceSlice(
            sequence_id=SequenceId(number),
            tokens=(1,) * num_tokens,
            start_position=depth,
            block_table=(),
            sample=True,
        )
        for number in range(num_sequences)
    )
    return Step(step_id=StepId(0), slices=slices)


DECODE, PREFILL = step(1, 100), step(512)


class Times:
    """Measures steps, and tells when they are overdue."""

    def __init__(self, step_seconds: float) -> None:
        self.times = StepTimes(least_seconds=FLOOR_SECONDS / TIMES)
        self.step_seconds = step_seconds
        self.now = 0.0

    def record(self, step: Step, seconds: float) -> None:
        self.now += seconds
        self.times.record(step, seconds, at=self.now)

    def overdue_seconds(self, step: Step) -> float:
        return overdue_after(self.times.typical_seconds(step), self.step_seconds)

    def limit_seconds(self, step: Step) -> float:
        return limit_of(self.times.typical_seconds(step), self.step_seconds)


def test_without_history_a_step_is_asked_after_early_and_lost_late() -> None:
    times = Times(300.0)
    assert times.overdue_seconds(PREFILL) == FLOOR_SECONDS
    assert times.limit_seconds(PREFILL) == 300.0


def test_a_step_is_overdue_after_a_multiple_of_what_such_steps_took() -> None:
    times = Times(300.0)
    for seconds in (0.9, 1.0, 1.0, 0.9, 1.1, 1.0, 1.1):
        times.record(PREFILL, seconds)
        assert times.overdue_seconds(PREFILL) == FLOOR_SECONDS  # too few to know
    times.record(PREFILL, 1.0)
    assert times.overdue_seconds(PREFILL) == pytest.approx(TIMES * 1.0)
    assert times.overdue_seconds(DECODE) == FLOOR_SECONDS
    for _ in range(8):
        times.record(step(4096), 60.0)
    assert times.overdue_seconds(step(4096)) == CEILING_SECONDS
    assert times.limit_seconds(step(4096)) == LIMIT_TIMES * 60


def test_what_was_slow_once_is_forgotten_while_all_is_fast() -> None:
    times = Times(300.0)
    for _ in range(8):
        times.record(DECODE, 6.0)
    assert times.overdue_seconds(DECODE) == CEILING_SECONDS
    for _ in range(9):
        times.record(DECODE, 0.01)
    assert times.overdue_seconds(DECODE) == FLOOR_SECONDS
    for _ in range(20):
        times.record(DECODE, 0.01)
    assert not times.times._histories


def test_a_limit_below_the_floor_is_obeyed() -> None:
    times = Times(0.3)
    assert times.overdue_seconds(DECODE) == times.limit_seconds(DECODE) == 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_steps_that_take_less_than_300_ms_are_asked_after_within_one_and_a_half_seconds(
    seed: int,
) -> None:
    """200 histories each of some hundred steps; every one may have a step that is 20 times slower
    once in a while.
    """
    draw = random.Random(seed)
    for _ in range(200):
        usual, times = draw.uniform(0.001, 0.29), Times(300.0)
        for _ in range(draw.randint(16, 300)):
            slow = 20.0 if draw.random() < 0.02 else 1.0
            times.record(DECODE, slow * usual * draw.lognormvariate(0, 0.1))
        assert times.overdue_seconds(DECODE) <= 1.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_questions_are_rare_while_nothing_is_wrong(seed: int) -> None:
    """Of steps with realistic jitter, hardly one in a hundred leads to a question, however slow
    they are; a question is not yet a loss.
    """
    draw = random.Random(seed)
    num_steps = num_questions = 0
    for _ in range(100):
        usual, times = 10 ** draw.uniform(-3, 0.5), Times(300.0)
        for number in range(200):
            slow = 20.0 if draw.random() < 0.005 else draw.choice((1.0, 1.0, 1.0, 2.0))
            seconds = slow * usual * draw.lognormvariate(0, 0.2)
            num_questions += number > 16 and seconds > times.overdue_seconds(DECODE)
            num_steps += 1
            times.record(DECODE, seconds)
    assert num_questions < num_steps / 100


def test_noting_a_fast_step_costs_next_to_nothing() -> None:
    times, crowded = StepTimes(least_seconds=FLOOR_SECONDS / TIMES), step(1, 100, num_sequences=64)

    def note() -> None:
        for _ in range(2_000):
            times.record(crowded, 0.01, at=1000.0)

    assert least_busy_seconds(note) / 2_000 < 5e-6
