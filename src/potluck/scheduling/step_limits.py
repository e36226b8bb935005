"""The most that one step contains. Both ends of an edge bound their buffers by it."""

from __future__ import annotations

MAX_STEP_TOKENS = 512
"""Tokens per step: prefill is bound by arithmetic well before, and scratch stays small."""

MAX_STEP_SEQUENCES = 64
"""Sequences per step: beyond that a CPU step is bound by arithmetic, not by reading weights."""

MAX_MOVED_BLOCKS = 8
"""The maximum number of blocks that a step restores, or saves beyond those that it computes. Other
sequences wait meanwhile: 8 blocks of a 1B model are 4 MiB, about 5 ms from the page cache."""

MAX_SAVED_STATES = 1
"""The maximum number of states that a step saves: one is as large as the blocks of some 1,000
tokens."""


def sequences_in_step(max_step_tokens: int) -> int:
    """Return the maximum number of sequences in a step of at most ``max_step_tokens``."""
    return min(MAX_STEP_SEQUENCES, max_step_tokens)
