"""Reproducible pseudo-random integers, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator


def draws(seed: int) -> Iterator[int]:
    """Yield integers of 15 bits from the linear congruential generator of POSIX ``rand``."""
    state = seed
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield state >> 16


def between(draw: int, low: int, high: int) -> int:
    """Return the next integer from ``low`` to ``high``, both included."""
    return low + draw % (high - low + 1)
