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

LEAST_CHUNK_TOKENS = KV_BLOCK_TOKENS

_UNKNOWN_CHUNK_TOKENS = 128
"""Where no prompt was measured yet, and somebody decodes already."""

_NUM_SAMPLES = 7
"""The median of so many steps is not moved by one that something else held up."""


class ChunkController:
    """What steps took lately, and the chunk that follows from it. Not thread-safe.

    Each of ``num_steps_in_flight`` steps may take its part of ``target_seconds``, or twice as long
    as a step without a chunk, if that is more: a slow machine would otherwise read prompts in
    crumbs, and read its weights for each of them.
    """

    def __init__(self, target_seconds: float, num_steps_in_flight: int) -> None:
        self._target_seconds = target_seconds / num_steps_in_flight
        self._decode_seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._token_seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)

    def took(self, seconds: float, *, num_chunk_tokens: int) -> None:
        """A step took ``seconds`` from the end of the one before; it had so many prompt tokens."""
        if num_chunk_tokens == 0:
            self._decode_seconds.append(seconds)
        elif num_chunk_tokens >= LEAST_CHUNK_TOKENS:
            # The part of decodes is little beside a long chunk, and known when chunks are short.
            rest = max(seconds - self._decode_step_seconds, seconds / 2)
            self._token_seconds.append(rest / num_chunk_tokens)

    @property
    def most_tokens(self) -> int:
        """The most tokens of prompts in a step while somebody decodes."""
        if not self._token_seconds:
            return _UNKNOWN_CHUNK_TOKENS
        decode = self._decode_step_seconds
        left = max(self._target_seconds - decode, decode)
        num_tokens = int(left / max(statistics.median(self._token_seconds), 1e-9))
        return max(LEAST_CHUNK_TOKENS, num_tokens // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS)

    @property
    def _decode_step_seconds(self) -> float:
        return statistics.median(self._decode_seconds) if self._decode_seconds else 0.0
