"""What prefix caches have saved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTotals:
    """Totals of one deployment's prefix cache since its coordinator began.

    ``num_admissions`` counts how often a sequence was given cache blocks: more than once where it
    was preempted or the stages were replaced. ``num_hits`` of them found a part of their tokens
    computed before, ``num_saved_tokens`` together. ``num_evictions`` blocks that were cached were
    given to other sequences. ``num_restored_tokens`` were read from the disks of the stages.

    Of models with a state: ``num_checkpoints`` of it were made, ``num_checkpoint_hits`` sequences
    began with one, and ``num_checkpoint_evictions`` were given up for other sequences.
    ``num_uncovered_tokens`` were computed although their keys and values were cached, because no
    checkpoint was after them.
    """

    num_admissions: int = 0
    num_hits: int = 0
    num_saved_tokens: int = 0
    num_evictions: int = 0
    num_restored_tokens: int = 0
    num_checkpoints: int = 0
    num_checkpoint_hits: int = 0
    num_checkpoint_evictions: int = 0
    num_uncovered_tokens: int = 0
