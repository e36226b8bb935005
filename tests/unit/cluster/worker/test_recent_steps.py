"""What a stage says of how long its steps take: by kind, in medians, and cheaply."""

from __future__ import annotations

import random
import time

import pytest

from potluck.cluster.worker.step_times import (
    FORGET_SECONDS,
    LEAST_SAMPLES,
    SAMPLE_SECONDS,
    RecentSteps,
)
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
        self.recent = RecentSteps()
        self.now = 1000.0

    def computes(self, seconds: float, *, step: Step = DECODE, times: int = 1) -> None:
        for _ in range(times):
            self.now += max(seconds, SAMPLE_SECONDS)
            self.recent.took(step, seconds, at=self.now)

    def times(self, shard: Shard = SHARD) -> tuple[StepTime, ...]:
        return self.recent.times(shard, self.now)


def test_medians_are_told_with_the_stage_and_the_kind_of_step() -> None:
    stage = Stage()
    stage.computes(0.02, times=20)
    stage.computes(0.5, step=PREFILL, times=5)
    stage.computes(0.03, step=step((1, 99), (1, 299), (1, 499)), times=9)
    decode, prefill, three = stage.times()
    assert decode == StepTime(
        num_layers=6,
        has_embedding=False,
        has_head=False,
        num_sequences=1,
        num_tokens=1,
        context_tokens=100,
        seconds=0.02,
        num_samples=20,
        age_seconds=decode.age_seconds,
    )
    assert decode.age_seconds == pytest.approx(5 * 0.5 + 9 * SAMPLE_SECONDS)
    assert (prefill.num_sequences, prefill.num_tokens, prefill.context_tokens) == (1, 512, 512)
    assert (prefill.seconds, prefill.num_samples) == (0.5, 5)
    assert (three.num_sequences, three.num_tokens, three.context_tokens) == (3, 3, 300)
    assert all(each.is_plausible for each in stage.times())


@pytest.mark.parametrize("seed", range(4))
def test_outliers_change_nothing(seed: int) -> None:
    stage, draw = Stage(), random.Random(seed)
    for _ in range(200):
        outlier = 50.0 if draw.random() < 0.2 else 1.0
        stage.computes(0.02 * outlier * draw.lognormvariate(0, 0.05))
    (decode,) = stage.times()
    assert decode.seconds == pytest.approx(0.02, rel=0.1)


def test_a_stage_that_has_become_slow_is_known_to_be_within_two_seconds() -> None:
    stage = Stage()
    stage.computes(0.02, times=1000)
    began = stage.now
    stage.computes(0.08, times=20)
    assert stage.now - began < 2
    (decode,) = stage.times()
    assert decode.seconds == 0.08


def test_too_few_samples_are_not_told_and_old_ones_are_forgotten() -> None:
    stage = Stage()
    stage.computes(0.02, times=LEAST_SAMPLES - 1)
    assert stage.times() == ()
    stage.computes(0.02)
    assert len(stage.times()) == 1
    stage.now += FORGET_SECONDS + 1
    stage.computes(9.0)
    assert stage.times() == ()
    stage.computes(0.04, times=LEAST_SAMPLES)
    assert stage.times()[0].seconds == 0.04


def test_steps_of_prompts_among_short_decodes_are_not_missed() -> None:
    recent, at = RecentSteps(), 1000.0
    for _ in range(LEAST_SAMPLES):
        for _ in range(1000):
            at += SAMPLE_SECONDS / 100
            recent.took(DECODE, 0.0005, at=at)
        at += 0.01
        recent.took(step((1, 40), (64, 0)), 0.01, at=at)
    prompts = [each for each in recent.times(SHARD, at) if each.num_tokens > 1]
    assert [(each.num_tokens, each.num_sequences, each.seconds) for each in prompts] == [
        (65, 2, 0.01)
    ]


def test_a_step_that_scores_a_prompt_is_left_out_and_so_is_an_empty_one() -> None:
    stage = Stage()
    stage.computes(0.9, step=step((512, 0), score_from=0), times=20)
    stage.computes(0.9, step=step(), times=20)
    assert stage.times() == ()


def test_kinds_are_bounded_and_the_latest_are_kept() -> None:
    stage = Stage()
    for depth_bits in range(1, 20):
        for count in (1, 2, 3, 4, 5, 6, 7, 8, 16, 100):
            depth = 2**depth_bits - 1
            stage.computes(0.01, step=step(*((1, depth),) * count), times=LEAST_SAMPLES)
    told = stage.times()
    assert len(told) == 64
    assert min(each.context_tokens for each in told) >= 2**12
    assert {each.num_sequences for each in told} == {1, 2, 3, 4, 5, 6, 7, 8, 16, 100}


def test_most_short_steps_cost_a_comparison_and_a_sample_little_more() -> None:
    recent, at = RecentSteps(), 1000.0
    recent.took(DECODE, 0.001, at=at)
    started = time.perf_counter()
    for _ in range(10_000):
        recent.took(DECODE, 0.001, at=at + SAMPLE_SECONDS / 2)
    assert (time.perf_counter() - started) / 10_000 < 5e-6
    eight = step(*((1, 500),) * 8)
    started = time.perf_counter()
    for index in range(2_000):
        recent.took(eight, 0.001, at=at + (index + 1) * SAMPLE_SECONDS)
    assert (time.perf_counter() - started) / 2_000 < SAMPLE_SECONDS / 500
