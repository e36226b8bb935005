"""Allocate cache blocks to sequences, and reuse what was computed for earlier ones.

Full blocks are shared: they are written once, and can be found by content as soon as the step that
filled them has completed. Each sequence owns the block that it writes to; if the beginning of that
block is cached, it is copied. When a sequence ends or is preempted, its blocks are kept until the
room is needed.

The result of a step can be shared only after the step has completed, because it might fail. So a
sequence waits if most of its prompt is being computed for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from potluck.scheduling.blocks import BlockPool, blocks_for
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.prefix_index import PrefixIndex, PrefixMatch, root_hash
from potluck.scheduling.sequence import SequenceState
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.step import KV_BLOCK_TOKENS, BlockCopy, HashedBlock, SequenceId

_NOBODY = SequenceId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Blocks that are to be restored from disk, in the order of their positions.

    They follow the blocks in ``held``, which cannot be evicted meanwhile.
    """

    blocks: tuple[HashedBlock, ...]
    held: tuple[int, ...]


class PendingBlocks:
    """The full blocks that sequences compute or that are restored, for others to wait for.

    Each has the sequence that computes it, or None while it is restored.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, SequenceId | None] = {}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __contains__(self, full_hash: bytes) -> bool:
        return full_hash in self._owners

    def is_restoring(self, full_hash: bytes) -> bool:
        """Return whether the block with that hash is being restored, and not computed."""
        return self._owners.get(full_hash, _NOBODY) is None

    def owner(self, full_hash: bytes) -> SequenceId | None:
        """Return the sequence that computes the block with that hash, if there is one."""
        return self._owners.get(full_hash)

    def add(self, full_hashes: Iterable[bytes], owner: SequenceId | None) -> None:
        """Add the blocks that are not pending already."""
        for full_hash in full_hashes:
            self._owners.setdefault(full_hash, owner)

    def end(self, full_hash: bytes) -> None:
        """Remove a block, which may not be pending."""
        self._owners.pop(full_hash, None)

    def give_up(self, full_hashes: Iterable[bytes], owner: SequenceId | None) -> None:
        """Remove those blocks that ``owner`` computes, or that are restored if it is None."""
        for full_hash in full_hashes:
            if self._owners.get(full_hash, _NOBODY) == owner:
                del self._owners[full_hash]


class BlockCache:
    """The blocks of all sequences of a scheduler. Not thread-safe.

    Without a prefix cache, every sequence has its own blocks and nothing is kept. If the stages
    store blocks on disk, those that were computed are to be stored there (``take_filled``).
    Hash chains of sequences begin with ``root``. Sequences can wait for blocks that are
    ``pending``. ``on_evict`` is called with the hashes before and after each block that is evicted.
    """

    def __init__(self, limits: SchedulerLimits, totals: PrefixTotals) -> None:
        self._pool = BlockPool(limits.num_blocks, self._evicted)
        self._is_shared = limits.has_prefix_cache
        self._is_stored = limits.disk_salt is not None
        self._has_states = limits.num_states > 0
        self._totals = totals
        self._filled: dict[int, HashedBlock] = {}
        self.root = root_hash(limits.disk_salt or b"")
        self.index = PrefixIndex()
        self.pending = PendingBlocks()
        self.on_evict: Callable[[tuple[bytes, ...]], None] | None = None

    @property
    def num_free(self) -> int:
        """Return the number of blocks that no sequence holds, including kept ones."""
        return self._pool.num_free

    @property
    def num_kept(self) -> int:
        """Return the number of kept blocks that no sequence holds."""
        return self._pool.num_idle

    def find(self, sequence: SequenceState) -> PrefixMatch:
        """Return the longest prefix of the sequence that is cached."""
        if not self._is_shared:
            return PrefixMatch()
        most = sequence.most_cached_tokens
        return self.index.match(sequence.chain, sequence.tokens, most=most)

    def worth_awaiting(self, sequence: SequenceState, match: PrefixMatch) -> bytes | None:
        """Return the hash of the last block after ``match`` that others are computing.

        Return None if they compute less than half of what is missing: then it is better to compute
        the sequence immediately.
        """
        start = len(match.blocks)
        most = sequence.most_cached_tokens // KV_BLOCK_TOKENS
        if not self.pending or start >= most:
            return None
        chain, end = sequence.chain, start
        while end < most and chain.after(end + 1) in self.pending:
            end += 1
        num_missing = sequence.num_to_compute - start * KV_BLOCK_TOKENS
        return chain.after(end) if 2 * (end - start) * KV_BLOCK_TOKENS >= num_missing else None

    def may_have_room(self, sequence: SequenceState) -> bool:
        """Return whether ``has_room`` could be true: a quick check, before ``find``."""
        num_lacking = blocks_for(len(sequence.tokens)) - self._pool.num_free
        if num_lacking <= 0:
            return True
        if not self._is_shared or num_lacking > sequence.most_cached_tokens // KV_BLOCK_TOKENS:
            return False
        return self.index.block_of(sequence.chain.after(num_lacking)) is not None

    def has_room(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Return whether there are blocks for all known tokens of the sequence."""
        num_new = blocks_for(len(sequence.tokens)) - len(match.blocks)
        num_idle = sum(not self._pool.is_held(block) for block in match.blocks)
        return num_new <= self._pool.num_free - num_idle

    def admit(self, sequence: SequenceState, match: PrefixMatch) -> list[BlockCopy]:
        """Give the sequence blocks for its known tokens, for which there must be room.

        Return the copies to be made before the step that computes what follows ``match``.
        """
        num_new = blocks_for(len(sequence.tokens)) - len(match.blocks)
        self._pool.hold(match.blocks)
        if match.partial is not None:
            self._pool.touch(match.partial)
        new = self._pool.take(num_new)
        sequence.block_table = [*match.blocks, *new]
        sequence.num_computed = len(match.blocks) * KV_BLOCK_TOKENS
        if self._is_shared:
            self.pending.add(self._missing(sequence), sequence.sequence_id)
        self._totals.num_admissions += 1
        self._totals.num_hits += match.num_tokens > 0
        self._totals.num_saved_tokens += match.num_tokens
        if match.partial is None or match.partial == new[0]:
            return []
        return [BlockCopy(source=match.partial, target=new[0])]

    def stored_candidates(self, sequence: SequenceState, match: PrefixMatch) -> tuple[bytes, ...]:
        """Return the hashes of the full blocks after ``match`` that could be restored from disk."""
        if not self._is_shared:
            return ()
        chain, end = sequence.chain, sequence.most_cached_tokens // KV_BLOCK_TOKENS
        return tuple(chain.after(index + 1) for index in range(len(match.blocks), end))

    def reserve(
        self, sequence: SequenceState, match: PrefixMatch, num_blocks: int
    ) -> Restoration | None:
        """Allocate blocks for the first ``num_blocks`` candidates; None if there is no room.

        Until ``insert_restored``, sequences that need them wait as if others computed them
        (``worth_awaiting``).
        """
        start = len(match.blocks)
        num_idle = sum(not self._pool.is_held(block) for block in match.blocks)
        if num_blocks < 1 or num_blocks > self._pool.num_free - num_idle:
            return None
        self._pool.hold(match.blocks)
        blocks = tuple(
            _hashed(sequence, index, block)
            for index, block in enumerate(self._pool.take(num_blocks), start)
        )
        self.pending.add((each.hash for each in blocks), None)
        return Restoration(blocks=blocks, held=match.blocks)

    def insert_restored(
        self, sequence: SequenceState, restoration: Restoration, num_restored: int
    ) -> None:
        """Keep the first ``num_restored`` blocks, which were restored, and free the others."""
        self._totals.num_restored_tokens += num_restored * KV_BLOCK_TOKENS
        for index, each in enumerate(restoration.blocks[:num_restored], len(restoration.held)):
            tokens = _tokens_of(sequence, index)
            if self.index.publish(each.block, each.parent, tokens, each.hash):
                self._pool.keep(each.block)
        self.pending.give_up((each.hash for each in restoration.blocks), None)
        self._pool.give_back(each.block for each in reversed(restoration.blocks))
        self._pool.give_back(reversed(restoration.held))

    def take_filled(self, most: int) -> tuple[HashedBlock, ...]:
        """Return up to ``most`` full blocks that were computed and not evicted, each only once."""
        blocks = tuple(islice(self._filled, most))
        return tuple(self._filled.pop(block) for block in blocks)

    def grow(self, sequence: SequenceState) -> bool:
        """Give the sequence one more block; return False if none is free."""
        if not self._pool.num_free:
            return False
        sequence.block_table.extend(self._pool.take(1))
        return True

    def computed(self, sequence: SequenceState, end: int) -> None:
        """Record that the sequence's blocks hold its tokens up to ``end``: a step has completed."""
        start, sequence.num_computed = sequence.num_computed, end
        if not self._is_shared:
            return
        for index in range(start // KV_BLOCK_TOKENS, end // KV_BLOCK_TOKENS):
            self._publish(sequence, index, KV_BLOCK_TOKENS)
            self.pending.end(sequence.chain.after(index + 1))
        if end == len(sequence.tokens) and end == sequence.num_prompt_tokens:
            self._publish_rest(sequence)  # for other sequences with this prompt

    def release(self, sequence: SequenceState) -> None:
        """Release the sequence's blocks, and keep their content for later sequences."""
        if self._is_shared:
            self._publish_rest(sequence)
            self.pending.give_up(self._missing(sequence), sequence.sequence_id)
        # The last ones first, as a block is useless without those before it.
        self._pool.give_back(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.num_computed = 0

    def _missing(self, sequence: SequenceState) -> list[bytes]:
        """Return the hashes of the full blocks that the sequence will compute."""
        start = sequence.num_computed // KV_BLOCK_TOKENS
        end = sequence.num_to_compute // KV_BLOCK_TOKENS
        return [sequence.chain.after(index + 1) for index in range(start, end)]

    def _publish_rest(self, sequence: SequenceState) -> None:
        num_rest = sequence.num_computed % KV_BLOCK_TOKENS
        if num_rest:
            self._publish(sequence, sequence.num_computed // KV_BLOCK_TOKENS, num_rest)

    def _publish(self, sequence: SequenceState, index: int, num_tokens: int) -> None:
        chain, block = sequence.chain, sequence.block_table[index]
        full_hash = chain.after(index + 1) if num_tokens == KV_BLOCK_TOKENS else None
        tokens = _tokens_of(sequence, index)[:num_tokens]
        is_new = self.index.publish(block, chain.after(index), tokens, full_hash)
        if not is_new:
            self._pool.discard(block)
            if self._has_states and full_hash is not None:
                cached = self.index.block_of(full_hash)
                if cached is not None:
                    self._pool.touch(cached)  # it was computed again for a state, so it is in use
            return
        self._pool.keep(block)
        if self._is_stored and full_hash is not None:
            self._filled[block] = _hashed(sequence, index, block)
        for other in self.index.superseded(block):
            if not self._pool.is_held(other):
                self.index.forget(other)
                self._pool.discard(other)

    def _evicted(self, block: int) -> None:
        hashes = self.index.forget(block)
        self._filled.pop(block, None)
        self._totals.num_evictions += 1
        if self.on_evict is not None:
            self.on_evict(hashes)


def _hashed(sequence: SequenceState, index: int, block: int) -> HashedBlock:
    """Return the sequence's full block ``index``, whose place in the cache is ``block``."""
    chain = sequence.chain
    return HashedBlock(block=block, hash=chain.after(index + 1), parent=chain.after(index))


def _tokens_of(sequence: SequenceState, index: int) -> list[int]:
    """Return the tokens in the sequence's block ``index``."""
    return sequence.tokens[index * KV_BLOCK_TOKENS : (index + 1) * KV_BLOCK_TOKENS]
