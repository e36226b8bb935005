"""Restore cache blocks from the disks of the stages if that is faster than computing them.

The scheduler does not know what is on the disks. It asks all stages to restore the next few blocks
of a sequence, and they answer how many of them every stage had. Everything after the first missing
block is computed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from potluck.scheduling.block_cache import BlockCache, FullBlock, Restoration
from potluck.scheduling.frame_limits import MAX_MOVED_BLOCKS
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.sequence import SequenceState
from potluck.types.step import HashedBlock, Step, StepId

LEAST_SOUGHT_BLOCKS = 4
"""Computing fewer blocks takes hardly longer than the step that would restore them."""


@dataclass(frozen=True, slots=True)
class _Seeking:
    """Blocks that are being restored for a sequence: those before its block ``end``."""

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
        """Return whether the next step should restore blocks."""
        return bool(self._due)

    def seeks(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Return whether the sequence has to wait for blocks after ``match`` to be restored.

        If so, its ``awaited`` is set, and the blocks are allocated unless another sequence has done
        that.
        """
        num_sought = sequence.num_sought_blocks
        if num_sought is None:
            return False
        # If blocks are cached without a state, the next ones may bring one.
        is_worth_any = num_sought > 0 or match.num_uncovered_tokens > 0
        match = self._cache.find_blocks(sequence, match)
        start = len(match.blocks)
        candidates = self._cache.stored_candidates(sequence, match)
        least = 1 if is_worth_any else LEAST_SOUGHT_BLOCKS
        # If restored blocks are missing, there is not enough room for all.
        if len(candidates) < least or start < num_sought:
            sequence.num_sought_blocks = None
            return False
        count = 0
        pending, most = self._cache.pending, min(len(candidates), MAX_MOVED_BLOCKS)
        while count < most and candidates[count] not in pending:
            count += 1
        if count == 0 and pending.is_restoring(candidates[0]):
            sequence.awaited = candidates[0]
            return True
        restoration = self._cache.reserve(sequence, match, count)
        if restoration is None:
            sequence.num_sought_blocks = None
            return False
        sequence.awaited = restoration.blocks[-1].full_hash
        self._due.append(_Seeking(sequence, restoration, start + count))
        return True

    def take_due(self, step_id: StepId) -> Step:
        """Return the next step, which restores blocks; ``complete`` follows."""
        seeking = self._due.popleft()
        self._in_flight[step_id] = seeking
        restoration = seeking.restoration
        return Step(
            step_id=step_id,
            slices=(),
            restores=tuple(hashed(each) for each in restoration.blocks),
            restored_state=restoration.state,
        )

    def complete(self, step_id: StepId, num_restored: int, state_end: int = 0) -> None:
        """Process the result of a step. Steps that did not restore anything are accepted."""
        seeking = self._in_flight.pop(step_id, None)
        if seeking is None:
            return
        self._cache.insert_restored(
            seeking.restoration, num_restored, sequence=seeking.sequence, state_end=state_end
        )
        lacks_some = num_restored < len(seeking.restoration.blocks)
        seeking.sequence.num_sought_blocks = None if lacks_some else seeking.end


def hashed(block: FullBlock) -> HashedBlock:
    """Return ``block`` in the form used by stages."""
    return HashedBlock(block=block.block, hash=block.full_hash, parent=block.parent)
