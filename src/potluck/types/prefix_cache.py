"""Statistics of prefix caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class PrefixTotals:
    """Totals of one deployment's prefix cache since its coordinator started.

    Mutable, for the scheduler, which counts; everyone else has a copy.

    ``num_admissions`` counts how often a sequence was given cache blocks, which is more than once
    if it was preempted or the stages were replaced. ``num_hits`` admissions found part of their
    tokens in the cache, ``num_saved_tokens`` in total. ``num_evictions`` counts cached blocks that
    were given to other sequences, and ``num_restored_tokens`` the tokens read from the stages'
    disks.

    For models with state: ``num_checkpoints`` were made, ``num_checkpoint_hits`` sequences resumed
    from one, and ``num_checkpoint_evictions`` were evicted for other sequences.
    ``num_uncovered_tokens`` were recomputed although their keys and values were cached, because
    there was no checkpoint after them.
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
