"""A pipeline that computes nothing but checks everything the scheduler promises.

Its cache remembers which token was written at which position of which block; the next token is a
hash of all that the block table shows. A wrong table, a position skipped or a block that two
sequences write to gives other tokens than ``expected_tokens``.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SampledToken,
    SequenceSlice,
    Step,
    StepId,
)


def next_token(history: Sequence[int]) -> int:
    """A token in ``[0, 1000)`` that depends on the whole history."""
    return zlib.crc32(",".join(map(str, history)).encode()) % 1000


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What the toy model writes after ``prompt``."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


def toy_score(history: Sequence[int], token: int) -> float:
    """What the toy model says of ``token`` after ``history``."""
    return -next_token([*history, token]) / 1000


def toy_vector(history: Sequence[int]) -> bytes:
    """The toy model's vector of ``history``: four numbers, the first of which is its length."""
    return struct.pack("<4f", len(history), next_token(history), history[0], history[-1])


def as_far_as_right(part: SequenceSlice, samples: Iterable[SampledToken]) -> list[SampledToken]:
    """Return what is sampled up to and including the first token that is not the draft."""
    right = []
    for sample in samples:
        right.append(sample)
        index = sample.position - part.start_position
        is_draft = len(part.tokens) - part.num_drafts <= index < len(part.tokens)
        if is_draft and part.tokens[index] != sample.token:
            break
    return right


class ToyPipeline:
    """Takes steps and runs them, oldest first, when asked."""

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int], tuple[int, int]] = {}
        self._steps: deque[Step] = deque()
        self._cancelled: set[StepId] = set()
        self.opened: set[int] = set()
        self._last: dict[int, tuple[int, int]] = {}  # position and token sampled last
        self.num_computed = 0
        """Tokens of all steps that were run."""
        self.num_skipped = 0
        """Steps that were cancelled in time, of which every second one is not run."""

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: Step) -> None:
        """Queue a step."""
        for each in self._steps:
            if each.step_id in step.cancels:
                bare = Step(step_id=each.step_id, slices=each.slices, cancels=each.cancels)
                assert each == bare, "more than results is lost with it"
                self._cancelled.add(each.step_id)
        read: list[int] = []
        written: list[int] = [copy.target for copy in step.copies]
        for part in step.slices:
            first = part.start_position // KV_BLOCK_TOKENS
            read += part.block_table[:first]
            written += set(part.block_table[first:]).difference(copy.target for copy in step.copies)
        assert len(set(written)) == len(written), "a block is written for two sequences of one step"
        assert not set(read) & set(written), "a block is written that another sequence reads"
        self._steps.append(step)

    def run_oldest(self) -> tuple[StepId, tuple[SampledToken, ...]]:
        """Run the oldest step."""
        step = self._steps.popleft()
        if step.step_id in self._cancelled:
            self._cancelled.remove(step.step_id)
            self.num_skipped += 1
            if self.num_skipped % 2:
                return step.step_id, ()
        for copy in step.copies:
            for offset in range(KV_BLOCK_TOKENS):
                row = self._cache.get((copy.source, offset))
                if row is not None:
                    self._cache[copy.target, offset] = row
        self.num_computed += step.num_tokens
        for opening in step.opened:
            assert opening.sequence_id not in self.opened, "opened twice"
            self.opened.add(opening.sequence_id)
            self._last.pop(opening.sequence_id, None)
        sampled = [sample for part in step.slices for sample in self._run(part)]
        assert self.opened.issuperset(step.closed), "closed and not open"
        self.opened.difference_update(step.closed)
        return step.step_id, tuple(sampled)

    def _run(self, part: SequenceSlice) -> list[SampledToken]:
        for position, token in enumerate(part.tokens, part.start_position):
            block = part.block_table[position // KV_BLOCK_TOKENS]
            self._cache[block, position % KV_BLOCK_TOKENS] = (position, token)
        if part.pooling is not None:
            self.opened.add(part.sequence_id)
        if not part.wanted and not part.ends_pooling:
            return []
        assert part.sequence_id in self.opened
        before = (part.start_position, part.tokens[0])
        if part.begins_with_draft and self._last.get(part.sequence_id) != before:
            return []  # and positions before it may have been skipped
        history = []
        for position in range(part.start_position + len(part.tokens)):
            block = part.block_table[position // KV_BLOCK_TOKENS]
            written, token = self._cache[block, position % KV_BLOCK_TOKENS]
            assert written == position
            history.append(token)
        if part.ends_pooling:
            return [
                SampledToken(
                    sequence_id=part.sequence_id,
                    position=position,
                    token=history[-1],
                    vector=toy_vector(history),
                )
            ]
        samples = (self._follows(part, index, history) for index in part.wanted)
        right = as_far_as_right(part, samples)
        self._last[part.sequence_id] = (right[-1].position, right[-1].token)
        return right

    def _follows(self, part: SequenceSlice, index: int, history: list[int]) -> SampledToken:
        position = part.start_position + index + 1
        known = part.known_after(index)
        return SampledToken(
            sequence_id=part.sequence_id,
            position=position,
            token=next_token(history[:position]) if known is None else known,
            logprob=None if known is None else toy_score(history[:position], known),
        )


class DiskPipeline(ToyPipeline):
    """A toy pipeline of stages that keep blocks on ``disks``, one each, which may lose any.

    ``num_restored`` is what the last step restored. A disk keeps a block only if ``keeps`` says so,
    which is asked with its index.
    """

    def __init__(
        self, disks: Sequence[dict[bytes, list[tuple[int, int]]]], keeps: Callable[[int], bool]
    ) -> None:
        super().__init__()
        self._disks = disks
        self._keeps = keeps
        self.num_restored = 0

    def run_oldest(self) -> tuple[StepId, tuple[SampledToken, ...]]:
        """Run the oldest step."""
        step = self._steps[0]
        assert not step.restores or step == Step(
            step_id=step.step_id, slices=(), restores=step.restores
        )
        for block in step.saves:
            rows = [self._cache[block.block, offset] for offset in range(KV_BLOCK_TOKENS)]
            for index, disk in enumerate(self._disks):
                assert disk.get(block.hash, rows) == rows, "two contents have one name"
                if self._keeps(index):
                    disk[block.hash] = rows
        restored = step.restores
        for disk in self._disks:
            there = (i for i, block in enumerate(restored) if block.hash not in disk)
            restored = restored[: next(there, len(restored))]
        for block in step.restores:
            kept = block in restored
            for offset in range(KV_BLOCK_TOKENS):
                row = self._disks[0][block.hash][offset] if kept else (-1, -1)
                self._cache[block.block, offset] = row
        self.num_restored = len(restored)
        return super().run_oldest()
