"""How many tokens per second a deployment generates, from when steps return to its coordinator.

Pure: callers have the clock. Between two tokens of a sequence every other decoding sequence gets
one as well, so the time of such a round and its number of tokens give the rate and the number of
streams. With drafts a sequence gets several tokens at a time, which all count. A round in which a
prompt was computed does not reflect decoding and is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from potluck.scheduling.step_times import BlockMeans
from potluck.types.documents.cluster import TokenSpeed
from potluck.types.step import SampledToken, SequenceId, Step

LEAST_ROUNDS = 8

_RECENT_SECONDS = 60.0
"""Rounds that ended this long before the last ones are too old to count."""

_MAX_FOLLOWED = 256
"""The maximum number of sequences that are followed; ended ones are removed in batches."""

_MAX_KINDS = 64
"""The maximum number of different stream counts."""


class _Followed(NamedTuple):
    """The last result of a sequence, and the totals at that time."""

    position: int
    at: float
    num_results: int
    num_tokens: int


class TokenRates:
    """Generation rates. ``record`` is for one thread, ``speed`` for any."""

    def __init__(self) -> None:
        self._followed: dict[SequenceId, _Followed] = {}
        self._num_results = 0  # of slices that have any
        self._num_tokens = 0
        self._prompted_at = float("-inf")
        self._rounds: dict[int, BlockMeans] = {}

    def record(self, step: Step, sampled: Sequence[SampledToken], at: float) -> None:
        """Record that the result of a step has arrived.

        A step in which no draft was right does not advance its sequence, and does not end its
        round.
        """
        for part in step.slices:
            if not part.sample or (len(part.tokens) > 1 and not part.num_drafts):
                self._prompted_at = at
                return
        if not sampled:
            return
        first = sampled[0]
        sequence_id, last_position = first.sequence_id, first.position
        num_results, latest = 0, None
        for each in sampled:
            if each.sequence_id != latest:
                latest = each.sequence_id
                num_results += 1
            if latest == sequence_id:
                last_position = each.position
        self._num_results += num_results
        self._num_tokens += len(sampled)
        before = self._followed.get(sequence_id)
        if before is None and len(self._followed) >= _MAX_FOLLOWED:
            self._followed.clear()
        now = _Followed(last_position, at, self._num_results, self._num_tokens)
        self._followed[sequence_id] = now
        if before is None or before.position + 1 != first.position or before.at < self._prompted_at:
            return
        num_streams = now.num_results - before.num_results
        rounds = self._rounds.get(num_streams)
        if rounds is None:
            if len(self._rounds) >= _MAX_KINDS:
                del self._rounds[min(self._rounds, key=lambda each: self._rounds[each].latest_at)]
            rounds = self._rounds[num_streams] = BlockMeans()
        rounds.add(at - before.at, at, num_tokens=now.num_tokens - before.num_tokens)

    def speed(self, num_streams: int | None = None) -> TokenSpeed:
        """Return the rates of recent steps, with ``num_streams`` sequences if there were any.

        Otherwise, return those for the most frequent number of streams.
        """
        rounds = dict(self._rounds)  # one call: another thread adds to them
        together = {streams: each for streams, each in rounds.items() if streams > 1}
        counts = {
            streams: sum(block.count for block in each.blocks())
            for streams, each in _recent(together).items()
        }
        if counts and counts.get(num_streams or 0, 0) < LEAST_ROUNDS:
            num_streams = max(counts, key=lambda streams: counts[streams])
        total = _rate(num_streams, rounds) if num_streams in counts else None
        return TokenSpeed(
            tokens_per_second=_rate(1, rounds),
            total_tokens_per_second=total,
            num_streams=num_streams if total is not None else None,
        )


def _recent(rounds: dict[int, BlockMeans]) -> dict[int, BlockMeans]:
    latest_at = max((each.latest_at for each in rounds.values()), default=0.0)
    return {
        streams: each
        for streams, each in rounds.items()
        if latest_at - each.latest_at <= _RECENT_SECONDS
    }


def _rate(num_streams: int | None, rounds: dict[int, BlockMeans]) -> float | None:
    if num_streams is None or num_streams not in rounds:
        return None
    blocks = rounds[num_streams].blocks()
    if sum(block.count for block in blocks) < LEAST_ROUNDS:
        return None
    seconds = statistics.median(block.seconds / block.num_tokens for block in blocks)
    return 1.0 / seconds if seconds > 0 else None
