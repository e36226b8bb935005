"""Store a stage's cache blocks on disk, without making its steps wait for writes.

The compute thread copies blocks out of the cache and puts them into a queue; another thread writes
them. If the disk is too slow, blocks are dropped, and computed again when they are needed. Blocks
are read by the compute thread, a few at a time.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import msgspec
import numpy as np

from potluck.catalog import ModelDescription
from potluck.cluster.worker.block_store import BlockStore, default_block_folder
from potluck.engines.loading.load import LoadedStage
from potluck.types.engine import BlockFormat, LoadableEngine
from potluck.types.step import HashedBlock, HashedState
from potluck.version import __version__

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 64 * 2**20
"""Maximum number of blocks that wait to be written: those of a chunk of 512 tokens of an 8B model
(32 layers, 8 key-value heads of 128) on one stage."""

MAX_QUEUED_STATES = 1
"""Maximum size of queued states in addition to those blocks: a state of a stage takes up to 75 MiB.
"""

_NO_PARENT = bytes(32)
"""States are stored independently: no block precedes them."""

_END_SECONDS = 2.0
"""Time for queued blocks to be written when the stage ends."""


_KEY_DIGITS = 40
_OF_STATES = "-states"


class BlockKeeper:
    """Stores the blocks of ``engine`` in ``store``, and its states in ``states``; it closes both.

    ``store`` is None for an engine without cached keys and values, and ``states`` for one without
    states: there is nothing to store, and restoring always succeeds. Called by the compute thread,
    except for ``close``.
    """

    def __init__(
        self, engine: LoadableEngine, store: BlockStore | None, states: BlockStore | None = None
    ) -> None:
        self._engine = engine
        self._store = store
        self._states = states
        self.most_queued = 2 if store is None else max(2, MAX_QUEUED_BYTES // store.block_bytes)
        self._queue: SimpleQueue[_Save | None] = SimpleQueue()
        self._queued: set[bytes] = set()
        self._queued_states: set[bytes] = set()
        self._thread = threading.Thread(target=self._write_all, name="blocks", daemon=True)
        if store is not None or states is not None:
            self._thread.start()

    @property
    def num_queued(self) -> int:
        """Return the number of blocks and states to be written: at most ``most_queued + 1``."""
        return len(self._queued) + len(self._queued_states)

    def save(self, blocks: Sequence[HashedBlock]) -> None:
        """Store the content of ``blocks``; it may change when this returns."""
        store = self._store
        if store is None:
            return
        for each in blocks:
            if each.hash in self._queued or each.hash in store:
                continue
            if len(self._queued) >= self.most_queued:  # the disk is too slow
                continue
            (data,) = self._engine.read_blocks((each.block,))
            self._queued.add(each.hash)
            self._queue.put(_Save(store, self._queued, each.hash, each.parent, data.data))

    def save_states(self, states: Sequence[HashedState]) -> None:
        """Store the states in those slots; they may change when this returns."""
        store = self._states
        if store is None:
            return
        for each in states:
            if each.hash in self._queued_states or each.hash in store:
                continue
            if len(self._queued_states) >= MAX_QUEUED_STATES:
                continue
            (data,) = self._engine.read_states((each.state,))
            self._queued_states.add(each.hash)
            self._queue.put(_Save(store, self._queued_states, each.hash, _NO_PARENT, data.data))

    def restore(self, blocks: Sequence[HashedBlock]) -> int:
        """Restore stored blocks, and return how many of ``blocks``, from the first, were restored.

        The others are unchanged. Raises the same errors as ``LoadableEngine.write_blocks``.
        """
        store = self._store
        if store is None:
            return len(blocks)
        data = np.empty((len(blocks), store.block_bytes), np.uint8)
        count = 0
        while count < len(blocks) and store.read(blocks[count].hash, data[count].data):
            count += 1
        if count:
            self._engine.write_blocks([each.block for each in blocks[:count]], data[:count])
        return count

    def restore_state(self, state: int, hashes: Mapping[int, bytes]) -> Sequence[int]:
        """Restore the state with one of ``hashes`` to the slot ``state``; return its key.

        The largest available key is used. A stage without state returns all keys, and if none was
        stored, none is returned. Raises the same errors as ``LoadableEngine.write_states``.
        """
        store = self._states
        if store is None:
            return tuple(hashes)
        found = sorted((key for key, each in hashes.items() if each in store), reverse=True)
        data = np.empty((1, store.block_bytes), np.uint8)
        for key in found:
            if store.read(hashes[key], data[0].data):
                self._engine.write_states((state,), data)
                return (key,)
        return ()

    def close(self) -> None:
        """Write queued blocks, unless that takes long, and stop storing."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(_END_SECONDS)
        for store in (self._store, self._states):
            if store is not None:
                store.close()

    def _write_all(self) -> None:
        while (save := self._queue.get()) is not None:
            try:
                save.store.write(save.hash, save.parent, save.data)
            except Exception:  # noqa: BLE001 - the boundary of the thread
                _log.exception("a cache block could not be stored")
            finally:
                save.queued.discard(save.hash)


