"""How long a chunk of a prompt may be while other sequences decode.

A sequence gets its next token no earlier than the steps before it are through, and a long chunk
makes its step long. So what steps took lately says how many tokens of prompts a step may have for
the time between tokens to stay within a target. Where nobody decodes, chunks are as long as a step
allows.
"""

from __future__ import annotations

import statistics
from collections import deque

from potluck.types.ranges import DEFAULT_TARGET_STEP_MS
from potluck.types.step import KV_BLOCK_TOKENS

DEFAULT_TARGET_STEP_SECONDS = DEFAULT_TARGET_STEP_MS / 1000

STEP_COST_TOKENS = 32
"""A step takes as long as so many tokens of a prompt before it has one: 8 (4 bits) to 40 (BF16 with
matrix units) for reading the weights, and threads that wait for one another on a busy machine."""

LEAST_CHUNK_TOKENS = STEP_COST_TOKENS
"""A prompt is read at no less than half of the speed that it is read at alone."""

_UNKNOWN_CHUNK_TOKENS = 128
"""Where no prompt was measured yet, and somebody decodes already."""

_NUM_SAMPLES = 7
"""The median of so many steps is not moved by one that something else held up."""


class ChunkController:
    """What steps took lately, and the chunk that follows from it. Not thread-safe.

    Each of ``num_steps_in_flight`` steps may take its part of ``target_seconds``. What a step costs
    besides its tokens is not measured but taken to be in proportion: with only short chunks at
    hand, the two cannot be told apart, and chunks would become shorter and shorter.
    """

    def __init__(self, target_seconds: float, num_steps_in_flight: int) -> None:
        self._target_seconds = target_seconds / num_steps_in_flight
        self._token_seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)

    def took(self, seconds: float, *, num_tokens: int, num_chunk_tokens: int) -> None:
        """A step took ``seconds`` from the end of the one before.

        Of its ``num_tokens``, ``num_chunk_tokens`` were of prompts.
        """
        if num_chunk_tokens >= KV_BLOCK_TOKENS:
            self._token_seconds.append(seconds / (STEP_COST_TOKENS + num_tokens))

    def most_tokens(self, num_decodes: int) -> int:
        """The most tokens of prompts in a step that has ``num_decodes`` other tokens."""
        if not self._token_seconds:
            return _UNKNOWN_CHUNK_TOKENS
        num_tokens = self._target_seconds / max(statistics.median(self._token_seconds), 1e-9)
        num_left = int(num_tokens) - STEP_COST_TOKENS - num_decodes
        return max(LEAST_CHUNK_TOKENS, num_left // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS)
