"""How a stage's own history says that it has become slow."""

from __future__ import annotations

import random

import pytest
from support.processes.proportion import least_busy_seconds

from potluck.scheduling.step_times import PERIOD_SECONDS, SAMPLE_SECONDS, StepTimes
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId


def step(num_tokens: int, depth: int) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1,) * num_tokens,
        start_position=depth,
        block_table=(),
        sample=True,
    )
    return Step(step_id=StepId(0), slices=(part,))


DECODE, PREFILL = step(1, 100), step(512, 0)


class Stage:
    """Computes steps one after another, by a clock of the test's."""

    def __init__(self, seed: int = 0) -> None:
        self.times = StepTimes()
        self.now = 1000.0
        self.draw = random.Random(seed)

    def computes(self, usual: float, for_seconds: float, *, step: Step = DECODE) -> None:
        end = self.now + for_seconds
        while self.now < end:
            outlier = 20.0 if self.draw.random() < 0.01 else 1.0
            seconds = outlier * usual * self.draw.lognormvariate(0, 0.2)
            self.now += seconds
            self.times.record(step, seconds, at=self.now)

    @property
    def known(self) -> float | None:
        return self.times.slowdown(self.now)

    @property
    def slowdown(self) -> float:
        assert self.known is not None
        return self.known


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_stage_is_as_fast_as_ever(seed: int) -> None:
    stage = Stage(seed)
    stage.computes(0.05, 30)
    for _ in range(30):
        stage.computes(0.05, 10)
        assert 0.7 < stage.slowdown < 1.5


def test_one_that_becomes_four_times_slower_is_found_within_seconds_and_stays_slow() -> None:
    stage = Stage()
    stage.computes(0.05, 120)
    stage.computes(0.2, 5)
    assert 3 < stage.slowdown < 5
    stage.computes(0.2, 60)
    assert 3 < stage.slowdown < 5
    stage.computes(0.05, 2)
    assert stage.slowdown < 1.5


def test_what_stays_slow_for_an_hour_is_the_usual_pace() -> None:
    stage = Stage()
    stage.computes(0.25, 3 * 3600)
    stage.computes(1.0, 1200)
    assert stage.slowdown > 3
    stage.computes(1.0, 2400)
    assert stage.slowdown < 1.5


def test_another_kind_of_work_is_not_slower_work() -> None:
    stage = Stage()
    for _ in range(10):
        stage.computes(0.02, 10)
        stage.computes(2.0, 30, step=PREFILL)
        assert (stage.known or 1.0) < 1.6
        stage.computes(0.5, 10, step=step(1, 30_000))  # a much longer sequence
        assert (stage.known or 1.0) < 1.6
    stage.computes(8.0, 200, step=PREFILL)
    assert stage.slowdown > 3


def test_little_is_known_at_first_and_after_a_rest() -> None:
    stage = Stage()
    stage.computes(1.0, 2)  # cold
    stage.computes(0.05, PERIOD_SECONDS)
    assert stage.known is None
    stage.computes(0.05, 5 * PERIOD_SECONDS)
    stage.computes(0.2, 10)
    assert stage.slowdown > 3
    stage.now += 100
    assert stage.known is None
    stage.computes(0.05, 0.5)
    assert stage.known is None
    stage.computes(0.05, 2)
    assert stage.slowdown < 1.5


@pytest.mark.timing
def test_most_short_steps_cost_next_to_nothing() -> None:
    times, at = StepTimes(), 1000.0
    times.record(DECODE, 0.001, at=at)

    def note() -> None:
        for _ in range(2_000):
            times.record(DECODE, 0.001, at=at + SAMPLE_SECONDS / 2)

    assert least_busy_seconds(note) / 2_000 < 5e-6
