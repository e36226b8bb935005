"""How long a stage's steps take lately, by kind, for those who place layers by speed.

Pure: callers have the clock. Times are medians, so that a step that was interrupted changes
nothing. ``worker.pace`` compares a stage with its own past; these figures are absolute.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from potluck.types.program import Shard
from potluck.types.speed import StepTime
from potluck.types.step import Step

SAMPLE_SECONDS = 0.05
"""At most one decode in this time is looked at, so that short ones cost a comparison. Prompts are
rare, and take longer: each of their steps is looked at."""

_NUM_KEPT = 33
"""Samples of a kind. At one in ``SAMPLE_SECONDS`` they span two seconds of steady work, so that a
stage that has become slow is known to be within one."""

LEAST_SAMPLES = 3
"""The median of three ignores one outlier, such as a first step that touches cold memory."""

FORGET_SECONDS = 300.0
"""Samples of a kind that does not occur for so long say little of how fast it is then."""

_MAX_KINDS = 64
"""A deployment has about 20: some numbers of sequences by some depths. The one that was not seen
for longest makes room."""

_EXACT_SEQUENCES = 8
"""Decodes of up to so many sequences are told apart: placement knows the time of each."""

_Kind = tuple[int, int, int]


@dataclass(slots=True)
class _Recent:
    """Of one kind: seconds, sequences, tokens and the sum of contexts of the last steps."""

    latest_at: float
    samples: deque[tuple[float, int, int, int]] = field(
        default_factory=lambda: deque(maxlen=_NUM_KEPT)
    )


class RecentSteps:
    """Of one stage. ``took`` is for its compute thread, ``times`` for any."""

    def __init__(self) -> None:
        self._kinds: dict[_Kind, _Recent] = {}
        self._next_at = 0.0

    def took(self, step: Step, seconds: float, *, at: float) -> None:
        """Note that a step was computed in ``seconds``, until ``at``."""
        slices = step.slices
        if at < self._next_at and not (
            slices and (len(slices[0].tokens) > 1 or len(slices[-1].tokens) > 1)
        ):
            return
        self._next_at = at + SAMPLE_SECONDS
        num_tokens = context = num_wanted = 0
        for part in slices:
            count = len(part.tokens)
            num_tokens += count
            context += part.start_position + count
            num_wanted += part.score_from is not None
        num_sequences = len(slices)
        if not num_sequences or num_wanted:
            return  # where a prompt is scored, the head computes many more rows
        kind = _kind(num_sequences, num_tokens, context)
        recent = self._kinds.get(kind)
        if recent is None:
            self._make_room()
            recent = self._kinds[kind] = _Recent(at)
        elif at - recent.latest_at > FORGET_SECONDS:
            recent.samples.clear()
        recent.latest_at = at
        recent.samples.append((seconds, num_sequences, num_tokens, context))

    def times(self, shard: Shard, now: float) -> tuple[StepTime, ...]:
        """Return the medians of the kinds that were sampled often enough. ``shard`` is the stage's.

        Times of steps grow with their tokens and depths, so the median of each goes with the others
        among steps of one kind, which differ in them by less than a factor of two.
        """
        return tuple(self._times(shard, now))

    def _times(self, shard: Shard, now: float) -> Iterator[StepTime]:
        for recent in list(self._kinds.values()):  # one call: the other thread adds to them
            samples = list(recent.samples)
            if len(samples) < LEAST_SAMPLES:
                continue
            num_sequences = statistics.median_low(sample[1] for sample in samples)
            yield StepTime(
                num_layers=shard.end_layer - shard.start_layer,
                has_embedding=shard.has_embedding,
                has_head=shard.has_head,
                num_sequences=num_sequences,
                num_tokens=statistics.median_low(sample[2] for sample in samples),
                context_tokens=max(
                    1, round(statistics.median(sample[3] / sample[1] for sample in samples))
                ),
                seconds=statistics.median(sample[0] for sample in samples),
                num_samples=len(samples),
                age_seconds=max(0.0, now - recent.latest_at),
            )

    def _make_room(self) -> None:
        if len(self._kinds) >= _MAX_KINDS:
            del self._kinds[min(self._kinds, key=lambda kind: self._kinds[kind].latest_at)]


def _kind(num_sequences: int, num_tokens: int, context: int) -> _Kind:
    """Return what steps have in common that take about as long.

    The number of sequences, exactly or by its binary order of magnitude, that of the tokens unless
    it is the number of sequences, and that of the mean depth.
    """
    if num_sequences <= _EXACT_SEQUENCES:
        sequences = num_sequences
    else:
        sequences = _EXACT_SEQUENCES + num_sequences.bit_length()
    tokens = 0 if num_tokens == num_sequences else num_tokens.bit_length()
    return sequences, tokens, (context // num_sequences).bit_length()
