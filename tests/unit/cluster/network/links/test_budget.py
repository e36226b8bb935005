from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.cluster.network.links.schedule import (
    CAPACITY_SECONDS,
    LEAST_SECONDS,
    SHARE,
    WINDOW_SECONDS,
    LinkBudget,
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 90), st.floats(0, 1)), max_size=60))
def test_no_minute_has_more_than_its_share(draws: list[tuple[float, float]]) -> None:
    now = 1000.0
    budget = LinkBudget(now)
    spent: list[tuple[float, float]] = []
    for wait, part in draws:
        now += wait
        seconds = part * max(0.0, budget.available(now))
        budget.spend(seconds, now)
        spent.append((now, seconds))
    for start, _ in spent:
        minute = sum(each for at, each in spent if start <= at < start + WINDOW_SECONDS)
        assert minute <= SHARE * WINDOW_SECONDS + 1e-9


def test_what_exceeds_it_is_waited_for() -> None:
    budget = LinkBudget(0.0)
    assert budget.wait_seconds(0.0) == 0
    budget.spend(CAPACITY_SECONDS + 1.0, 0.0)
    assert budget.available(0.0) == pytest.approx(-1.0)
    wait = budget.wait_seconds(0.0)
    assert wait == pytest.approx((1.0 + LEAST_SECONDS) / SHARE * 2)
    assert budget.wait_seconds(wait + 1e-6) == 0


def test_it_saves_up_no_more_than_half_a_minutes_share() -> None:
    budget = LinkBudget(0.0)
    assert budget.available(1e6) == CAPACITY_SECONDS == SHARE * WINDOW_SECONDS / 2
