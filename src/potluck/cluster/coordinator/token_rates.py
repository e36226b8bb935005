"""How many tokens per second a deployment generates, as its coordinator sees steps come back.

Pure: callers have the clock. Between two tokens of a sequence every other sequence that decodes is
given one as well, so the time of such a round and the tokens that came in it give the rate and the
number of streams. A round in which a prompt was computed says nothing of decoding and is left out.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence

from potluck.types.gateway import TokenSpeed
from potluck.types.step import SequenceId, Step

_NUM_ROUNDS = 64
"""Of one stream, and of several: the median counts, so that what is slow once changes nothing."""

LEAST_ROUNDS = 8

_RECENT_SECONDS = 60.0
"""Rounds that ended so long before the last one say nothing of the present."""

_MAX_FOLLOWED = 256
"""Sequences, of which those that have ended are forgotten together."""

_Round = tuple[float, int, float]


class TokenRates:
    """``came`` is for one thread, ``speed`` for any."""

    def __init__(self) -> None:
        self._followed: dict[SequenceId, tuple[int, float, int]] = {}
        self._num_tokens = 0
        self._prompted_at = float("-inf")
        self._alone: deque[_Round] = deque(maxlen=_NUM_ROUNDS)
        self._together: deque[_Round] = deque(maxlen=_NUM_ROUNDS)

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
        rounds = self._alone if num_streams == 1 else self._together
        rounds.append((at, num_streams, at - before[1]))

    def speed(self, num_streams: int | None = None) -> TokenSpeed:
        """Return the rates of the last steps; with ``num_streams`` together if there are any."""
        alone = _recent(self._alone)
        together = _recent(self._together)
        counts = Counter(each[1] for each in together)
        if counts and counts[num_streams or 0] < LEAST_ROUNDS:
            num_streams = counts.most_common(1)[0][0]
        return TokenSpeed(
            tokens_per_second=_rate(alone),
            total_tokens_per_second=_rate([each for each in together if each[1] == num_streams]),
            num_streams=num_streams if counts else None,
        )


def _recent(rounds: deque[_Round]) -> list[_Round]:
    found = list(rounds)  # one call: another thread adds to them
    return [each for each in found if found[-1][0] - each[0] <= _RECENT_SECONDS]


def _rate(rounds: Sequence[_Round]) -> float | None:
    if len(rounds) < LEAST_ROUNDS:
        return None
    seconds = statistics.median(each[2] for each in rounds)
    return rounds[-1][1] / seconds if seconds > 0 else None
