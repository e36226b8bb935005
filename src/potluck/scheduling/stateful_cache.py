"""The cache of a model with a state: its sequences resume where both blocks and a checkpoint exist.

Keys and values are found as for other models. A sequence then begins at the longest checkpoint
within what they cover; the tokens from there on are computed again, including keys and values. A
checkpoint whose blocks are evicted is useless, and is evicted with them; blocks are kept without
one.

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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter

from potluck.scheduling.block_cache import (
    AdmissionCopies,
    BlockCache,
    Restoration,
)
from potluck.scheduling.checkpoints import (
    Checkpoint,
    CheckpointKind,
    PlannedCheckpoint,
    StatePool,
    TokenPrefix,
)
from potluck.scheduling.limits import STEP_COST_TOKENS, SchedulerLimits
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.sequence import SequenceState
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.states import StateSlots
from potluck.types.step import KV_BLOCK_TOKENS, HashedState, SequenceId, StateCopy

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


class StatefulCache(BlockCache):
    """A ``BlockCache`` whose sequences also have one of ``num_states`` slots each."""

    def __init__(
        self,
        num_blocks: int,
        *,
        num_states: int,
        is_shared: bool,
        totals: PrefixTotals,
        salt: bytes = b"",
        is_stored: bool = False,
    ) -> None:
        super().__init__(
            num_blocks, is_shared=is_shared, totals=totals, salt=salt, is_stored=is_stored
        )
        self._states = StatePool(num_states, self._lost_checkpoint)
        self._live: dict[SequenceId, SequenceState] = {}
        # Hashes of planned checkpoints, all at block boundaries, and the sequences that make them.
        self._expected: dict[bytes, SequenceId] = {}
        self._unsaved: deque[Checkpoint] = deque()

    @property
    def state_slots(self) -> StateSlots:
        """Return how many slots are used for what."""
        return self._states.slots

    def find(self, sequence: SequenceState) -> PrefixMatch:
        """Return the longest prefix that is cached together with the state after it."""
        match = super().find(sequence)
        if not match.num_tokens:
            return match
        found = self._states.checkpoints.longest(
            self._chain(sequence), sequence.tokens, most=match.num_tokens
        )
        if found is None:
            return match.resumed_at(0, None)
        return match.resumed_at(found.prefix.num_tokens, found.slot)

    def worth_awaiting(self, sequence: SequenceState, match: PrefixMatch) -> bytes | None:
        """Return the hash of the last checkpoint after ``match`` that others will make.

        A sequence that computes more of the prompt is asked to make one there. Return None if
        others compute less than half of what is missing.
        """
        if not self.pending and not self._expected:
            return None
        start = match.num_tokens
        num_missing = sequence.num_to_compute - start
        chain = self._chain(sequence)
        end = self._num_shared_blocks(sequence, match)
        if 2 * (end * KV_BLOCK_TOKENS - start) < num_missing:
            return None
        num_blocks = end
        while (
            num_blocks * KV_BLOCK_TOKENS > start and chain.after(num_blocks) not in self._expected
        ):
            num_blocks -= 1
        num_more = end * KV_BLOCK_TOKENS - max(start, num_blocks * KV_BLOCK_TOKENS)
        if num_more >= LEAST_SAVED_TOKENS and self._ask(chain.after(end), end * KV_BLOCK_TOKENS):
            num_blocks = end
        num_awaited = num_blocks * KV_BLOCK_TOKENS - start
        return chain.after(num_blocks) if 2 * num_awaited >= num_missing else None

    def is_awaitable(self, full_hash: bytes) -> bool:
        """Return whether the checkpoint is still to be made, or the block is being restored."""
        return full_hash in self._expected or self.pending.is_restoring(full_hash)

    def may_have_room(self, sequence: SequenceState) -> bool:
        """Return whether ``has_room`` could be true: a quick check, before ``find``."""
        return self._states.has_room and super().may_have_room(sequence)

    def has_room(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Return whether there are a slot, and blocks for all known tokens of the sequence."""
        return self._states.has_room and super().has_room(sequence, match)

    def admit(self, sequence: SequenceState, match: PrefixMatch) -> AdmissionCopies:
        """Give the sequence blocks and a slot; see ``BlockCache``."""
        slot = match.checkpoint
        found = None if slot is None else self._states.checkpoints.in_slot(slot)
        goes_on = found is not None and found.kind is CheckpointKind.TURN_END
        goes_on = goes_on and not match.num_uncovered_tokens
        # Before it computes anything itself.
        planned = self._plan(sequence, match, goes_on=goes_on)
        copies = super().admit(sequence, match)
        sequence.state = self._states.take(found)
        self._live[sequence.sequence_id] = sequence
        chain = self._chain(sequence)
        sequence.planned = planned
        for each in planned:
            full_hash = chain.after(each.position // KV_BLOCK_TOKENS)
            self._expected.setdefault(full_hash, sequence.sequence_id)
        self._totals.num_uncovered_tokens += match.num_uncovered_tokens
        if found is None:
            return copies
        self._totals.num_checkpoint_hits += 1
        if found in self._states.checkpoints:
            self._states.checkpoints.use(found)
        if goes_on:
            found.kind = CheckpointKind.ON_THE_WAY  # the turn that follows will end later
        if found.slot == sequence.state:
            return copies
        restored = StateCopy(source=found.slot, target=sequence.state)
        return AdmissionCopies(blocks=copies.blocks, states=(restored,))

    def cut(self, sequence: SequenceState, count: int) -> int:
        """Return how many of the next ``count`` tokens come before the next checkpoint."""
        start = sequence.num_scheduled
        places = (each.position for each in reversed(sequence.planned))
        after = next((each for each in places if each > start), None)
        return count if after is None else min(count, after - start)

    def checkpoint(self, sequence: SequenceState) -> Checkpoint | None:
        """Return the checkpoint to be made before the sequence's next slice, if one is due.

        It is a copy of the sequence's slot; ``settle`` follows when that step is complete.
        """
        position, planned = sequence.num_scheduled, sequence.planned
        kind = CheckpointKind.ON_THE_WAY
        if planned:
            if planned[-1].position > position:
                return None
            kind = planned.pop().kind  # slices end there
        elif not self._is_shared or not position or position % LADDER_TOKENS:
            return None
        chain = self._chain(sequence)
        made = self._states.make(TokenPrefix.of(chain, sequence.tokens, position), kind)
        if made is None:
            self._expect_not(chain.after(position // KV_BLOCK_TOKENS), sequence)
        return made

    def take_snapshot(self, sequence: SequenceState) -> bool:
        """Give the sequence a slot for a snapshot, if it has none; return False if none is left."""
        if sequence.snapshot is None:
            sequence.snapshot = self._states.take_snapshot()
        return sequence.snapshot is not None

    def give_back_snapshot(self, sequence: SequenceState) -> None:
        """Release the sequence's snapshot, if it has one."""
        if sequence.snapshot is not None:
            self._states.give_back_snapshot(sequence.snapshot)
            sequence.snapshot = None

    def most_drafts(self, position: int) -> int:
        """Return the number of tokens up to the next place of a checkpoint on the way."""
        return LADDER_TOKENS - position % LADDER_TOKENS

    def settle(self, made: Checkpoint, sequence: SequenceState, *, is_known: bool) -> None:
        """Record that the step that was to make a checkpoint is complete, and whether it exists."""
        if is_known and self._states.publish(made):
            self._totals.num_checkpoints += 1
            if self._is_stored:
                self._unsaved.append(made)
        else:
            self._states.drop(made)
        self._expect_not(made.prefix.parent, sequence)

    def release(self, sequence: SequenceState) -> None:
        """Release blocks and slot, and keep their content for later sequences."""
        num_computed = sequence.num_computed
        is_known = self._is_shared and 0 < num_computed == sequence.num_scheduled
        chain = self._chain(sequence)
        super().release(sequence)
        for each in sequence.planned:
            self._expect_not(chain.after(each.position // KV_BLOCK_TOKENS), sequence)
        sequence.planned = []
        slot, sequence.state = sequence.state, None
        snapshot, sequence.snapshot = sequence.snapshot, None
        must_roll_back, sequence.must_roll_back = sequence.must_roll_back, False
        del self._live[sequence.sequence_id]
        if slot is None:
            raise ValueError(f"sequence {sequence.sequence_id} has no state slot")
        if snapshot is not None and must_roll_back and self._is_shared:
            prefix = TokenPrefix.of(chain, sequence.tokens, sequence.num_scheduled)
            self._totals.num_checkpoints += self._states.keep_snapshot(slot, snapshot, prefix)
            return
        if snapshot is not None:
            self._states.give_back_snapshot(snapshot)
        if not is_known:
            self._states.give_back(slot)
        elif self._states.keep(slot, TokenPrefix.of(chain, sequence.tokens, num_computed)):
            self._totals.num_checkpoints += 1

    def find_blocks(self, sequence: SequenceState, match: PrefixMatch) -> PrefixMatch:
        """Return what is cached of the sequence's keys and values."""
        return super().find(sequence)

    def reserve(
        self, sequence: SequenceState, match: PrefixMatch, num_blocks: int
    ) -> Restoration | None:
        """Allocate blocks, and a slot for the state after one of them; see ``BlockCache``."""
        restoration = super().reserve(sequence, match, num_blocks)
        return restoration and replace(restoration, state=self._states.reserve())

    def insert_restored(
        self,
        restoration: Restoration,
        num_restored: int,
        *,
        sequence: SequenceState,
        state_end: int = 0,
    ) -> None:
        """Keep what was restored; see ``BlockCache``."""
        super().insert_restored(restoration, num_restored, sequence=sequence, state_end=state_end)
        if restoration.state is None:
            return
        prefix = None
        if state_end:
            num_tokens = (len(restoration.held) + state_end) * KV_BLOCK_TOKENS
            prefix = TokenPrefix.of(self._chain(sequence), sequence.tokens, num_tokens)
        self._states.fill(restoration.state, prefix)

    def take_unsaved_states(self, most: int) -> tuple[HashedState, ...]:
        """Return up to ``most`` checkpoints that were made and not evicted, each only once."""
        unsaved: list[HashedState] = []
        while self._unsaved and len(unsaved) < most:
            each = self._unsaved.popleft()
            if each in self._states.checkpoints:
                unsaved.append(HashedState(state=each.slot, hash=each.prefix.parent))
        return tuple(unsaved)

    def _publish(self, sequence: SequenceState, index: int, num_tokens: int) -> None:
        super()._publish(sequence, index, num_tokens)
        if num_tokens == KV_BLOCK_TOKENS:  # one that was computed again is in use
            block = self._index.block_of(self._chain(sequence).after(index + 1))
            if block is not None:
                self._pool.touch(block)

    def _evicted(self, block: int) -> None:
        place = self._index.place_of(block)
        super()._evicted(block)
        if place is None:
            return
        for each in self._states.checkpoints:
            if each.is_known and each.prefix.parent in place and not self._has_blocks(each.prefix):
                self._states.evict(each)

    def _has_blocks(self, prefix: TokenPrefix) -> bool:
        """Return whether the last blocks of ``prefix`` are cached: those before them are evicted
        later.
        """
        if prefix.path and self._index.block_of(prefix.parent) is None:
            return False
        return not prefix.rest or self._index.holds(prefix.parent, prefix.rest)

    def _lost_checkpoint(self) -> None:
        self._totals.num_checkpoint_evictions += 1

    def _plan(
        self, sequence: SequenceState, match: PrefixMatch, *, goes_on: bool
    ) -> list[PlannedCheckpoint]:
        """Return the checkpoints that are to be made of its known tokens, the first one last."""
        start, end = match.num_tokens, sequence.num_to_compute
        is_pooled = sequence.request.pooling is not None
        if not self._is_shared or is_pooled or self._states.num_states < 2:
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
        chain = self._chain(sequence)
        most = sequence.most_cached_tokens // KV_BLOCK_TOKENS
        count = match.num_known_tokens // KV_BLOCK_TOKENS
        while count < most and chain.after(count + 1) in self.pending:
            count += 1
        return count

    def _ask(self, full_hash: bytes, position: int) -> bool:
        """Let the sequence that computes a block make a checkpoint after it; False if it is too
        late.
        """
        owner_id = self.pending.owner(full_hash)
        owner = None if owner_id is None else self._live.get(owner_id)
        if owner is None or owner.num_scheduled > position or self._states.num_states < 2:
            return False
        if all(each.position != position for each in owner.planned):
            owner.planned.append(PlannedCheckpoint(position, CheckpointKind.PLACE))
            owner.planned.sort(reverse=True, key=_position_of)
        self._expected[full_hash] = owner.sequence_id
        return True

    def _expect_not(self, full_hash: bytes, sequence: SequenceState) -> None:
        if self._expected.get(full_hash) == sequence.sequence_id:
            del self._expected[full_hash]


def new_cache(limits: SchedulerLimits, totals: PrefixTotals) -> BlockCache:
    """Return an empty cache within ``limits``, which counts in ``totals``."""
    make: Callable[..., BlockCache] = BlockCache
    if limits.num_states:
        make = partial(StatefulCache, num_states=limits.num_states)
    return make(
        limits.num_blocks,
        is_shared=limits.has_prefix_cache,
        totals=totals,
        salt=limits.disk_salt or b"",
        is_stored=limits.disk_salt is not None,
    )
