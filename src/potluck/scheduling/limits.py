"""Limits on a scheduler's steps and on the capacity of its stages, and its load."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.chunks import DEFAULT_TARGET_STEP_SECONDS
from potluck.types.drafting import DraftTotals
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.states import StateSlots

DEFAULT_CONTEXT_TOKENS = 4096
"""Used if the model allows it: enough for a long chat, and little cache for a large model."""


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
