"""How long recent steps take, by kind: in the long run, compared with the past, and typically.

Pure: callers provide the time. A worker measures its stage, for placement by speed and to find a
stage that has become slow; a coordinator measures the steps through all stages, for deadlines.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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

_NUM_TYPICAL = 16
"""The number of steps of a kind that are kept for the median: a slow outlier has no effect."""
_LEAST_TYPICAL = 8
"""The minimum for a median of steps."""

BLOCK_SECONDS = 1.0
"""Ten quota periods (100 ms by default), so that one step more or less that waits for the next
period changes a mean by only a few percent."""

_NUM_BLOCKS = 11
"""Few enough that a change is known within six seconds of steady work."""

SAMPLE_SECONDS = 0.05
"""At most one step is compared with the past in this time, so that short ones cost little."""

PERIOD_SECONDS = 10.0
"""The past has one median for each period of this length in which a kind of step was sampled."""

_NUM_PERIODS = 360
"""An hour of steady use. A quarter of it determines the usual time, so that a machine that stays
slow counts as slow for three quarters of an hour, and single events do not matter."""

_LEAST_PERIODS = 2
_LEAST_PERIOD_SAMPLES = 8
"""The minimum past of a kind of step: the first steps touch cold memory."""
_MAX_PERIOD_SAMPLES = 64

_NUM_COMPARED = 16
_FORGET_SLOWDOWN_SECONDS = 60.0
"""After this long without steps, the current speed is unknown."""


@dataclass(slots=True)
class Block:
    """Sums over the steps of a block of time."""

    started_at: float
    count: int = 0
    seconds: float = 0.0
    num_sequences: int = 0
    num_tokens: int = 0
    context_tokens: int = 0


class BlockMeans:
    """How long a repeated operation takes: means over blocks of time, for their median.

    Under a CPU quota most steps are fast, and some wait for the next period: a median of steps
    would be much too short, and occasional samples would mostly be of those that wait. A mean over
    several periods is what steps take in the long run. Occasional disturbances spoil some blocks,
    but not their median.

    The first step is left out: it touches cold memory. ``add`` is for one thread, the rest for any.
    """

    __slots__ = ("_closed", "_is_warm", "_open", "latest_at")

    def __init__(self) -> None:
        self._closed: deque[Block] = deque(maxlen=_NUM_BLOCKS)
        self._open: Block | None = None
        self._is_warm = False
        self.latest_at = float("-inf")

    def add(
        self,
        seconds: float,
        at: float,
        *,
        num_sequences: int = 0,
        num_tokens: int = 0,
        context_tokens: int = 0,
    ) -> None:
        """Count a step that took ``seconds`` and ended at ``at``."""
        self.latest_at = at
        if not self._is_warm:
            self._is_warm = True
            return
        block = self._open
        if block is None:
            block = self._open = Block(at - seconds)
        block.count += 1
        block.seconds += seconds
        block.num_sequences += num_sequences
        block.num_tokens += num_tokens
        block.context_tokens += context_tokens
        if at - block.started_at >= BLOCK_SECONDS:
            self._closed.append(block)
            self._open = None

    def blocks(self) -> list[Block]:
        """Return the latest blocks; an unfinished one only if there is no other."""
        closed, opened = list(self._closed), self._open
        return closed or ([opened] if opened is not None else [])


class _Kind(NamedTuple):
    """What steps have in common that take about the same time.

    This is the number of sequences, exactly or by its binary order of magnitude, that of the tokens
    (0 if each sequence decodes one), and that of the mean depth. Steps that score a prompt or
    verify drafts are not ``is_plain``: their heads compute more rows.
    """

    sequences: int
    tokens: int
    depth: int
    is_plain: bool


class _Past:
    """The usual time of one kind of step: the lower quartile of medians over periods."""

    __slots__ = ("_medians", "_samples", "_started_at", "usual_seconds")

    def __init__(self, at: float) -> None:
        self.usual_seconds: float | None = None
        self._started_at = at
        self._samples: list[float] = []
        self._medians: deque[float] = deque(maxlen=_NUM_PERIODS)

    def add(self, seconds: float, at: float) -> None:
        samples = self._samples
        if at - self._started_at >= PERIOD_SECONDS and len(samples) >= _LEAST_PERIOD_SAMPLES:
            self._medians.append(statistics.median(samples))
            if len(self._medians) >= _LEAST_PERIODS:
                ordered = sorted(self._medians)
                self.usual_seconds = ordered[(len(ordered) - 1) // 4]
            self._started_at = at
            samples = self._samples = []
        if len(samples) < _MAX_PERIOD_SAMPLES:
            samples.append(seconds)


@dataclass(slots=True)
class _History:
    """The recent steps of one kind."""

    past: _Past
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_TYPICAL))
    means: BlockMeans = field(default_factory=BlockMeans)


class StepTimes:
    """The times of the steps of one stage, or of all stages. Mutable.

    Steps that take less than ``least_seconds`` are recorded only while there are longer ones of
    their kind, for readers that need no times of short ones: while all are short, recording one
    costs a comparison. ``record`` and ``typical_seconds`` are for one thread, the rest for any.
    """

    def __init__(self, *, least_seconds: float = 0.0) -> None:
        self._least_seconds = least_seconds
        self._histories: dict[_Kind, _History] = {}
        self._sample_at = float("-inf")
        self._compared_at = float("-inf")
        self._compared: deque[float] = deque(maxlen=_NUM_COMPARED)

    def record(self, step: Step, seconds: float, *, at: float) -> None:
        """Record a step that took ``seconds`` and ended at ``at``.

        This takes about a microsecond, and a few for eight sequences.
        """
        num_sequences = len(step.slices)
        is_short = seconds < self._least_seconds
        if not num_sequences or (is_short and not self._histories):
            return
        kind, num_tokens, context_tokens = _kind_of(step)
        history = self._histories.get(kind)
        if history is None:
            if is_short:
                return
            self._make_room()
            history = self._histories[kind] = _History(_Past(at))
        elif at - history.means.latest_at > FORGET_SECONDS:
            history.means = BlockMeans()
        history.latest.append(seconds)
        history.means.add(
            seconds,
            at,
            num_sequences=num_sequences,
            num_tokens=num_tokens,
            context_tokens=context_tokens,
        )
        if at >= self._sample_at:
            self._sample_at = at + SAMPLE_SECONDS
            self._compare(history.past, seconds, at)
        latest = history.latest
        if is_short and len(latest) == _NUM_TYPICAL and max(latest) < self._least_seconds:
            del self._histories[kind]

    def _compare(self, past: _Past, seconds: float, at: float) -> None:
        if past.usual_seconds is not None:
            if at - self._compared_at > _FORGET_SLOWDOWN_SECONDS:
                self._compared.clear()
            self._compared.append(seconds / past.usual_seconds)
            self._compared_at = at
        past.add(seconds, at)

    def _make_room(self) -> None:
        histories = self._histories
        if len(histories) >= _MAX_KINDS:
            del histories[min(histories, key=lambda kind: histories[kind].means.latest_at)]

    def typical_seconds(self, step: Step) -> float:
        """Return the median of recent steps of the same kind; 0 if there were too few."""
        history = self._histories.get(_kind_of(step)[0])
        if history is None or len(history.latest) < _LEAST_TYPICAL:
            return 0.0
        return statistics.median(history.latest)

    def slowdown(self, now: float) -> float | None:
        """Return how many times longer recent steps take than comparable ones of the last hour.

        That is about 1 for a stage that is as fast as before, and None while too little is known. A
        machine that throttles, swaps or shares its cores with a new process still computes, so
        nothing fails, but it slows its whole deployment down. A stage is only compared with itself.
        """
        recent = tuple(self._compared)
        if len(recent) < _NUM_COMPARED or now - self._compared_at > _FORGET_SLOWDOWN_SECONDS:
            return None
        return statistics.median(recent)

    def of_stage(self, shard: Shard, now: float) -> tuple[StepTime, ...]:
        """Return the times of each kind of step with enough samples. ``shard`` is the stage's.

        Times of steps grow with their tokens and depths, so the means of each correspond to one
        another among steps of one kind, which differ in them by less than a factor of two.
        """
        return tuple(self._of_stage(shard, now))

    def _of_stage(self, shard: Shard, now: float) -> Iterator[StepTime]:
        # a single call, because the other thread may add to them
        for kind, history in list(self._histories.items()):
            means = history.means
            blocks = means.blocks()
            count = sum(block.count for block in blocks)
            if count < LEAST_SAMPLES or not kind.is_plain:
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
                num_tokens=max(tokens, sequences + 1) if kind.tokens else sequences,
                context_tokens=max(1, round(context / max(1, num_sequences))),
                seconds=statistics.median(block.seconds / max(1, block.count) for block in blocks),
                num_samples=count,
                age_seconds=max(0.0, now - means.latest_at),
            )


def _kind_of(step: Step) -> tuple[_Kind, int, int]:
    """Return the kind of a step, its tokens, and the sum of its sequences' depths after it."""
    num_tokens = context_tokens = 0
    is_plain = True
    for part in step.slices:
        count = len(part.tokens)
        num_tokens += count
        context_tokens += part.start_position + count
        if part.score_from is not None or part.num_drafts:
            is_plain = False
    num_sequences = len(step.slices)
    if num_sequences <= _EXACT_SEQUENCES:
        sequences = num_sequences
    else:
        sequences = _EXACT_SEQUENCES + num_sequences.bit_length()
    kind = _Kind(
        sequences,
        0 if num_tokens == num_sequences else num_tokens.bit_length(),
        (context_tokens // max(1, num_sequences)).bit_length(),
        is_plain,
    )
    return kind, num_tokens, context_tokens
