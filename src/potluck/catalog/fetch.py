"""Download a model from the hub in advance."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.catalog.description import describe_model, read_config, read_tokenizer
from potluck.catalog.hub import (
    FetchedFile,
    OnFetch,
    fetch_files,
    fetch_small_files,
    find_snapshot,
    weight_files,
)
from potluck.catalog.locate import ModelFiles, files_on_hub, parse_hub_id
from potluck.errors import UsageError
from potluck.formats.gguf import gguf_parts


def fetch_model(
    name: str, *, only: Sequence[str] = (), on_fetch: OnFetch | None = None
) -> tuple[ModelFiles, tuple[FetchedFile, ...]]:
    """Download the required files of a hub model, or ``only`` some files.

    A model that cannot be run is refused before its weights are downloaded, unless files are named.
    ``on_fetch`` receives the progress of the weights. Raise ``UsageError``, ``ModelNotFoundError``,
    ``ModelFileError`` and ``UnsupportedModelError``.
    """
    model = parse_hub_id(name)
    if model is None:
        raise UsageError(
            f"{name} is not a Hub model id",
            hint="give org/name, org/name:file.gguf, org/name:Q4_K_M or org/name@revision",
        )
    snapshot = find_snapshot(model)
    files = files_on_hub(name, model, snapshot)
    filename = model.gguf_in(snapshot)
    if only:
        named = [*only] if filename is None else [filename, *only]
        parts = [part for each in named for part in gguf_parts(each)]
        return files, fetch_files(snapshot, parts, on_fetch)
    if filename is not None:
        describe_model(files.pinned_name)
        return files, fetch_files(snapshot, gguf_parts(filename), on_fetch)
    small = fetch_small_files(snapshot, check_config=read_config, check_tokenizer=read_tokenizer)
    describe_model(files.pinned_name)
    return files, (*small, *fetch_files(snapshot, weight_files(snapshot), on_fetch))
