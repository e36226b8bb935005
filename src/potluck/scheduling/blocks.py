"""Counted references to key-value cache blocks (paged attention, Kwon et al. 2023).

A block is 16 positions of every layer's cache, named by one index on every stage. Several sequences
may hold a block whose content they share. A block without a holder is free, or it is *kept*: its
content may be useful to a later sequence, and it is reused when no block is free, least recently
used first. The pool does not know the content; ``prefix_index`` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from potluck.types.step import KV_BLOCK_TOKENS


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold ``num_tokens`` positions."""
    return -(-num_tokens // KV_BLOCK_TOKENS)


class BlockPool:
    """Blocks ``[0, num_blocks)``, all free at first. Not thread-safe.

    ``on_evict`` is called with each kept block that is reused.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        # Popped from the end: low indices first, so that little of the cache is touched.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_holders = [0] * num_blocks
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and not held, oldest first

    @property
    def num_free(self) -> int:
        """Return the number of blocks without a holder, including kept ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Return the number of kept blocks without a holder."""
        return len(self._idle)

    def is_held(self, block: int) -> bool:
        """Return whether ``block`` has a holder."""
        return self._num_holders[block] > 0

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks; raise ``ValueError`` if fewer are free."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks requested, but only {self.num_free} are free")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._num_holders[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Add one reference to blocks that are held or kept; raise ``ValueError`` for others."""
        for block in blocks:
            if not self._num_holders[block]:
                if block not in self._idle:
                    raise ValueError(f"block {block} has no content to share")
                del self._idle[block]
            self._num_holders[block] += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """Return one reference to each block; raise ``ValueError`` for one that is not held.

        Kept blocks are later reused in the order in which they were given back.
        """
        for block in blocks:
            if not self._num_holders[block]:
                raise ValueError(f"block {block} is not in use")
            self._num_holders[block] -= 1
            if self._num_holders[block]:
                continue
            if block in self._kept:
                self._idle[block] = None
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """Keep the content of a held block when it is no longer held."""
        if not self._num_holders[block]:
            raise ValueError(f"block {block} is not in use")
        self._kept.add(block)

    def discard(self, block: int) -> None:
        """Stop keeping the content of ``block``."""
        self._kept.discard(block)
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def touch(self, block: int) -> None:
        """Make ``block`` the last one to be reused, if it is idle."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        self._kept.discard(block)
        if self._on_evict is not None:
            self._on_evict(block)
        return block
