"""Which cache blocks the stages put back from their disks, before they are computed again.

Nobody knows what is on the disks of all stages: they are asked to put back the next few blocks of
a sequence, and say how many they had. One that was missing ends it, and the rest is computed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from potluck.scheduling.block_cache import BlockCache, FullBlock, Restoration
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.sequence import SequenceState
from potluck.types.step import HashedBlock, StepId

MAX_MOVED_BLOCKS = 8
"""That one step restores from the disk of every stage, or saves there beyond what a step computes.
Steps of others wait meanwhile: 4 MiB for a 1B model, some 5 ms from the page cache."""

LEAST_SOUGHT_BLOCKS = 4
"""To compute fewer takes hardly longer than the step that asks the stages for them."""


@dataclass(frozen=True, slots=True)
class _Seeking:
    """Blocks that are being put back for a sequence, of which they are the last until ``end``."""

    sequence: SequenceState
    restoration: Restoration
    end: int


class Restorer:
    """Restores blocks of a ``cache``, for sequences that wait to be admitted."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._due: deque[_Seeking] = deque()
        self._in_flight: dict[StepId, _Seeking] = {}

    @property
    def is_due(self) -> bool:
        """Whether there are blocks for a step to restore."""
        return bool(self._due)

    def seeks(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Whether the sequence is to wait for blocks after ``match``, which ``awaited`` then names.

        Blocks for them are taken.
        """
        if sequence.is_sought:
            return False
        start = len(match.blocks)
        candidates = self._cache.stored_candidates(sequence, match)
        least = 1 if sequence.num_sought_blocks else LEAST_SOUGHT_BLOCKS
        # Where blocks are missing that were put back, there is too little room for all.
        if len(candidates) < least or start < sequence.num_sought_blocks:
            sequence.is_sought = True
            return False
        count = 0
        while count < min(len(candidates), MAX_MOVED_BLOCKS) and not self._cache.is_computing(
            candidates[count]
        ):
            count += 1
        if count == 0 and self._cache.is_restoring(candidates[0]):
            sequence.awaited = candidates[0]
            return True
        restoration = self._cache.reserve(sequence, match, count)
        if restoration is None:
            sequence.is_sought = True
            return False
        sequence.awaited = restoration.blocks[-1].full_hash
        self._due.append(_Seeking(sequence, restoration, start + count))
        return True

    def take_due(self, step_id: StepId) -> tuple[HashedBlock, ...]:
        """The blocks that this step is to restore; ``complete`` takes how many were."""
        seeking = self._due.popleft()
        self._in_flight[step_id] = seeking
        return tuple(hashed(each) for each in seeking.restoration.blocks)

    def complete(self, step_id: StepId, num_restored: int) -> None:
        """A step is complete; one that restored nothing is accepted."""
        seeking = self._in_flight.pop(step_id, None)
        if seeking is None:
            return
        self._cache.insert_restored(seeking.restoration, num_restored)
        seeking.sequence.num_sought_blocks = seeking.end
        seeking.sequence.is_sought = num_restored < len(seeking.restoration.blocks)


def hashed(block: FullBlock) -> HashedBlock:
    """``block`` as stages know it."""
    return HashedBlock(block=block.block, hash=block.full_hash, parent=block.parent)
