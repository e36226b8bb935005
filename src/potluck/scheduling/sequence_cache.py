"""The cache of a scheduler's sequences: blocks and, if the model has a state, checkpoints.

Sequences with a state resume where both exist. Keys and values are found as for other models. A
sequence then begins at the longest checkpoint within what they cover; the tokens from there on are
computed again, including keys and values. A checkpoint whose blocks are evicted is useless, and is
evicted with them; blocks are kept without one.

Where checkpoints are made:

1. *End of a prompt*: at the last block boundary that is ``_PROMPT_END_TOKENS`` or more before the
   end. The next request of a chat repeats this prompt, but often not its last tokens: templates end
   a prompt with the beginning of an answer, such as ``<|im_start|>assistant`` and ``<think>``, and
   leave reasoning out of later ones. Besides, the last token of a prompt is always computed. There
   is none if a prompt continues from the end of a turn: this chat's template repeats answers as
   they were, and any other request with the same prefix begins at that end.
2. *End of a turn*: when a sequence ends or is preempted, its slot becomes a checkpoint, without a
   copy. If templates repeat the answer as it was, the next turn begins here.
3. *On the way*: every ``LADDER_TOKENS``, for system prompts and tools that other chats share, for
   prompts that are changed in the middle, and for preempted or cancelled sequences.
4. *At a branch*: where a prompt diverges from what is cached or is being computed, at the block
   boundary. Two requests show that they share a prefix, and the third does not compute it. If the
   one that computes it has not reached that point yet, it makes the checkpoint, and the other one
   waits.

A checkpoint is a copy of a slot that is made with the sequence's next slice, so slices are cut
there (except for 2), which costs a step each time. Of those that would be close together, the
branch is made first, then the end of the prompt. A checkpoint can be used when the step that copied
it is complete.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter

from potluck.scheduling.block_cache import BlockCache
from potluck.scheduling.checkpoints import (
    Checkpoint,
    CheckpointKind,
    PlannedCheckpoint,
    StatePool,
    TokenPrefix,
)
from potluck.scheduling.limits import STEP_COST_TOKENS, SchedulerLimits
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.sequence import LiveState, SequenceState
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.step import KV_BLOCK_TOKENS, BlockCopy, HashedState, SequenceId, StateCopy

LADDER_TOKENS = 1024
"""The maximum number of tokens that are computed again if a long prompt is changed, as long as
there are slots. Making a checkpoint takes a copy of some 60 MiB (10 ms), and computing this many
tokens 1 s at 1,000 tokens per second."""

LEAST_SAVED_TOKENS = 4 * STEP_COST_TOKENS
"""No slice is cut for a checkpoint that saves less. A cut costs a step, which is as much as
``STEP_COST_TOKENS``; it pays if one in four checkpoints is used."""

_PROMPT_END_TOKENS = 8
"""The beginning of an answer in templates takes 2 (DeepSeek) to 7 tokens (Qwen3 without
reasoning)."""

_position_of = attrgetter("position")


class StateCache:
    """The slots of a ``pool`` with the states of sequences, and with checkpoints. Not thread-safe.

    ``expected`` are the checkpoints that are planned at block boundaries, by their hashes, with the
    sequences that make them. The keys and values before a checkpoint are in ``blocks``.
    """

    def __init__(self, limits: SchedulerLimits, totals: PrefixTotals, blocks: BlockCache) -> None:
        self.pool = StatePool(limits.num_states, self._lost_checkpoint)
        self.expected: dict[bytes, SequenceId] = {}
        self._blocks = blocks
        self._is_shared = limits.has_prefix_cache
        self._is_stored = limits.disk_salt is not None
        self._totals = totals
        self._live: dict[SequenceId, SequenceState] = {}
        self._unsaved: deque[Checkpoint] = deque()
        blocks.on_evict = self._lost_block

    def resumable(self, sequence: SequenceState, match: PrefixMatch) -> PrefixMatch:
        """Return the part of ``match`` up to the longest checkpoint within it."""
        most = match.num_tokens
        if not most:
            return match
        found = self.pool.checkpoints.longest(sequence.chain, sequence.tokens, most=most)
        if found is None:
            return match.resumed_at(0, None)
        return match.resumed_at(found.prefix.num_tokens, found.slot)

    def worth_awaiting(self, sequence: SequenceState, match: PrefixMatch) -> bytes | None:
        """Return the hash of the last checkpoint after ``match`` that others will make.

        A sequence that computes more of the prompt is asked to make one there. Return None if
        others compute less than half of what is missing.
        """
        if not self._blocks.pending and not self.expected:
            return None
        start, chain = match.num_tokens, sequence.chain
        num_missing = sequence.num_to_compute - start
        end = self._num_shared_blocks(sequence, match)
        if 2 * (end * KV_BLOCK_TOKENS - start) < num_missing:
            return None
        num_blocks = end
        while num_blocks * KV_BLOCK_TOKENS > start and chain.after(num_blocks) not in self.expected:
            num_blocks -= 1
        num_more = end * KV_BLOCK_TOKENS - max(start, num_blocks * KV_BLOCK_TOKENS)
        if num_more >= LEAST_SAVED_TOKENS and self._ask(chain.after(end), end * KV_BLOCK_TOKENS):
            num_blocks = end
        num_awaited = num_blocks * KV_BLOCK_TOKENS - start
        return chain.after(num_blocks) if 2 * num_awaited >= num_missing else None

    def admit(
        self, sequence: SequenceState, match: PrefixMatch
    ) -> tuple[list[BlockCopy], list[StateCopy]]:
        """Give the sequence blocks and a slot; see ``SequenceCache``."""
        slot, checkpoints = match.checkpoint, self.pool.checkpoints
        found = None if slot is None else checkpoints.in_slot(slot)
        goes_on = found is not None and found.kind is CheckpointKind.TURN_END
        goes_on = goes_on and not match.num_uncovered_tokens
        # Before it computes anything itself.
        planned = self._plan(sequence, match, goes_on=goes_on)
        copies = self._blocks.admit(sequence, match)
        sequence.state = LiveState(self.pool.take(found), planned)
        self._live[sequence.sequence_id] = sequence
        for each in planned:
            full_hash = sequence.chain.after(each.position // KV_BLOCK_TOKENS)
            self.expected.setdefault(full_hash, sequence.sequence_id)
        self._totals.num_uncovered_tokens += match.num_uncovered_tokens
        if found is None:
            return copies, []
        self._totals.num_checkpoint_hits += 1
        if found in checkpoints:
            checkpoints.use(found)
        if goes_on:
            found.kind = CheckpointKind.ON_THE_WAY  # the turn that follows will end later
        if found.slot == sequence.state.slot:
            return copies, []
        return copies, [StateCopy(source=found.slot, target=sequence.state.slot)]

    def cut(self, sequence: SequenceState, count: int) -> int:
        """Return how many of the next ``count`` tokens come before the next checkpoint."""
        start = sequence.num_scheduled
        places = (each.position for each in reversed(sequence.live_state.planned))
        after = next((each for each in places if each > start), None)
        return count if after is None else min(count, after - start)

    def checkpoint(self, sequence: SequenceState) -> Checkpoint | None:
        """Return the checkpoint to be made before the sequence's next slice, if one is due.

        It is a copy of the sequence's slot; ``settle`` follows when that step is complete.
        """
        position, planned = sequence.num_scheduled, sequence.live_state.planned
        kind = CheckpointKind.ON_THE_WAY
        if planned:
            if planned[-1].position > position:
                return None
            kind = planned.pop().kind  # slices end there
        elif not self._is_shared or not position or position % LADDER_TOKENS:
            return None
        made = self.pool.make(TokenPrefix.of(sequence.chain, sequence.tokens, position), kind)
        if made is None:
            self._expect_not(position, sequence)
        return made

    def take_snapshot(self, state: LiveState) -> int | None:
        """Return the slot of the snapshot of ``state``, which gets one if any is left."""
        if state.snapshot is None:
            state.snapshot = self.pool.take_snapshot()
        return state.snapshot

    def give_back_snapshot(self, state: LiveState) -> None:
        """Release the snapshot of ``state``, if it has one."""
        if state.snapshot is not None:
            self.pool.give_back_snapshot(state.snapshot)
            state.snapshot = None

    def most_drafts(self, position: int) -> int:
        """Return the number of tokens up to the next place of a checkpoint on the way."""
        return LADDER_TOKENS - position % LADDER_TOKENS

    def settle(self, made: Checkpoint, sequence: SequenceState, *, is_known: bool) -> None:
        """Record that the step that was to make a checkpoint is complete, and whether it exists."""
        if is_known and self.pool.publish(made):
            self._totals.num_checkpoints += 1
            if self._is_stored:
                self._unsaved.append(made)
        else:
            self.pool.drop(made)
        self._expect_not(made.prefix.num_tokens, sequence)

    def release(self, sequence: SequenceState) -> None:
        """Release the slot of a sequence that still has its blocks, as a checkpoint if possible."""
        state, sequence.state = sequence.live_state, None
        del self._live[sequence.sequence_id]
        for each in state.planned:
            self._expect_not(each.position, sequence)
        end = sequence.num_scheduled
        if state.snapshot is not None and state.must_roll_back and self._is_shared:
            prefix = TokenPrefix.of(sequence.chain, sequence.tokens, end)
            self._totals.num_checkpoints += self.pool.keep_snapshot(
                state.slot, state.snapshot, prefix
            )
            return
        self.give_back_snapshot(state)
        if self._is_shared and 0 < sequence.num_computed == end:
            prefix = TokenPrefix.of(sequence.chain, sequence.tokens, end)
            self._totals.num_checkpoints += self.pool.keep(state.slot, prefix)
        else:
            self.pool.give_back(state.slot)

    def take_unsaved(self, most: int) -> tuple[HashedState, ...]:
        """Return up to ``most`` checkpoints that were made and not evicted, each only once."""
        unsaved: list[HashedState] = []
        while self._unsaved and len(unsaved) < most:
            each = self._unsaved.popleft()
            if each in self.pool.checkpoints:
                unsaved.append(HashedState(state=each.slot, hash=each.prefix.parent))
        return tuple(unsaved)

    def _lost_block(self, hashes: tuple[bytes, ...]) -> None:
        """Evict the checkpoints that are useless without a block that was evicted."""
        for each in self.pool.checkpoints:
            if each.is_known and each.prefix.parent in hashes and not self._has_blocks(each.prefix):
                self.pool.evict(each)

    def _has_blocks(self, prefix: TokenPrefix) -> bool:
        """Return whether the last blocks of ``prefix`` are cached: those before them are evicted
        later.
        """
        index = self._blocks.index
        if prefix.path and index.block_of(prefix.parent) is None:
            return False
        return not prefix.rest or index.holds(prefix.parent, prefix.rest)

    def _lost_checkpoint(self) -> None:
        self._totals.num_checkpoint_evictions += 1

    def _plan(
        self, sequence: SequenceState, match: PrefixMatch, *, goes_on: bool
    ) -> list[PlannedCheckpoint]:
        """Return the checkpoints that are to be made of its known tokens, the first one last."""
        start, end = match.num_tokens, sequence.num_to_compute
        is_pooled = sequence.request.pooling is not None
        if not self._is_shared or is_pooled or self.pool.num_states < 2:
            return []
        prompt_end = sequence.num_prompt_tokens - _PROMPT_END_TOKENS
        prompt_end -= prompt_end % KV_BLOCK_TOKENS
        branch = self._num_shared_blocks(sequence, match) * KV_BLOCK_TOKENS
        likely = [branch] if branch < prompt_end else []  # otherwise all of it is known
        likely += [prompt_end] if not goes_on else []
        ladder = range(start - start % LADDER_TOKENS + LADDER_TOKENS, end, LADDER_TOKENS)
        planned: dict[int, PlannedCheckpoint] = {}
        for place in (*likely, *ladder):
            nearest = min((abs(place - each) for each in planned), default=place)
            if min(place - start, nearest) >= LEAST_SAVED_TOKENS:
                is_likely = place in likely
                kind = CheckpointKind.PLACE if is_likely else CheckpointKind.ON_THE_WAY
                planned[place] = PlannedCheckpoint(place, kind)
        return sorted(planned.values(), reverse=True, key=_position_of)

    def _num_shared_blocks(self, sequence: SequenceState, match: PrefixMatch) -> int:
        """Return how many full blocks of the sequence are cached or being computed."""
        chain, pending = sequence.chain, self._blocks.pending
        most = sequence.most_cached_tokens // KV_BLOCK_TOKENS
        count = match.num_known_tokens // KV_BLOCK_TOKENS
        while count < most and chain.after(count + 1) in pending:
            count += 1
        return count

    def _ask(self, full_hash: bytes, position: int) -> bool:
        """Let the sequence that computes a block make a checkpoint after it; False if it is too
        late.
        """
        owner_id = self._blocks.pending.owner(full_hash)
        owner = None if owner_id is None else self._live.get(owner_id)
        if owner is None or owner.num_scheduled > position or self.pool.num_states < 2:
            return False
        planned = owner.live_state.planned
        if all(each.position != position for each in planned):
            planned.append(PlannedCheckpoint(position, CheckpointKind.PLACE))
            planned.sort(reverse=True, key=_position_of)
        self.expected[full_hash] = owner.sequence_id
        return True

    def _expect_not(self, position: int, sequence: SequenceState) -> None:
        full_hash = sequence.chain.after(position // KV_BLOCK_TOKENS)
        if self.expected.get(full_hash) == sequence.sequence_id:
            del self.expected[full_hash]


class SequenceCache:
    """The ``blocks`` of a scheduler's sequences and, if the model has a state, their ``states``.

    Not thread-safe.
    """

    def __init__(self, limits: SchedulerLimits, totals: PrefixTotals) -> None:
        self.blocks = BlockCache(limits, totals)
        self.states = StateCache(limits, totals, self.blocks) if limits.num_states else None

    def find(self, sequence: SequenceState) -> PrefixMatch:
        """Return the longest cached prefix after which the sequence can begin."""
        match = self.blocks.find(sequence)
        return match if self.states is None else self.states.resumable(sequence, match)

    def find_with_room(self, sequence: SequenceState) -> PrefixMatch | None:
        """Return what ``find`` does; None if the sequence cannot be admitted now.

        It can if there is room for all its tokens, and no step in flight samples the next one.
        """
        has_slot = self.states is None or self.states.pool.has_room
        if sequence.awaiting_sample or not has_slot or not self.blocks.may_have_room(sequence):
            return None
        match = self.find(sequence)
        return match if self.blocks.has_room(sequence, match) else None

    def worth_awaiting(self, sequence: SequenceState, match: PrefixMatch) -> bytes | None:
        """Return the hash of the last block that the sequence should wait for, if any.

        With a state, it waits for the checkpoint after that block.
        """
        return (self.states or self.blocks).worth_awaiting(sequence, match)

    def is_awaitable(self, full_hash: bytes) -> bool:
        """Return whether the result of ``worth_awaiting``, or a restoration, is still pending."""
        pending = self.blocks.pending
        if self.states is None:
            return full_hash in pending
        return full_hash in self.states.expected or pending.is_restoring(full_hash)

    def admit(
        self, sequence: SequenceState, match: PrefixMatch
    ) -> tuple[list[BlockCopy], list[StateCopy]]:
        """Give the sequence blocks and a slot, for which there must be room.

        Return the copies to be made before the step that computes what follows ``match``.
        """
        if self.states is None:
            return self.blocks.admit(sequence, match), []
        return self.states.admit(sequence, match)

    def release(self, sequence: SequenceState) -> None:
        """Release blocks and slot, and keep their content for later sequences."""
        if self.states is not None:
            self.states.release(sequence)
        self.blocks.release(sequence)
