"""Integers that look random and are the same everywhere, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator


def draws(seed: int) -> Iterator[int]:
    """Integers of 15 bits: the linear congruential generator of POSIX ``rand``."""
    state = seed
    while True:
        state = (state * 1103515245 + 12345) % 2**31
        yield state >> 16


def between(draw: int, low: int, high: int) -> int:
    """The integer from ``low`` to ``high``, both included, that a draw stands for."""
    return low + draw % (high - low + 1)
