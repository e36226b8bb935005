"""Open the disk storage for a loaded stage's cache blocks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from potluck.catalog import ModelDescription
from potluck.cluster.worker.block_keeper import BlockKeeper, CachelessKeeper, DiskKeeper
from potluck.cluster.worker.block_store import BlockStore, default_block_folder
from potluck.loading.load import LoadedStage
from potluck.types.engine import BlockFormat, LoadableEngine
from potluck.version import __version__

_log = logging.getLogger(__name__)

_KEY_DIGITS = 40
_OF_STATES = "-states"


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
        return KeptBlocks(keeper=CachelessKeeper(), name=name)
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
) -> DiskKeeper:
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
    return DiskKeeper(engine, blocks, states)
