"""How many tokens per second a deployment generates, as its coordinator sees steps come back.

Pure: callers have the clock. Between two tokens of a sequence every other sequence that decodes is
given one as well, so the time of such a round and the tokens that came in it give the rate and the
number of streams. A round in which a prompt was computed says nothing of decoding and is left out.
"""

from __future__ import annotations

from potluck.cluster.block_means import BlockMeans, median_seconds
from potluck.types.gateway import TokenSpeed
from potluck.types.step import SequenceId, Step

LEAST_ROUNDS = 8

_RECENT_SECONDS = 60.0
"""Rounds that ended so long before the last ones say nothing of the present."""

_MAX_FOLLOWED = 256
"""Sequences, of which those that have ended are forgotten together."""

_MAX_KINDS = 64
"""Numbers of streams."""


class TokenRates:
    """``came`` is for one thread, ``speed`` for any."""

    def __init__(self) -> None:
        self._followed: dict[SequenceId, tuple[int, float, int]] = {}
        self._num_tokens = 0
        self._prompted_at = float("-inf")
        self._rounds: dict[int, BlockMeans] = {}

    def came(self, step: Step, at: float) -> None:
        """Note that the result of a step is there."""
        slices = step.slices
        for part in slices:
            if len(part.tokens) > 1 or not part.sample:
                self._prompted_at = at
                return
        if not slices:
            return
        self._num_tokens += len(slices)
        first = slices[0]
        before = self._followed.get(first.sequence_id)
        if before is None and len(self._followed) >= _MAX_FOLLOWED:
            self._followed.clear()
        self._followed[first.sequence_id] = (first.start_position, at, self._num_tokens)
        if before is None or before[0] + 1 != first.start_position or before[1] < self._prompted_at:
            return
        num_streams = self._num_tokens - before[2]
        rounds = self._rounds.get(num_streams)
        if rounds is None:
            if len(self._rounds) >= _MAX_KINDS:
                del self._rounds[min(self._rounds, key=lambda each: self._rounds[each].latest_at)]
            rounds = self._rounds[num_streams] = BlockMeans()
        rounds.add(at - before[1], at)

    def speed(self, num_streams: int | None = None) -> TokenSpeed:
        """Return the rates of the last steps; with ``num_streams`` together if there are any.

        Otherwise with as many as there were most steps of.
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
    seconds = median_seconds(blocks)
    return num_streams / seconds if seconds > 0 else None
