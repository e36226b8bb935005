"""How prompts are computed."""

from __future__ import annotations

import enum


class Prefill(enum.Enum):
    """Whether a prompt's tokens have the bits that decoding them would give.

    Exact: they do, however the prompt is cut into steps. Fast: rows of a step in which a sequence
    brings more than one token are computed with less precision, by units that have kernels for it.
    What follows a prompt then depends a little on how it was cut, and so on what else was computed;
    decoding is exact all the same.
    """

    EXACT = "exact"
    FAST = "fast"
