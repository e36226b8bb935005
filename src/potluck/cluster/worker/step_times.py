"""How long a stage's steps take lately, by kind, for those who place layers by speed.

Pure: callers have the clock. ``worker.pace`` compares a stage with its own past, and looks at a
step now and then; these figures are absolute, and of all steps (see ``cluster.block_means``).
"""

from __future__ import annotations

from collections.abc import Iterator

from potluck.cluster.block_means import BlockMeans, median_seconds
from potluck.types.program import Shard
from potluck.types.speed import StepTime
from potluck.types.step import Step

LEAST_SAMPLES = 3
"""Steps of a kind, of which something is told from then on."""

FORGET_SECONDS = 300.0
"""Steps of a kind that does not occur for so long say little of how fast it is then."""

_MAX_KINDS = 64
"""A deployment has about 20: some numbers of sequences by some depths. The one that was not seen
for longest makes room."""

_EXACT_SEQUENCES = 8
"""Decodes of up to so many sequences are told apart: placement knows the time of each."""

_Kind = tuple[int, int, int]


class RecentSteps:
    """Of one stage. ``took`` is for its compute thread, ``times`` for any."""

    def __init__(self) -> None:
        self._kinds: dict[_Kind, BlockMeans] = {}

    def took(self, step: Step, seconds: float, *, at: float) -> None:
        """Note that a step was computed in ``seconds``, until ``at``.

        This takes half a microsecond, and one for eight sequences.
        """
        slices = step.slices
        num_tokens = context = 0
        for part in slices:
            if part.score_from is not None:
                return  # the head computes many more rows
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
        """Return what steps of each kind take, where there were enough. ``shard`` is the stage's.

        Times of steps grow with their tokens and depths, so the means of each go with one another
        among steps of one kind, which differ in them by less than a factor of two.
        """
        return tuple(self._times(shard, now))

    def _times(self, shard: Shard, now: float) -> Iterator[StepTime]:
        for kind, means in list(self._kinds.items()):  # one call: the other thread adds to them
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


def _is_decode(kind: _Kind) -> bool:
    return kind[1] == 0