@dataclass(frozen=True, slots=True)
class _Save:
    store: BlockStore
    queued: set[bytes]
    hash: bytes
    parent: bytes
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBlocks:
    """How the cache blocks of a stage are kept. ``name`` identifies how they are computed.

    Their content also depends on the model, the tokens, and the output of earlier stages.
    """

    keeper: BlockKeeper
    name: str


def open_keeper(
    description: ModelDescription,
    stage: LoadedStage,
    limit_bytes: int,
    environ: Mapping[str, str],
) -> KeptBlocks | None:
    """Open the folder for the blocks of a stage that was loaded with its ``weights_key``.

    Return None, with a warning, if they cannot be stored: by the engine, or because the folder
    cannot be used.
    """
    block_format = stage.engine.block_format
    if block_format is None:
        _log.warning("cache blocks are not stored on disk: this backend cannot read them")
        return None
    name = f"{block_format.name}/{__version__}"
    if not block_format.num_bytes and not block_format.state_bytes:
        return KeptBlocks(keeper=BlockKeeper(stage.engine, None), name=name)
    if stage.weights_key is None:
        raise ValueError("the stage was loaded without its weights_key")
    folder = default_block_folder(environ)
    if folder is None:
        _log.warning("cache blocks are not stored on disk: neither HOME nor XDG_CACHE_HOME is set")
        return None
    shard = stage.program.shard
    layers = (shard.start_layer, shard.end_layer)
    parts: tuple[object, ...] = (name, stage.weights_key, description.config, *layers)
    if shard.part is not None:
        parts = (*parts, shard.part)
    key = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:_KEY_DIGITS]
    try:
        keeper = open_stores(stage.engine, block_format, folder, key, limit_bytes)
    except OSError as error:
        reason = (
            "its folder is in use by another stage" if isinstance(error, BlockingIOError) else error
        )
        _log.warning("cache blocks are not stored on disk: %s", reason)
        return None
    return KeptBlocks(keeper=keeper, name=name)


def open_stores(
    engine: LoadableEngine, block_format: BlockFormat, folder: Path, key: str, limit_bytes: int
) -> BlockKeeper:
    """Open the stores for blocks and states; with both, each gets half of the room."""
    sizes = {key: block_format.num_bytes, key + _OF_STATES: block_format.state_bytes}
    num_stores = sum(size > 0 for size in sizes.values())
    stores: list[BlockStore | None] = []
    try:
        for name, size in sizes.items():
            store = None
            if size:
                store = BlockStore(
                    folder,
                    name,
                    block_bytes=size,
                    limit_bytes=limit_bytes // num_stores,
                    beside=next(each for each in sizes if each != name),
                )
                _log.info(
                    "%d %s are on disk", store.num_blocks, "blocks" if name == key else "states"
                )
            stores.append(store)
    except OSError:
        for store in stores:
            if store is not None:
                store.close()
        raise
    blocks, states = stores
    return BlockKeeper(engine, blocks, states)
