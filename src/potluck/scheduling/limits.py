"""Limits on a scheduler's steps and on the capacity of its stages; its load and chunk sizes."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from potluck.scheduling.blocks import blocks_for
from potluck.types.drafting import DraftTotals
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.ranges import DEFAULT_TARGET_STEP_MS
from potluck.types.states import StateSlots
from potluck.types.step import KV_BLOCK_TOKENS

DEFAULT_CONTEXT_TOKENS = 4096
"""Used if the model allows it: enough for a long chat, and little cache for a large model."""


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
    """How long a chunk of a prompt may be while other sequences decode. Not thread-safe.

    A sequence gets its next token only after the preceding steps, and a long chunk makes its step
    long. The durations of recent steps therefore determine how many prompt tokens a step may have
    while the time between tokens stays within a target. If no sequence decodes, chunks are as long
    as a step allows.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the stages can hold, and how large a step may be.

    ``context_tokens`` is the longest sequence; ``num_blocks`` must hold at least one such.
    ``num_states`` slots hold the states of sequences; 0 for models without state. Sequences share
    the blocks of equal prefixes if ``has_prefix_cache``; then those that the stages have on disk
    can be restored. There, they are identified by hashes with the ``disk_salt``, which is None if
    the stages do not store blocks on disk. While other sequences decode, prompts are split so that
    the time between tokens is about ``target_step_seconds``.
    """

    num_blocks: int
    context_tokens: int
    max_step_tokens: int
    max_step_sequences: int
    max_steps_in_flight: int
    has_prefix_cache: bool = True
    disk_salt: bytes | None = None
    target_step_seconds: float = DEFAULT_TARGET_STEP_SECONDS
    num_states: int = 0

    def __post_init__(self) -> None:
        smallest = min(self.max_step_tokens, self.max_step_sequences, self.max_steps_in_flight)
        if smallest < 1 or self.context_tokens < 2 or self.target_step_seconds <= 0:
            raise ValueError(f"limits must be positive: {self}")
        if self.num_states < 0:
            raise ValueError(f"the number of state slots cannot be {self.num_states}")
        if self.num_blocks < blocks_for(self.context_tokens):
            raise ValueError("the cache holds less than one full context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sequences with cache blocks (running) and without (waiting), and free blocks.

    ``num_kept_blocks`` of the free blocks are kept for later sequences with the same prefix;
    ``prefix`` has what that has saved. ``states`` are the slots of a model with state, and
    ``drafts`` the outcome of drafts.
    """

    num_waiting: int
    num_running: int
    num_free_blocks: int
    num_kept_blocks: int = 0
    prefix: PrefixTotals = field(default_factory=PrefixTotals)
    states: StateSlots = field(default_factory=StateSlots)
    drafts: DraftTotals = field(default_factory=DraftTotals)

    @property
    def num_sequences(self) -> int:
        """Return the number of live sequences, running and waiting."""
        return self.num_waiting + self.num_running
