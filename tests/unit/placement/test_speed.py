"""Speeds from reports, honest ones and others."""

from __future__ import annotations

import math

import pytest
from support.placement.units import measured, rates

from potluck.placement.speed import (
    ASSUMED_READ_BYTES_PER_SECOND,
    UnitSpeed,
    unit_speed,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.hardware import TRIAL_BYTES, Figure, Figures, Origin, Rates
from potluck.types.placement import Basis
from potluck.types.tensor import TensorFormat

SMALL, LARGE = 10e6, 10e9


def speed(
    unit_rates: Rates | None = None,
    figures: Figures | None = None,
    *,
    is_shared: bool = True,
    arithmetic: Arithmetic = Arithmetic.EXACT,
) -> UnitSpeed:
    return unit_speed(
        unit_rates or Rates(),
        figures or Figures(),
        is_shared=is_shared,
        arithmetic=arithmetic,
    )


def test_the_trial_itself_is_predicted() -> None:
    found = speed(rates(100.0, 800.0))
    seconds = TRIAL_BYTES / found.read_bytes_per_second(SMALL) + 2 * found.layer_seconds.value
    assert seconds == pytest.approx(1 / 100)
    weights = TRIAL_BYTES * 32 / 34
    chunk = found.arithmetic_seconds(TensorFormat.Q8_0, 32, is_prompt=True) * weights
    assert seconds + chunk == pytest.approx(32 / 800)


def test_a_large_model_is_read_as_fast_as_memory() -> None:
    figures = Figures(read_bytes_per_second=measured(5e9))
    found = speed(rates(100.0, 800.0), figures)
    assert found.read_bytes_per_second(LARGE) == pytest.approx(5e9)
    assert found.read_bytes_per_second(SMALL) > 9e9
    # Reading alone is a little faster than the trial; what a layer takes besides is not lost.
    faster = speed(rates(100.0, 800.0), Figures(read_bytes_per_second=measured(50e9)))
    assert faster.read_bytes_per_second(LARGE) == faster.read_bytes_per_second(SMALL)


def test_arithmetic_grows_with_tokens_in_every_format() -> None:
    found = speed(rates(100.0, 800.0))
    for format in TensorFormat:
        for is_prompt in (False, True):
            seconds = [
                found.arithmetic_seconds(format, tokens, is_prompt=is_prompt)
                for tokens in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 33, 64, 512)
            ]
            assert seconds[0] == 0.0
            assert seconds == sorted(seconds)
            assert len(set(seconds)) == len(seconds)


def test_fast_arithmetic_is_used_where_it_is_asked_for() -> None:
    figures = Figures(
        f32_operations_per_second=measured(200e9),
        fast_bf16_operations_per_second=measured(2000e9),
    )
    exact = speed(rates(100.0, 800.0), figures)
    fast = speed(rates(100.0, 800.0), figures, arithmetic=Arithmetic.AMX)
    for format in (TensorFormat.BF16, TensorFormat.Q4_K):
        slower = exact.arithmetic_seconds(format, 512, is_prompt=True)
        assert fast.arithmetic_seconds(format, 512, is_prompt=True) < 0.5 * slower
    assert fast.arithmetic_seconds(
        TensorFormat.Q4_K, 8, is_prompt=False
    ) == exact.arithmetic_seconds(TensorFormat.Q4_K, 8, is_prompt=False)


def test_a_device_of_its_own_has_its_overhead_from_two_figures() -> None:
    # Reading the trial's weights alone takes 1 ms of 5.
    figures = Figures(read_bytes_per_second=measured(TRIAL_BYTES / 1e-3))
    found = speed(rates(200.0, 3200.0), figures, is_shared=False)
    assert found.layer_seconds.value == pytest.approx(2e-3)
    assert found.read.value == pytest.approx(TRIAL_BYTES / 1e-3)


def test_nothing_known_is_slow_and_said_so() -> None:
    found = speed()
    assert found.decode_basis is Basis.ASSUMED
    assert found.prefill_basis is Basis.ASSUMED
    assert found.read.value == ASSUMED_READ_BYTES_PER_SECOND


def test_a_table_counts_for_less_than_it_says() -> None:
    figure = Figure(value=100e9, origin=Origin.TABLE, source="a table")
    found = speed(figures=Figures(read_bytes_per_second=figure), is_shared=False)
    assert found.decode_basis is Basis.TABLE
    assert found.read.value == pytest.approx(40e9)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 5e-324])
def test_absurd_figures_count_as_unknown(value: float) -> None:
    figures = Figures(
        read_bytes_per_second=measured(value),
        f32_operations_per_second=measured(value),
        int8_operations_per_second=measured(value),
        fast_bf16_operations_per_second=measured(value),
    )
    assert speed(rates(value, value), figures) == speed()


@pytest.mark.parametrize(
    ("reported", "expected"),
    [(1.0, 1.0), (0.25, 0.25), (4.0, 1.0), *((absurd, 1.0) for absurd in (0.0, -1.0, math.inf))],
)
def test_usable_share(reported: float, expected: float) -> None:
    found = unit_speed(Rates(), Figures(), is_shared=True, usable_share=reported)
    assert found.usable_share == expected


def test_an_absurd_share_is_ignored_and_a_tiny_one_limited() -> None:
    def share(reported: float) -> float:
        return unit_speed(Rates(), Figures(), is_shared=True, usable_share=reported).usable_share

    assert share(math.nan) == 1.0
    assert 0 < share(1e-300) < 0.1
