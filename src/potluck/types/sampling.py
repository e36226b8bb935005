"""Validation of sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.errors import ParameterError
from potluck.types.ranges import require_number, shown
from potluck.types.step import SamplingParams

MAX_LOGIT_BIAS_TOKENS = 1024
"""Maximum number of tokens with a bias: more than is useful, but small enough for a frame."""

RECOMMENDED_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields of ``SamplingParams`` for which models recommend values."""

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "top_logprobs",
)


def merged_sampling(
    recommended: Mapping[str, float | int], requested: Mapping[str, object]
) -> dict[str, object]:
    """Return values of ``SamplingParams``: the requested ones, and the recommended ones for the
    rest.
    """
    return {**recommended, **requested}


def default_sampling(recommended: Mapping[str, float | int]) -> dict[str, object]:
    """Return the defaults of all ``RECOMMENDED_FIELDS``: recommended values, or neutral ones."""
    neutral = SamplingParams()
    values = {name: getattr(neutral, name) for name in RECOMMENDED_FIELDS}
    return merged_sampling(values, recommended)


def validate_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise ``ParameterError``, naming the field, if a value of ``params`` is not allowed.

    Valid parameters can be serialized without loss, and every engine accepts them.
    """
    for name in _NUMBERS:
        require_number(name, getattr(params, name))
    if params.top_k is not None:
        require_number("top_k", params.top_k)
    _require(type(params.logprobs) is bool, "logprobs", params.logprobs, "True or False")
    _require(
        len(params.logit_bias) <= MAX_LOGIT_BIAS_TOKENS,
        "logit_bias",
        f"given for {len(params.logit_bias)} tokens",
        f"given for at most {MAX_LOGIT_BIAS_TOKENS} tokens",
    )
    for token, bias in params.logit_bias:
        is_token = type(token) is int and 0 <= token < vocab_size
        _require(is_token, "logit_bias", shown(token), f"a token id below {vocab_size}")
        require_number("logit_bias", bias)
    _require(
        params.logprobs or params.top_logprobs == 0,
        "top_logprobs",
        params.top_logprobs,
        "0 unless logprobs is set",
    )


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ParameterError(
            name, f"{name} is {value}, but must be {allowed}", hint=f"give another {name}"
        )
