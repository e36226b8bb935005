"""Times of parts, and their correction by what was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.placement.units import llama_config, unit_times, work_of

from potluck.placement.times import UnitTimes
from potluck.types.placement import Basis
from potluck.types.speed import StepTime

WORK = work_of(llama_config(8))
TIMES = unit_times("a", WORK)
ALL = (0, 10)


def step_time(
    seconds: float,
    *,
    num_sequences: int = 1,
    num_tokens: int = 1,
    num_samples: int = 1000,
    num_layers: int = 8,
    context_tokens: int = 512,
) -> StepTime:
    return StepTime(
        num_layers=num_layers,
        has_embedding=True,
        has_head=True,
        num_sequences=num_sequences,
        num_tokens=num_tokens,
        context_tokens=context_tokens,
        seconds=seconds,
        num_samples=num_samples,
    )


def decode(times: UnitTimes, num_sequences: int = 1, context_tokens: int = 512) -> float:
    return times.decode(num_sequences, context_tokens).seconds(*ALL)


def test_items_are_the_embedding_the_layers_and_the_head() -> None:
    parts = TIMES.decode()
    assert len(parts.item_seconds) == 10
    assert parts.item_seconds[0] < 1e-4 < parts.item_seconds[1]
    assert parts.item_seconds[1] == parts.item_seconds[8]


def test_more_sequences_and_longer_contexts_take_longer() -> None:
    by_count = [decode(TIMES, count) for count in (1, 2, 4, 8, 16, 64)]
    assert by_count == sorted(by_count)
    assert by_count[3] < 8 * by_count[0]
    contexts = [decode(TIMES, 1, tokens) for tokens in (1, 100, 1000, 8000)]
    assert contexts == sorted(contexts)
    windowed = unit_times("a", work_of(llama_config(8, window=100)))
    assert decode(windowed, 1, 200) == decode(windowed, 1, 8000)


def test_prefill_is_cheaper_by_the_token() -> None:
    chunk = TIMES.prefill(512, 512).seconds(*ALL)
    assert chunk < 512 * decode(TIMES)
    assert TIMES.prefill(512, 4096).seconds(*ALL) > chunk


def test_a_quota_slows_everything_down() -> None:
    slow = unit_times("a", WORK, usable_share=0.1)
    assert decode(slow) == pytest.approx(10 * decode(TIMES))


def test_measured_steps_correct_the_prediction() -> None:
    corrected = TIMES.corrected([step_time(2 * decode(TIMES))])
    assert decode(corrected) == pytest.approx(2 * decode(TIMES), rel=0.01)
    assert corrected.decode().basis is Basis.SERVED
    assert TIMES.decode().basis is Basis.MEASURED
    # What was measured of decoding says nothing about prompts.
    assert corrected.prefill(32, 32) == TIMES.prefill(32, 32)


def test_a_part_of_the_layers_tells_of_all() -> None:
    parts = TIMES.decode()
    half = sum(parts.item_seconds[1:5]) + parts.item_seconds[0] + parts.item_seconds[-1]
    measured = step_time(3 * (half + parts.stage_seconds), num_layers=4)
    assert decode(TIMES.corrected([measured])) == pytest.approx(3 * decode(TIMES), rel=0.02)


def test_few_samples_correct_little() -> None:
    little = decode(TIMES.corrected([step_time(4 * decode(TIMES), num_samples=1)]))
    much = decode(TIMES.corrected([step_time(4 * decode(TIMES), num_samples=100)]))
    assert decode(TIMES) < little < 2 * decode(TIMES) < 3 * decode(TIMES) < much


def test_between_two_kinds_of_steps_the_correction_is_between() -> None:
    corrected = TIMES.corrected(
        [
            step_time(decode(TIMES)),
            step_time(2 * decode(TIMES, 8), num_sequences=8, num_tokens=8),
        ]
    )
    ratios = [decode(corrected, count) / decode(TIMES, count) for count in (1, 2, 4, 8, 32)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(1.0, rel=0.01)
    assert ratios[-1] == pytest.approx(2.0, rel=0.02)


def test_an_outlier_among_others_changes_nothing() -> None:
    seconds = decode(TIMES)
    steps = [step_time(seconds), step_time(1.1 * seconds), step_time(1e4)]
    assert decode(TIMES.corrected(steps)) == pytest.approx(1.1 * seconds, rel=0.02)


def test_a_lone_outlier_is_bounded() -> None:
    assert decode(TIMES.corrected([step_time(9e4)])) <= 30 * decode(TIMES)


def test_short_steps_of_a_throttled_unit_do_not_hide_its_quota() -> None:
    throttled = unit_times("a", WORK, usable_share=0.1)
    full_speed = decode(TIMES)
    assert decode(throttled.corrected([step_time(full_speed)])) == pytest.approx(
        decode(throttled), rel=0.02
    )
    assert decode(throttled.corrected([step_time(20 * full_speed)])) > 1.9 * decode(throttled)


def test_steps_longer_than_the_period_of_a_quota_tell_how_long_they_take() -> None:
    throttled = unit_times("a", WORK, usable_share=0.5, quota_period_seconds=0.001)
    faster = 0.75 * decode(throttled)
    assert decode(throttled.corrected([step_time(faster)])) == pytest.approx(faster, rel=0.05)


BAD = step_time(1.0)


@pytest.mark.parametrize(
    "bad",
    [
        replace(BAD, seconds=math.nan),
        replace(BAD, seconds=math.inf),
        replace(BAD, seconds=0.0),
        replace(BAD, seconds=-1.0),
        replace(BAD, num_samples=0),
        replace(BAD, num_samples=-5),
        replace(BAD, num_sequences=0),
        replace(BAD, num_tokens=0),
        replace(BAD, num_layers=-1),
        replace(BAD, num_layers=1 << 60),
        replace(BAD, context_tokens=-1),
        replace(BAD, num_tokens=1 << 60),
        replace(BAD, num_layers=0, has_embedding=False, has_head=False),
    ],
)
def test_what_cannot_be_true_is_left_out(bad: StepTime) -> None:
    assert TIMES.corrected([bad]) == TIMES
