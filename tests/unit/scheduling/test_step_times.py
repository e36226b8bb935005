"""What a stage says of how long its steps take: by kind, in the long run, and cheaply."""

from __future__ import annotations

import itertools
import random

import pytest
from support.processes.proportion import least_busy_seconds

from potluck.scheduling.step_times import FORGET_SECONDS, LEAST_SAMPLES, StepTimes, _kind_of
from potluck.types.program import Shard
from potluck.types.speed import StepTime
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

SHARD = Shard(start_layer=4, end_layer=10, num_layers=20, has_embedding=False, has_head=False)


def step(*parts: tuple[int, int], score_from: int | None = None) -> Step:
    """Of sequences, each with some new tokens after some earlier ones."""
    return Step(
        step_id=StepId(0),
        slices=tuple(
            SequenceSlice(
                sequence_id=SequenceId(index),
                tokens=(1,) * count,
                start_position=start,
                block_table=(),
                sample=True,
                score_from=score_from,
            )
            for index, (count, start) in enumerate(parts)
        ),
    )


DECODE, PREFILL = step((1, 99)), step((512, 0))


class Stage:
    """Computes one step after another, by a clock of the test's."""

    def __init__(self) -> None:
        self.measured = StepTimes()
        self.now = 1000.0

    def computes(self, seconds: float, *, step: Step = DECODE, times: int = 1) -> None:
        for _ in range(times):
            self.now += seconds
            self.measured.record(step, seconds, at=self.now)

    def times(self, shard: Shard = SHARD) -> tuple[StepTime, ...]:
        return self.measured.of_stage(shard, self.now)


def test_times_are_told_with_the_stage_and_the_kind_of_step() -> None:
    stage = Stage()
    stage.computes(9.0)  # cold
    stage.computes(0.02, times=100)
    stage.computes(2.0, step=PREFILL)
    stage.computes(0.5, step=PREFILL, times=5)
    stage.computes(0.03, step=step((1, 99), (1, 299), (1, 499)), times=11)
    decode, prefill, three = stage.times()
    assert decode == StepTime(
        num_layers=6,
        has_embedding=False,
        has_head=False,
        num_sequences=1,
        num_tokens=1,
        context_tokens=100,
        seconds=decode.seconds,
        num_samples=decode.num_samples,
        age_seconds=decode.age_seconds,
    )
    assert decode.seconds == pytest.approx(0.02)
    assert 50 <= decode.num_samples <= 100
    assert decode.age_seconds == pytest.approx(2.0 + 5 * 0.5 + 11 * 0.03)
    assert (prefill.num_sequences, prefill.num_tokens, prefill.context_tokens) == (1, 512, 512)
    assert (prefill.seconds, prefill.num_samples) == (0.5, 4)  # whole blocks
    assert (three.num_sequences, three.num_tokens, three.context_tokens) == (3, 3, 300)
    assert three.seconds == pytest.approx(0.03)
    assert all(each.is_plausible for each in stage.times())


@pytest.mark.parametrize("seed", range(4))
def test_rare_outliers_change_nothing(seed: int) -> None:
    stage, draw = Stage(), random.Random(seed)
    for _ in range(1000):
        outlier = 20.0 if draw.random() < 0.002 else 1.0  # 0.4 s in 10 s
        stage.computes(0.02 * outlier * draw.lognormvariate(0, 0.05))
    (decode,) = stage.times()
    assert decode.seconds == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("step_seconds", [0.001, 0.003, 0.0097, 0.012, 0.025])
def test_under_a_quota_the_time_in_the_long_run_is_told(step_seconds: float) -> None:
    """A tenth of a core: 10 ms of every 100."""
    stage, left = Stage(), 0.010
    for _ in range(int(6 / step_seconds / 10)):
        needed, elapsed = step_seconds, 0.0
        while needed > left:
            needed -= left
            elapsed += left + 0.090
            left = 0.010
        left -= needed
        stage.computes(elapsed + needed)
    (decode,) = stage.times()
    assert decode.seconds == pytest.approx(10 * step_seconds, rel=0.12)


