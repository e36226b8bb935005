"""The table of ranges: what is in, what is out, and what an error says of it."""

from __future__ import annotations

import math

import pytest

from potluck.errors import ParameterError
from potluck.types.ranges import MAX_SEED, MAX_THREADS, MAX_WHOLE, RANGES, require_number, shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 1),
        ("top_k", MAX_WHOLE),
        ("max_tokens", MAX_WHOLE),
        ("n", 1),
        ("seed", 0),
        ("seed", MAX_SEED),
        ("temperature", 0),
        ("temperature", 100.0),
        ("top_p", 5e-324),
        ("top_p", 1),
        ("threads", MAX_THREADS),
        ("context", 2),
    ],
)
def test_in(name: str, value: float) -> None:
    require_number(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 2**63),
        ("top_k", 2**64),
        ("top_k", -1),
        ("top_k", 10**5000),
        ("top_k", 1.0),
        ("top_k", True),
        ("top_k", None),
        ("seed", -1),
        ("seed", 2**64),
        ("temperature", 10**400),
        ("temperature", math.inf),
        ("temperature", math.nan),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", -5e-324),
        ("threads", 0),
        ("threads", MAX_THREADS + 1),
        ("context", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else shown(value),
)
def test_out(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"{name} is .*, but must be a") as refused:
        require_number(name, value)
    assert refused.value.name == name
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("name", sorted(RANGES))
def test_bounds_belong_to_the_range_unless_it_says_otherwise(name: str) -> None:
    allowed = RANGES[name]
    least = int(allowed.least) if allowed.is_whole else float(allowed.least)
    most = int(allowed.most) if allowed.is_whole else float(allowed.most)
    assert allowed.holds(most)
    assert allowed.holds(least) is not allowed.is_open


def test_values_are_shown_in_a_few_characters() -> None:
    assert shown(-5) == "-5"
    assert shown(10**5000) == "2^16609 or more"
    assert shown(-(10**5000)) == "-2^16609 or more"
    assert len(shown("x" * 10_000)) < 150
