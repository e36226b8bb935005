"""What a stage keeps of its cache blocks on disk, without making its steps wait for writes.

The thread that computes copies blocks out of the cache and puts them into a queue; another thread
writes them. Where the disk does not keep up, blocks are dropped: they are computed again when they
are needed. Blocks are read by the thread that computes, a few at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from potluck.cluster.worker.block_store import BlockStore
from potluck.types.engine import LoadableEngine
from potluck.types.step import HashedBlock

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 64 * 2**20
"""Of blocks that are to be written: those of a chunk of 512 tokens of an 8B model (32 layers, 8
key-value heads of 128) on one stage."""

_END_SECONDS = 2.0
"""For what is queued to be written when the stage ends."""


class BlockKeeper(Protocol):
    """Keeps cache blocks of one stage. For the thread that computes, but for ``close``."""

    def save(self, blocks: Sequence[HashedBlock]) -> None:
        """Have the content of ``blocks`` kept; it may change when this returns."""
        ...

    def restore(self, blocks: Sequence[HashedBlock]) -> int:
        """Put back what was kept, and return how many of ``blocks``, from the first, that are.

        The others hold what they did. Raises as ``LoadableEngine.write_blocks``.
        """
        ...

    def close(self) -> None:
        """Write what is queued, if that does not take long, and keep nothing from now on."""
        ...


class CachelessKeeper:
    """Of a stage without caches: its blocks are empty, and always there."""

    def save(self, blocks: Sequence[HashedBlock]) -> None:
        """There is nothing to be kept."""

    def restore(self, blocks: Sequence[HashedBlock]) -> int:
        """Return the number of ``blocks``."""
        return len(blocks)

    def close(self) -> None:
        """There is nothing to be done."""


class DiskKeeper:
    """Keeps blocks of ``engine`` in ``store``, which it closes."""

    def __init__(self, engine: LoadableEngine, store: BlockStore) -> None:
        self._engine = engine
        self._store = store
        self.most_queued = max(2, MAX_QUEUED_BYTES // store.block_bytes)
        self._queue: SimpleQueue[_Save | None] = SimpleQueue()
        self._queued: set[bytes] = set()
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="blocks", daemon=True)
        self._thread.start()

    @property
    def num_queued(self) -> int:
        """Blocks that are to be written: at most ``most_queued``."""
        return len(self._queued)

    @property
    def num_dropped(self) -> int:
        """Blocks that were not kept because the disk did not keep up."""
        return self._num_dropped

    def save(self, blocks: Sequence[HashedBlock]) -> None:
        """See ``BlockKeeper``."""
        for each in blocks:
            if each.hash in self._queued or each.hash in self._store:
                continue
            if len(self._queued) >= self.most_queued:
                self._num_dropped += 1
                continue
            (data,) = self._engine.read_blocks((each.block,))
            self._queued.add(each.hash)
            self._queue.put(_Save(each, data.data))

    def restore(self, blocks: Sequence[HashedBlock]) -> int:
        """See ``BlockKeeper``."""
        data = np.empty((len(blocks), self._store.block_bytes), np.uint8)
        count = 0
        while count < len(blocks) and self._store.read(blocks[count].hash, data[count].data):
            count += 1
        if count:
            self._engine.write_blocks([each.block for each in blocks[:count]], data[:count])
        return count

    def close(self) -> None:
        """See ``BlockKeeper``."""
        self._queue.put(None)
        self._thread.join(_END_SECONDS)
        self._store.close()

    def _write_all(self) -> None:
        while (save := self._queue.get()) is not None:
            try:
                self._store.write(save.block.hash, save.block.parent, save.data)
            except Exception:  # noqa: BLE001 - the boundary of the thread
                _log.exception("a cache block could not be kept")
            finally:
                self._queued.discard(save.block.hash)


@dataclass(frozen=True, slots=True)
class _Save:
    block: HashedBlock
    data: memoryview
