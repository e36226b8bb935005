"""Statistics of a deployed model within an interval of one or a few seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSample:
    """Statistics of one deployed model within one interval; None if nothing was measured.

    ``tokens_per_second`` counts the tokens of all sequences. ``first_token_seconds`` is the mean
    time from arrival at the coordinator to the first token, over the sequences that got it in this
    interval. ``cache_hit_share`` is the fraction of admitted sequences whose prompt was partly in
    the prefix cache, ``draft_acceptance`` the fraction of drafted tokens that were right, and
    ``cache_used_share`` the fraction of cache blocks held by sequences. For each stage,
    ``stage_seconds`` is the mean time of its steps, and ``stage_busy`` the fraction of the interval
    in which it was computing.
    """

    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    num_running: int = 0
    num_waiting: int = 0
    cache_hit_share: float | None = None
    cache_used_share: float | None = None
    draft_acceptance: float | None = None
    stage_seconds: tuple[float | None, ...] = ()
    stage_busy: tuple[float | None, ...] = ()
