"""Which sampling parameters make sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.errors import ParameterError

if TYPE_CHECKING:
    from potluck.types.step import SamplingParams

MAX_TOP_LOGPROBS = 20
"""As in the OpenAI API."""

MAX_PENALTY = 2.0
"""Frequency and presence penalties lie in [-2, 2], as in the OpenAI API."""

MAX_LOGIT_BIAS = 100.0
"""As in the OpenAI API."""

MAX_LOGIT_BIAS_TOKENS = 1024
"""Tokens with a bias: far more than is of use, and a step's frame has room for them."""

MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
"""Far beyond any use; these two keep float32 arithmetic on logits from overflowing."""

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


def validate_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise ``ParameterError``, naming the field, if a value of ``params`` is not allowed.

    Not-a-number fails every range.
    """
    for name in ("top_k", "seed", "top_logprobs"):
        value = getattr(params, name)
        whole = isinstance(value, int) or (value is None and name == "top_k")
        _require(whole, name, repr(value), "a whole number")
    for name in _NUMBERS:
        value = getattr(params, name)
        _require(isinstance(value, int | float), name, repr(value), "a number")
    _require(
        0 <= params.temperature <= MAX_TEMPERATURE,
        "temperature",
        params.temperature,
        f"from 0 (greedy) to {MAX_TEMPERATURE:g}",
    )
    _require(
        params.top_k is None or params.top_k >= 1, "top_k", params.top_k, "at least 1, or left out"
    )
    _require(0 < params.top_p <= 1, "top_p", params.top_p, "above 0 and at most 1")
    _require(0 <= params.min_p <= 1, "min_p", params.min_p, "from 0 to 1")
    _require(
        1 / MAX_REPETITION_PENALTY <= params.repetition_penalty <= MAX_REPETITION_PENALTY,
        "repetition_penalty",
        params.repetition_penalty,
        f"from {1 / MAX_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g} (1 is neutral)",
    )
    for name, penalty in (
        ("frequency_penalty", params.frequency_penalty),
        ("presence_penalty", params.presence_penalty),
    ):
        _require(abs(penalty) <= MAX_PENALTY, name, penalty, "from -2 to 2")
    _require(
        len(params.logit_bias) <= MAX_LOGIT_BIAS_TOKENS,
        "logit_bias",
        f"given for {len(params.logit_bias)} tokens",
        f"given for at most {MAX_LOGIT_BIAS_TOKENS}",
    )
    for token, bias in params.logit_bias:
        _require(0 <= token < vocab_size, "logit_bias", token, f"a token id below {vocab_size}")
        _require(
            abs(bias) <= MAX_LOGIT_BIAS,
            "logit_bias",
            bias,
            f"from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}",
        )
    _require(0 <= params.seed < 1 << 64, "seed", params.seed, "from 0 to 2^64 - 1")
    _require(
        0 <= params.top_logprobs <= MAX_TOP_LOGPROBS,
        "top_logprobs",
        params.top_logprobs,
        f"from 0 to {MAX_TOP_LOGPROBS}",
    )
    _require(
        params.logprobs or params.top_logprobs == 0,
        "top_logprobs",
        params.top_logprobs,
        "0 unless logprobs is set",
    )


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise ParameterError(
            name, f"{name} is {value}, and must be {allowed}", hint=f"give another {name}"
        )
