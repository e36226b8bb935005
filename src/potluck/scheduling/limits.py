"""What a scheduler's steps may bring, and what its stages can hold."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.chunks import DEFAULT_TARGET_STEP_SECONDS

DEFAULT_CONTEXT_TOKENS = 4096
"""Used when the model allows it: enough for a long chat, and little cache for a large model."""

MAX_STEP_TOKENS = 512
"""Tokens per step: prefill is bound by arithmetic well before, and scratch stays small."""

MAX_STEP_SEQUENCES = 64
"""Sequences per step: beyond that a CPU step is bound by arithmetic, not by reading weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the stages can hold and what one step may bring.

    ``context_tokens`` is the longest sequence; ``num_blocks`` must hold at least one such.
    ``num_states`` slots hold the states of sequences; 0 for models without state.
    Sequences share the blocks of equal prefixes if ``has_prefix_cache``; then those that the stages
    have on disk can be restored. They are known there by hashes with the ``disk_salt``, which is
    None where the stages do not keep blocks on disk. While somebody decodes, prompts are cut so
    that the time between tokens is about ``target_step_seconds``.
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
            raise ValueError(f"there cannot be {self.num_states} state slots")
        if self.num_blocks < blocks_for(self.context_tokens):
            raise ValueError("the cache holds less than one full context")
