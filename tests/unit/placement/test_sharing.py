"""Memory shared among units: fair, and never more than there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.placement.offering import Pool, fair_shares


def pool(left_bytes: int, *members: int) -> Pool:
    return Pool(left_bytes=left_bytes, members=frozenset(members))


def test_equal_units_share_equally() -> None:
    assert fair_shares([100, 100, 100], [pool(90, 0, 1, 2)]) == [30, 30, 30]


def test_what_one_cannot_use_goes_to_the_others() -> None:
    assert fair_shares([10, 100, 100], [pool(90, 0, 1, 2)]) == [10, 40, 40]


def test_a_pool_within_a_pool() -> None:
    # The two of the inner pool get 20 each, so the outer one has 60 for the third.
    assert fair_shares([100, 100, 100], [pool(100, 0, 1, 2), pool(40, 0, 1)]) == [20, 20, 60]


def test_units_of_no_pool_have_their_own() -> None:
    assert fair_shares([100, 70], [pool(50, 0)]) == [50, 70]


def test_what_is_overdrawn_leaves_nothing() -> None:
    assert fair_shares([100, -3, 5], [pool(-7, 0, 1)]) == [0, 0, 5]


@pytest.mark.slow
@given(
    most=st.lists(st.integers(-10, 100), min_size=1, max_size=6),
    pools=st.lists(
        st.builds(Pool, left_bytes=st.integers(-10, 300), members=st.frozensets(st.integers(0, 5))),
        max_size=4,
    ),
)
def test_no_pool_is_overdrawn_and_no_share_could_grow(most: list[int], pools: list[Pool]) -> None:
    shares = fair_shares(most, pools)
    used = [sum(shares[unit] for unit in each.members if unit < len(most)) for each in pools]
    for total, each in zip(used, pools, strict=True):
        assert total <= max(0, each.left_bytes)
    for unit, share in enumerate(shares):
        assert 0 <= share <= max(0, most[unit])
        is_stopped = share == max(0, most[unit]) or any(
            unit in each.members and each.left_bytes - total < len(each.members)
            for total, each in zip(used, pools, strict=True)
        )
        assert is_stopped, "something is left that it could have"
