"""How long a repeated operation takes: means over blocks of time, and their median.

Under a CPU quota most steps are fast, and some wait for the next period: a median of steps would be
much too short, and occasional samples would mostly be of those that wait. A mean over several
periods is what steps take in the long run. Occasional disturbances spoil some blocks, but not their
median.

Pure: callers have the clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

BLOCK_SECONDS = 1.0
"""Ten quota periods (100 ms by default), so that one step more or less that waits for the next
period changes a mean by only a few percent."""

_NUM_BLOCKS = 11
"""Few enough that a change is known within six seconds of steady work."""


@dataclass(slots=True)
class Block:
    """Sums over the steps of a block."""

    started_at: float
    count: int = 0
    seconds: float = 0.0
    num_sequences: int = 0
    num_tokens: int = 0
    context_tokens: int = 0


class BlockMeans:
    """The block means of one kind of step. ``add`` is for one thread, the rest for any.

    The first step is left out: it touches cold memory.
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


def median_seconds(blocks: list[Block]) -> float:
    """Return the median of the means of at least one block."""
    return statistics.median(block.seconds / max(1, block.count) for block in blocks)
