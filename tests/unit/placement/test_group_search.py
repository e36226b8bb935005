"""Shares follow speeds and memory, and stay the same where those change little."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.placement.group_search import shares_of

SECONDS = st.lists(st.floats(0.1, 3.0), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        ((1.0, 1.0), (1, 1)),
        ((1.0, 2.0, 2.0), (2, 1, 1)),
        ((1.0,) * 4, (1, 1, 1, 1)),
        ((0.2, 0.3), (3, 2)),
        ((1.0, 1.01, 0.99), (1, 1, 1)),
    ],
)
def test_shares_are_small_numbers_in_proportion_to_speed(
    seconds: tuple[float, ...], shares: tuple[int, ...]
) -> None:
    assert shares_of(seconds) == shares


def test_shares_stay_the_same_where_measurements_vary_a_little() -> None:
    assert {shares_of((1.0, 2.0 * noise, 2.0 / noise)) for noise in (0.99, 1.0, 1.01)} == {
        (2, 1, 1)
    }


def test_memory_limits_a_share() -> None:
    shares = shares_of((1.0, 1.0), (0.25, 1.0))
    assert shares == (1, 3)
    tight = shares_of((1.0, 4.0), (0.313, 0.70))
    assert tight is not None
    assert tight[0] / sum(tight) <= 0.313
    assert tight[1] / sum(tight) <= 0.70


def test_a_unit_that_is_far_slower_has_the_least_share() -> None:
    shares = shares_of((1.0, 1.0, 1e-4))
    assert shares is not None
    assert shares[:2] == (1, 1)
    assert shares[2] > 1000


@pytest.mark.parametrize("most", [(0.4, 0.5), (0.0, 1.0)])
def test_what_has_no_room_has_no_shares(most: tuple[float, ...]) -> None:
    assert shares_of((1.0, 1.0), most) is None


@given(SECONDS)
def test_the_slowest_member_takes_hardly_longer_than_it_must(seconds: list[float]) -> None:
    shares = shares_of(seconds)
    assert shares is not None
    assert min(shares) >= 1
    slowest = max(share * each for share, each in zip(shares, seconds, strict=True)) / sum(shares)
    assert slowest <= 1.03 / sum(1 / each for each in seconds)
    for (a, fast), (b, slow) in pairwise(sorted(zip(seconds, shares, strict=True))):
        assert fast >= slow or a == b


@given(SECONDS, st.data())
def test_no_member_gets_more_than_it_has_room_for(
    seconds: list[float], data: st.DataObject
) -> None:
    most = data.draw(st.lists(st.floats(0.0, 1.2), min_size=len(seconds), max_size=len(seconds)))
    shares = shares_of(seconds, most)
    if shares is not None:
        assert all(share / sum(shares) <= limit for share, limit in zip(shares, most, strict=True))
    elif min(most) > 0.1:
        assert sum(min(1.0, each) for each in most) < 1.05
