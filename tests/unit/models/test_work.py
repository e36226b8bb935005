"""What an op reads and computes, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from potluck.models.work import (
    attention_multiply_adds,
    cache_bytes_per_position,
    num_visible,
    share_of_experts,
)
from potluck.types.program import Attention


def attention(head_dim: int) -> Attention:
    return Attention(
        q="q",
        k="k",
        v="v",
        out="out",
        cache_index=0,
        num_heads=6,
        num_kv_heads=2,
        head_dim=head_dim,
        scale=1.0,
    )


def test_a_position_has_keys_and_padded_values_in_f16() -> None:
    assert cache_bytes_per_position(attention(64)) == 2 * (64 + 64) * 2
    assert cache_bytes_per_position(attention(20)) == 2 * (20 + 32) * 2


def test_each_head_multiplies_with_keys_and_values() -> None:
    assert attention_multiply_adds(attention(64)) == 6 * 64 * 2


def test_values_may_have_a_width_of_their_own_or_be_columns_of_the_keys() -> None:
    narrow = replace(attention(64), value_dim=20)
    assert cache_bytes_per_position(narrow) == 2 * (64 + 32) * 2
    assert attention_multiply_adds(narrow) == 6 * (64 + 20)
    latent = replace(narrow, v=None, value_start=44)
    assert cache_bytes_per_position(latent) == 2 * 64 * 2
    assert attention_multiply_adds(latent) == 6 * (64 + 20)


@pytest.mark.parametrize(
    ("start", "end", "window", "positions"),
    [
        (0, 4, None, 1 + 2 + 3 + 4),
        (3, 5, None, 4 + 5),
        (0, 5, 3, 1 + 2 + 3 + 3 + 3),
        (7, 9, 3, 3 + 3),
        (5, 5, 3, 0),
    ],
)
def test_visible_positions(start: int, end: int, window: int | None, positions: int) -> None:
    assert num_visible(start, end, window) == positions


def test_share_of_experts() -> None:
    assert share_of_experts(2, 8, 1) == pytest.approx(0.25)
    assert share_of_experts(2, 8, 2) == pytest.approx(1 - 0.75**2)
    assert share_of_experts(8, 8, 1) == 1.0
