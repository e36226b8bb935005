"""Restore cache blocks from the disks of the stages if that is faster than computing them.

The scheduler does not know what is on the disks. It asks all stages to restore the next few blocks
of a sequence, and they answer how many of them every stage had. Everything after the first missing
block is computed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from potluck.scheduling.block_cache import Restoration
from potluck.scheduling.checkpoints import TokenPrefix
from potluck.scheduling.frame_limits import MAX_MOVED_BLOCKS
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.sequence import SequenceState
from potluck.scheduling.sequence_cache import SequenceCache
from potluck.types.step import KV_BLOCK_TOKENS, Step, StepId

_LEAST_SOUGHT_BLOCKS = 4
"""Computing fewer blocks takes hardly longer than the step that would restore them."""


@dataclass(frozen=True, slots=True)
class _Seeking:
    """Blocks that are being restored for a sequence.

    If the model has a state, the one after some of them is to be restored to the slot ``state``, if
    there was room.
    """

    sequence: SequenceState
    restoration: Restoration
    state: int | None


class Restorer:
    """Restores blocks of a ``cache``, for sequences that wait to be admitted."""

    def __init__(self, cache: SequenceCache) -> None:
        self._blocks = cache.blocks
        self._states = cache.states
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
        if self._states is not None:
            match = self._blocks.find(sequence)
        start = len(match.blocks)
        candidates = self._blocks.stored_candidates(sequence, match)
        least = 1 if is_worth_any else _LEAST_SOUGHT_BLOCKS
        # If restored blocks are missing, there is not enough room for all.
        if len(candidates) < least or start < num_sought:
            sequence.num_sought_blocks = None
            return False
        count = 0
        pending, most = self._blocks.pending, min(len(candidates), MAX_MOVED_BLOCKS)
        while count < most and candidates[count] not in pending:
            count += 1
        if count == 0 and pending.is_restoring(candidates[0]):
            sequence.awaited = candidates[0]
            return True
        restoration = self._blocks.reserve(sequence, match, count)
        if restoration is None:
            sequence.num_sought_blocks = None
            return False
        sequence.awaited = restoration.blocks[-1].hash
        state = None if self._states is None else self._states.pool.reserve()
        self._due.append(_Seeking(sequence, restoration, state))
        return True

    def take_due(self, step_id: StepId) -> Step:
        """Return the next step, which restores blocks; ``complete`` follows."""
        seeking = self._due.popleft()
        self._in_flight[step_id] = seeking
        return Step(
            step_id=step_id,
            slices=(),
            restores=seeking.restoration.blocks,
            restored_state=seeking.state,
        )

    def complete(self, step_id: StepId, num_restored: int, state_end: int = 0) -> None:
        """Process the result of a step. Steps that did not restore anything are accepted."""
        seeking = self._in_flight.pop(step_id, None)
        if seeking is None:
            return
        sequence, restoration = seeking.sequence, seeking.restoration
        self._blocks.insert_restored(sequence, restoration, num_restored)
        num_blocks = len(restoration.blocks)
        lacks_some = num_restored < num_blocks
        sequence.num_sought_blocks = None if lacks_some else len(restoration.held) + num_blocks
        if self._states is None or seeking.state is None:
            return
        prefix = None
        if state_end:
            num_tokens = (len(restoration.held) + state_end) * KV_BLOCK_TOKENS
            prefix = TokenPrefix.of(sequence.chain, sequence.tokens, num_tokens)
        self._states.pool.fill(seeking.state, prefix)
