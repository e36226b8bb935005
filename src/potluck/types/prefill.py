"""How prompts are computed."""

from __future__ import annotations

import enum


class Prefill(enum.Enum):
    """Whether a prompt's tokens have the bits that decoding them would give.

    Exact: they do. Fast: where a sequence brings more than one token to a step, they are computed
    with less precision, by units that have kernels for it; a single token, also if it is the last
    chunk of a prompt, is exact. Logits still depend on the sequence alone, but for which of its
    chunks had one token, and a sequence that is computed again from its tokens (after a preemption
    or a lost node) may go on differently.
    """

    EXACT = "exact"
    FAST = "fast"
