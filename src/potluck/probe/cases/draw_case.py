"""The part of the self-test that samples tokens from known logits with many parameters.

The logits are multiples of 1/8, which are exact in every format; each sequence has one row of them.
The draws cover all code paths of sampling: few candidate tokens and nearly all, limited by top-k,
by top-p and by both, with a mask and without. Every backend samples with the core's kernels.

The expected tokens are those of the specification (``tests/support/reference/sampling.py``); a test
draws them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from potluck.types.step import SamplingParams

VOCAB_SIZE = 1077
"""Several blocks of 128 logits, the last of them incomplete, and more than the 512 that are
sorted."""
NUM_ROWS = 8

_SETS = (
    {"temperature": 0.8},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 4.0, "top_p": 0.95},
    {"temperature": 2.0, "top_k": 700},
    {"temperature": 3.0, "top_k": 900, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 2.0, "min_p": 0.02},
    {"temperature": 0.0},
    {"top_k": 20, "top_p": 0.7},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A draw from the row ``row``; with a mask, only from tokens that ``is_allowed`` permits."""

    row: int
    params: SamplingParams
    has_mask: bool


def logits() -> tuple[tuple[float, ...], ...]:
    """Return ``[NUM_ROWS][VOCAB_SIZE]``."""
    drawn = draws(seed=6)
    return tuple(
        tuple(uniform_int(next(drawn), -64, 64) / 8 for _ in range(VOCAB_SIZE))
        for _ in range(NUM_ROWS)
    )


def is_allowed(token: int) -> bool:
    """Return whether the mask allows the token."""
    return token % 3 != 0 and token // 128 != 2


def all_draws() -> tuple[Draw, ...]:
    """Return the draws, in the order of the sequences."""
    return tuple(
        Draw(
            row=number % NUM_ROWS,
            params=SamplingParams(seed=number, **each),  # type: ignore[arg-type]
            has_mask=has_mask,
        )
        for number, (has_mask, each) in enumerate(product((False, True) * 3, _SETS))
    )


EXPECTED = (
    *(1037, 801, 79, 273, 899, 336, 5, 200, 664, 569, 580, 466, 863, 775, 5, 200),
    *(720, 747, 1076, 78, 452, 609, 5, 200, 887, 902, 911, 749, 977, 910, 5, 461),
    *(627, 703, 410, 971, 474, 204, 5, 134, 248, 959, 1063, 118, 47, 827, 5, 134),
)
"""The tokens."""


def draws(seed: int) -> Iterator[int]:
    """Yield integers of 15 bits from the linear congruential generator of POSIX ``rand``."""
    state = seed
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield state >> 16


def uniform_int(draw: int, low: int, high: int) -> int:
    """Return the next integer from ``low`` to ``high``, both included."""
    return low + draw % (high - low + 1)
