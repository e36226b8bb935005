"""The free list of key-value cache blocks (paged attention, Kwon et al. 2023).

A block is 16 positions of every layer's cache, named by one index on every stage. The pool knows
only which are free; who holds the others is written in the sequences' block tables.
"""

from __future__ import annotations

from potluck.types.step import KV_BLOCK_TOKENS


def blocks_for(num_tokens: int) -> int:
    """How many blocks hold that many positions."""
    return -(-num_tokens // KV_BLOCK_TOKENS)


class BlockPool:
    """Blocks ``[0, num_blocks)``, all free at first. Not thread-safe."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("a pool needs at least one block")
        self.num_blocks = num_blocks
        # Popped from the end: low indices first, so that little of the cache is touched.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks; raises ``ValueError`` when fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        self._taken.update(taken)
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Return blocks taken earlier; raises ``ValueError`` for one that is not out."""
        for block in blocks:
            if block not in self._taken:
                raise ValueError(f"block {block} is not in use")
            self._taken.remove(block)
            self._free.append(block)