def test_a_stage_that_has_become_slow_is_known_to_be_within_seven_seconds() -> None:
    stage = Stage()
    stage.computes(0.02, times=1000)
    began = stage.now
    stage.computes(0.08, times=84)
    assert stage.now - began < 7
    (decode,) = stage.times()
    assert decode.seconds == pytest.approx(0.08)


def test_few_steps_are_not_told_and_old_ones_are_forgotten() -> None:
    stage = Stage()
    stage.computes(0.02, times=LEAST_SAMPLES)  # the first of them is cold
    assert stage.times() == ()
    stage.computes(0.02)
    assert len(stage.times()) == 1
    stage.now += FORGET_SECONDS + 1
    stage.computes(9.0)
    assert stage.times() == ()
    stage.computes(0.04, times=LEAST_SAMPLES)
    assert stage.times()[0].seconds == pytest.approx(0.04)


def test_a_step_that_scores_a_prompt_is_left_out_and_so_is_an_empty_one() -> None:
    stage = Stage()
    stage.computes(0.9, step=step((512, 0), score_from=0), times=20)
    stage.computes(0.9, step=step(), times=20)
    assert stage.times() == ()


def test_steps_of_prompts_stay_what_they_are_when_they_are_rounded() -> None:
    stage = Stage()
    for count in (9, 10, 11, 12, 12, 12):
        stage.computes(0.1, step=step(*((1, 50),) * count, (2, 10)))
    (mixed,) = [each for each in stage.times() if each.num_sequences > 8]
    assert mixed.num_tokens > mixed.num_sequences
    assert mixed.is_plausible


def test_kinds_are_bounded_and_the_latest_are_kept() -> None:
    stage = Stage()
    for depth_bits in range(1, 20):
        for count in (1, 2, 3, 4, 5, 6, 7, 8, 16, 100):
            depth = 2**depth_bits - 1
            stage.computes(0.01, step=step(*((1, depth),) * count), times=LEAST_SAMPLES + 1)
    step_times = stage.times()
    assert len(step_times) == 64
    assert min(each.context_tokens for each in step_times) >= 2**12
    assert {each.num_sequences for each in step_times} == {1, 2, 3, 4, 5, 6, 7, 8, 16, 100}


@pytest.mark.parametrize(("num_sequences", "limit"), [(1, 1e-5), (8, 2e-5), (64, 8e-5)])
def test_a_step_costs_next_to_nothing(num_sequences: int, limit: float) -> None:
    measured, decode = StepTimes(), step(*((1, 500),) * num_sequences)
    at = itertools.count(1000, 0.001)

    def note() -> None:
        for _ in range(1_000):
            measured.record(decode, 0.001, at=next(at))

    assert least_busy_seconds(note) / 1_000 < limit


def test_a_typical_time_is_that_of_the_last_steps_of_the_kind() -> None:
    stage = Stage()
    stage.computes(1.0, times=7)
    assert stage.measured.typical_seconds(DECODE) == 0.0  # too few to know
    stage.computes(1.0)
    assert stage.measured.typical_seconds(DECODE) == 1.0
    assert stage.measured.typical_seconds(PREFILL) == 0.0
    stage.computes(0.01, times=9)
    assert stage.measured.typical_seconds(DECODE) == 0.01  # of the last 16


def test_steps_of_a_kind_have_about_as_many_tokens_at_about_the_same_depth() -> None:
    assert _kind_of(step((1, 100)))[0] == _kind_of(step((1, 126)))[0]
    assert _kind_of(step((1, 127)))[0] != _kind_of(step((1, 126)))[0]
    assert _kind_of(step((63, 38)))[0] == _kind_of(step((40, 60)))[0]
    assert _kind_of(step((1, 100)))[0] != _kind_of(step((1, 100), (1, 100)))[0]
    assert _kind_of(step(*((1, 100),) * 40))[0] == _kind_of(step(*((1, 100),) * 63))[0]
    assert _kind_of(step((40, 60), score_from=0))[0] != _kind_of(step((40, 60)))[0]
