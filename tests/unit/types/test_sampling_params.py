"""Which sampling parameters are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from potluck.errors import ParameterError
from potluck.types.sampling import validate_sampling
from potluck.types.step import SamplingParams


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"repetition_penalty": 0.01},
        {"frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"logit_bias": ((0, -100.0), (9, 100.0))},
        {"seed": 2**64 - 1},
        {"logprobs": True, "top_logprobs": 20},
    ],
)
def test_allowed(fields: dict[str, Any]) -> None:
    validate_sampling(replace(SamplingParams(), **fields), vocab_size=10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -2.1),
        ("presence_penalty", math.nan),
        ("logit_bias", ((10, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 100.1),)),
        ("seed", -1),
        ("seed", 2**64),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("temperature", "warm"),
        ("top_k", 1.5),
        ("top_p", None),
        ("seed", 2.0),
        ("seed", None),
    ],
)
def test_refused(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"logprobs": True, name: value}
    with pytest.raises(ParameterError, match=name) as caught:
        validate_sampling(replace(SamplingParams(), **fields), vocab_size=10)
    assert caught.value.name == name


def test_alternatives_need_logprobs() -> None:
    with pytest.raises(ParameterError, match="unless logprobs is set"):
        validate_sampling(SamplingParams(top_logprobs=3), vocab_size=10)
