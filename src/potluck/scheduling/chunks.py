"""How long a chunk of a prompt may be while other sequences decode.

A sequence gets its next token only after the preceding steps, and a long chunk makes its step long.
The durations of recent steps therefore determine how many prompt tokens a step may have while the
time between tokens stays within a target. If no sequence decodes, chunks are as long as a step
allows.
"""

from __future__ import annotations

import statistics
from collections import deque

from potluck.types.ranges import DEFAULT_TARGET_STEP_MS
from potluck.types.step import KV_BLOCK_TOKENS

DEFAULT_TARGET_STEP_SECONDS = DEFAULT_TARGET_STEP_MS / 1000

STEP_COST_TOKENS = 32
"""The fixed cost of a step, as a number of prompt tokens: 8 (4 bits) to 40 (BF16 with matrix units)
for reading the weights, and threads that wait for one another on a busy machine."""

LEAST_CHUNK_TOKENS = STEP_COST_TOKENS
"""A prompt is processed at no less than half of the speed at which it is processed alone."""

_UNKNOWN_CHUNK_TOKENS = 128
"""Used if no prompt was measured yet, and sequences are already decoding."""

_NUM_SAMPLES = 7
"""The number of steps of the median, which is not affected by a single slow one."""


class ChunkController:
    """Recent step times, and the resulting chunk size. Not thread-safe.

    Each of ``num_steps_in_flight`` steps may take its part of ``target_seconds``. The fixed cost of
    a step is not measured but assumed to be proportional: from short chunks alone, the two cannot
    be distinguished, and chunks would become shorter and shorter.
    """

    def __init__(self, target_seconds: float, num_steps_in_flight: int) -> None:
        self._target_seconds = target_seconds / num_steps_in_flight
        self._token_seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)

    def record(self, seconds: float, *, num_tokens: int, num_chunk_tokens: int) -> None:
        """Record a step that took ``seconds`` from the end of the one before.

        ``num_chunk_tokens`` of its ``num_tokens`` were of prompts.
        """
        if num_chunk_tokens >= KV_BLOCK_TOKENS:
            self._token_seconds.append(seconds / (STEP_COST_TOKENS + num_tokens))

    def most_tokens(self, num_decodes: int) -> int:
        """Return the maximum number of prompt tokens in a step that has ``num_decodes`` other
        tokens.
        """
        if not self._token_seconds:
            return _UNKNOWN_CHUNK_TOKENS
        num_tokens = self._target_seconds / max(statistics.median(self._token_seconds), 1e-9)
        num_left = int(num_tokens) - STEP_COST_TOKENS - num_decodes
        return max(LEAST_CHUNK_TOKENS, num_left // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS)
