"""How long a stage's recent steps take, by kind, for placement by speed.

Pure: callers provide the time. ``worker.pace`` compares a stage with its own past, by samples;
these figures are absolute, and cover all steps (see ``cluster.block_means``).
"""

from __future__ import annotations

from collections.abc import Iterator

from potluck.cluster.block_means import BlockMeans, median_seconds
from potluck.types.program import Shard
from potluck.types.speed import StepTime
from potluck.types.step import Step

LEAST_SAMPLES = 3
"""The minimum number of steps of a kind for which times are reported."""

FORGET_SECONDS = 300.0
"""The times of a kind that has not occurred for this long are no longer meaningful."""

_MAX_KINDS = 64
"""A deployment has about 20: some numbers of sequences by some depths. The least recently used one
is dropped."""

_EXACT_SEQUENCES = 8
"""Decodes of up to this many sequences are distinguished: placement knows the time of each."""

_Kind = tuple[int, int, int]


class RecentSteps:
    """The recent steps of one stage. ``record`` is for its compute thread, ``times`` for any."""

    def __init__(self) -> None:
        self._kinds: dict[_Kind, BlockMeans] = {}

    def record(self, step: Step, seconds: float, *, at: float) -> None:
        """Record a step that took ``seconds`` and ended at ``at``.

        This takes half a microsecond, and one for eight sequences.
        """
        slices = step.slices
        num_tokens = context = 0
        for part in slices:
            if part.score_from is not None or part.num_drafts:
                return  # the head computes more rows, and drafts are decoded several at a time
            count = len(part.tokens)
            num_tokens += count
            context += part.start_position + count
        num_sequences = len(slices)
        if not num_sequences:
            return
        kind = _kind(num_sequences, num_tokens, context)
        means = self._kinds.get(kind)
        if means is None or at - means.latest_at > FORGET_SECONDS:
            if means is None:
                self._make_room()
            means = self._kinds[kind] = BlockMeans()
        means.add(
            seconds,
            at,
            num_sequences=num_sequences,
            num_tokens=num_tokens,
            context_tokens=context,
        )

    def times(self, shard: Shard, now: float) -> tuple[StepTime, ...]:
        """Return the times of each kind of step with enough samples. ``shard`` is the stage's.

        Times of steps grow with their tokens and depths, so the means of each correspond to one
        another among steps of one kind, which differ in them by less than a factor of two.
        """
        return tuple(self._times(shard, now))

    def _times(self, shard: Shard, now: float) -> Iterator[StepTime]:
        # a single call, because the other thread may add to them
        for kind, means in list(self._kinds.items()):
            blocks = means.blocks()
            count = sum(block.count for block in blocks)
            if count < LEAST_SAMPLES:
                continue
            num_sequences = sum(block.num_sequences for block in blocks)
            num_tokens = sum(block.num_tokens for block in blocks)
            context = sum(block.context_tokens for block in blocks)
            sequences = max(1, round(num_sequences / count))
            tokens = round(num_tokens / count)
            yield StepTime(
                num_layers=shard.end_layer - shard.start_layer,
                has_embedding=shard.has_embedding,
                has_head=shard.has_head,
                num_sequences=sequences,
                num_tokens=sequences if _is_decode(kind) else max(tokens, sequences + 1),
                context_tokens=max(1, round(context / max(1, num_sequences))),
                seconds=median_seconds(blocks),
                num_samples=count,
                age_seconds=max(0.0, now - means.latest_at),
            )

    def _make_room(self) -> None:
        if len(self._kinds) >= _MAX_KINDS:
            del self._kinds[min(self._kinds, key=lambda kind: self._kinds[kind].latest_at)]


def _kind(num_sequences: int, num_tokens: int, context: int) -> _Kind:
    """Return the key of steps that take about the same time.

    This is the number of sequences, exactly or by its binary order of magnitude, that of the tokens
    unless it equals the number of sequences, and that of the mean depth.
    """
    if num_sequences <= _EXACT_SEQUENCES:
        sequences = num_sequences
    else:
        sequences = _EXACT_SEQUENCES + num_sequences.bit_length()
    tokens = 0 if num_tokens == num_sequences else num_tokens.bit_length()
    return sequences, tokens, (context // num_sequences).bit_length()


def _is_decode(kind: _Kind) -> bool:
    return kind[1] == 0
