"""Opens what keeps a loaded stage's cache blocks on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from potluck.catalog import ModelDescription
from potluck.cluster.worker.block_keeper import BlockKeeper, CachelessKeeper, DiskKeeper
from potluck.cluster.worker.block_store import BlockStore, default_block_folder
from potluck.loading.load import LoadedStage
from potluck.version import __version__

_log = logging.getLogger(__name__)

_KEY_DIGITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBlocks:
    """``name`` says how the stage's blocks are computed: what their bits depend on besides the
    model, the tokens, and what the stages before give.
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

    Return None, with a warning, where they cannot be kept: by the engine, or because the folder
    cannot be used.
    """
    block_format = stage.engine.block_format
    if block_format is None:
        _log.warning("no cache blocks are kept on disk: this backend cannot read them")
        return None
    name = f"{block_format.name}/{__version__}"
    if not block_format.num_bytes:
        return KeptBlocks(keeper=CachelessKeeper(), name=name)
    if stage.weights_key is None:
        raise ValueError("the stage was loaded without its weights_key")
    folder = default_block_folder(environ)
    if folder is None:
        _log.warning("no cache blocks are kept on disk: there is no HOME and no XDG_CACHE_HOME")
        return None
    shard = stage.program.shard
    parts = (name, stage.weights_key, description.config, shard.start_layer, shard.end_layer)
    key = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:_KEY_DIGITS]
    try:
        store = BlockStore(folder, key, block_bytes=block_format.num_bytes, limit_bytes=limit_bytes)
    except OSError as error:
        reason = "another stage has its folder" if isinstance(error, BlockingIOError) else error
        _log.warning("no cache blocks are kept on disk: %s", reason)
        return None
    _log.info("%d cache blocks are on disk", store.num_blocks)
    return KeptBlocks(keeper=DiskKeeper(stage.engine, store), name=name)
