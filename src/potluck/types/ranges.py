"""The range of every number in requests, in one table for HTTP, Python and the command line.

All downstream code accepts values within their range: msgpack (64-bit integers), the compiled core
(int64, uint64 and float32), and arithmetic on logits in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from potluck.errors import ParameterError
from potluck.types.states import MAX_STATES

MAX_WHOLE = 2**63 - 1
"""The maximum of an int64. No real count comes near it, but clients mean "all" by large numbers."""

MAX_SEED = 2**64 - 1

MAX_TOP_LOGPROBS = 20
"""As in the OpenAI API."""

MAX_PENALTY = 2.0
"""Frequency and presence penalties lie in [-2, 2], as in the OpenAI API."""

MAX_LOGIT_BIAS = 100.0
"""As in the OpenAI API."""

MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
"""Far beyond any practical use; these two limits prevent overflow of logits in float32."""

MAX_THREADS = 8192
"""The most CPUs that a Linux kernel supports (``CONFIG_NR_CPUS``, arch/x86/Kconfig)."""

DEFAULT_CACHE_CONTEXTS = 4
"""The cache of a deployment holds as many full contexts unless its size is given."""

DEFAULT_RECOVERY_WAIT_SECONDS = 60.0
"""As long as most clients wait, and longer than a model of a few gigabytes takes to reload."""

MAX_RECOVERY_WAIT_SECONDS = 86_400.0
"""One day; no client keeps a connection open for longer."""

DEFAULT_TARGET_STEP_MS = 200.0
"""Five tokens per second during the prefill of another prompt, which is about reading speed."""

MIN_TARGET_STEP_MS = 1.0
MAX_TARGET_STEP_MS = 60_000.0
"""One minute between two tokens: a slow board may need this for a large model's prompt."""

MAX_CACHE_DISK_BYTES = 2**50
"""One pebibyte, larger than any node's disk."""

MAX_SPARES = 64
"""More than the nodes of any intended cluster; each spare requires a copy of the weights."""

MAX_STREAMS = 256
"""The most streams in a plan: four times the number of sequences in a step (``scheduling``)."""

MAX_TENSOR_PARALLEL = 64
"""The most units in a group: no model has enough key-value heads for more."""

MIN_REBALANCE_THRESHOLD = 0.01
MAX_REBALANCE_THRESHOLD = 100.0
"""A hundred times as fast. A gain below one percent is within the error of any prediction."""

_SHOWN_BITS = 128
"""Larger integers are abbreviated: Python refuses to convert those with 4300 or more digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """The numbers from ``least`` to ``most``, both inclusive unless ``is_open`` excludes ``least``.

    ``words`` describes the allowed values in error messages.
    """

    least: float
    most: float
    words: str
    is_whole: bool = False
    is_open: bool = False

    def holds(self, value: object) -> bool:
        """Return whether ``value`` is a number of the right type in the range; NaN never is."""
        if type(value) is int or (type(value) is float and not self.is_whole):
            return self.least <= value <= self.most and not (self.is_open and value == self.least)
        return False

    def require(self, name: str, value: object) -> None:
        """Raise ``ParameterError``, naming the parameter, if ``value`` is not in the range."""
        if not self.holds(value):
            raise ParameterError(
                name,
                f"{name} is {shown(value)}, but must be {self.words}",
                hint=f"give another {name}",
            )


def whole(most: int, *, least: int = 1, words: str = "") -> NumberRange:
    """Return the range of an integer up to ``most``; by default, ``words`` name both bounds."""
    words = words or f"an integer from {least} to {most}"
    return NumberRange(least=least, most=most, words=words, is_whole=True)


def between(least: float, most: float, unit: str = "") -> NumberRange:
    """Return the range of a number; ``unit`` is ``of seconds``, for example, with a space."""
    return NumberRange(least=least, most=most, words=f"a number {unit}from {least:g} to {most:g}")


def _count(least: int = 1) -> NumberRange:
    return whole(MAX_WHOLE, least=least, words=f"an integer from {least} to 2^63 - 1")


def _repetition_penalty() -> NumberRange:
    least, most = 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY
    words = f"a number from {least:g} to {most:g} (1 is neutral)"
    return NumberRange(least=least, most=most, words=words)


RANGES: Mapping[str, NumberRange] = MappingProxyType(
    {
        "temperature": NumberRange(
            least=0,
            most=MAX_TEMPERATURE,
            words=f"a number from 0 (greedy) to {MAX_TEMPERATURE:g}",
        ),
        "top_k": _count(),
        "top_n": _count(),
        "top_p": NumberRange(least=0, most=1, is_open=True, words="a number above 0, at most 1"),
        "min_p": between(0, 1),
        "repetition_penalty": _repetition_penalty(),
        "repeat_penalty": _repetition_penalty(),
        "frequency_penalty": between(-MAX_PENALTY, MAX_PENALTY),
        "presence_penalty": between(-MAX_PENALTY, MAX_PENALTY),
        "logit_bias": between(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS),
        "seed": whole(MAX_SEED, least=0, words="an integer from 0 to 2^64 - 1"),
        "top_logprobs": whole(MAX_TOP_LOGPROBS, least=0),
        "logprobs": whole(MAX_TOP_LOGPROBS, least=0),
        "n": _count(),
        "max_tokens": _count(),
        "max_completion_tokens": _count(),
        "context": _count(2),
        "cache": _count(2),
        "states": whole(MAX_STATES),
        "stages": _count(),
        "threads": whole(MAX_THREADS),
    }
)
"""Ranges by parameter name. ``logprobs`` is the number in completion requests. ``logit_bias`` is
the range of the bias; its tokens are limited by the vocabulary. Negative seeds in HTTP bodies are
converted by adding 2^64 before they are checked."""


def require_number(name: str, value: object) -> None:
    """Raise ``ParameterError``, naming the parameter, if ``value`` is not in its range."""
    RANGES[name].require(name, value)


def shown(value: object) -> str:
    """Return a value in a short form for error messages."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1} or more"
    text = repr(value)
    return text if len(text) <= _SHOWN_BITS else f"{text[:_SHOWN_BITS]}…"
