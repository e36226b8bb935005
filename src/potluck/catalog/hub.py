"""Select and download the required files of a model's repository on the hub.

Small files are downloaded first, so that a model that cannot be run is refused before its weights
are downloaded. Files are stored in huggingface_hub's cache (``HF_HOME``); ``HF_TOKEN``,
``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` work as documented by that library.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.catalog.file_names import ADAPTER_CONFIG, CONFIG, HUB_FILES, OTHER_TOKENIZERS
from potluck.catalog.hub_cache import (
    COMMIT,
    MAIN,
    Snapshot,
    found_snapshot,
    known_commit,
    listed_snapshot,
    remember,
)
from potluck.catalog.hub_client import (
    file_not_found,
    is_out_of_reach,
    list_repository,
    translate_hub_errors,
)
from potluck.catalog.hub_fetch import fetch_file, kept_bytes
from potluck.catalog.locate import (
    HubModel,
    adapted_model,
    explained,
    listing_of,
)
from potluck.errors import ModelFileError
from potluck.formats.safetensors import (
    INDEX_FILE,
    missing_weights,
    read_index,
    weights_name,
)
from potluck.host.cache_folder import hub_cache_folder
from potluck.types.quantities import format_bytes

OnFetch = Callable[[int, int], None]
"""Called with the bytes on this disk and the total bytes of the requested files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """A file on this disk; ``fetched_bytes`` of its ``num_bytes`` were downloaded now."""

    name: str
    path: Path
    num_bytes: int
    fetched_bytes: int


def find_snapshot(model: HubModel) -> Snapshot:
    """Return the repository at the requested revision, by default its main branch.

    If the hub is unreachable, the last known commit on this disk is used. Only the list of files is
    downloaded, once per commit. Raise ``ModelNotFoundError`` if there is none.
    """
    revision = model.revision or MAIN
    listed = listed_snapshot(model.repo_id, revision) if COMMIT.fullmatch(revision) else None
    if listed is not None:
        return listed
    with translate_hub_errors(model.name):
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

        try:
            snapshot = list_repository(model.repo_id, revision)
        except (HTTPError, OSError) as error:
            commit = known_commit(model.repo_id, revision) if is_out_of_reach(error) else None
            if commit is None:
                raise
            known = listed_snapshot(model.repo_id, commit) or found_snapshot(model.repo_id, commit)
            if known is None:
                raise
            return known
    remember(snapshot, revision)
    return snapshot


def fetch_small_files(
    snapshot: Snapshot,
    *,
    check_config: Callable[[Path], object],
    check_tokenizer: Callable[[Path], object],
) -> tuple[FetchedFile, ...]:
    """Download the configuration, the tokenizer and the index of the weights.

    ``check_config`` is called with the directory when it has ``config.json``, and
    ``check_tokenizer`` when it has all small files; they raise if the model cannot be run. Raise
    the errors of ``fetch_files``, and ``ModelNotFoundError`` if there are no weights that this
    build can read.
    """
    with explained(snapshot):
        if problem := listing_of(snapshot).problem(_adapted(snapshot)):
            raise problem
    config = fetch_files(snapshot, [CONFIG])
    check_config(snapshot.directory)
    names: tuple[str, ...] = HUB_FILES
    if "tokenizer.json" not in snapshot.files:
        names += OTHER_TOKENIZERS
    others = fetch_files(
        snapshot, [name for name in names if name in snapshot.files and name != CONFIG]
    )
    check_tokenizer(snapshot.directory)
    weights_of(snapshot)
    return (*config, *others)


def fetch_files(
    snapshot: Snapshot, names: Iterable[str], on_fetch: OnFetch | None = None
) -> tuple[FetchedFile, ...]:
    """Download missing files, without requests for those that exist.

    Raise ``ModelNotFoundError`` if the hub does not have a file or denies access to it, and
    ``ModelFileError`` if a file does not match the hub's listing, or if the disk is full.
    """
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in snapshot.files:
            with explained(snapshot):
                raise file_not_found(f"{snapshot.repo_id}:{name}")
    sizes = {name: snapshot.files[name].size or 0 for name in wanted}
    total = sum(sizes.values())
    _require_room(snapshot, [name for name in wanted if not snapshot.has(name)])
    done = 0
    fetched = []

    def on_bytes(num_bytes: int) -> None:
        if on_fetch is not None:
            on_fetch(min(done + num_bytes, total), total)

    for name in wanted:
        received = 0
        if not snapshot.has(name):
            with translate_hub_errors(f"{snapshot.repo_id}:{name}"):
                received = fetch_file(snapshot, name, on_bytes)
        path = snapshot.path(name)
        fetched.append(
            FetchedFile(name=name, path=path, num_bytes=path.stat().st_size, fetched_bytes=received)
        )
        done += sizes[name]
        on_bytes(0)
    return tuple(fetched)


def weight_files(snapshot: Snapshot, tensors: Container[str] | None = None) -> list[str]:
    """Return the safetensors files that hold the model, or only those that hold ``tensors``.

    The index, if there is one, must be on this disk.
    """
    opened = weights_of(snapshot)
    if opened != INDEX_FILE:
        return [opened]
    weight_map = read_index(snapshot.path(INDEX_FILE))
    return sorted(
        {name for tensor, name in weight_map.items() if tensors is None or tensor in tensors}
    )


def weights_of(snapshot: Snapshot) -> str:
    """Return the file through which the weights are opened: an index, or a single file.

    Raise ``ModelNotFoundError`` if there is none.
    """
    name = weights_name(snapshot.files)
    if name is None:
        with explained(snapshot):
            raise missing_weights(snapshot.repo_id, snapshot.files)
    return name


def _adapted(snapshot: Snapshot) -> str:
    """Return the base model if the repository is that of an adapter."""
    if ADAPTER_CONFIG not in snapshot.files or weights_name(snapshot.files) is not None:
        return ""
    fetch_files(snapshot, [ADAPTER_CONFIG])
    return adapted_model(snapshot.path(ADAPTER_CONFIG))


def _require_room(snapshot: Snapshot, names: Sequence[str]) -> None:
    """Refuse downloads that do not fit on the disk, before they start."""
    needed = sum(
        max(0, (snapshot.files[name].size or 0) - kept_bytes(snapshot, name)) for name in names
    )
    folder = hub_cache_folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelFileError(
            str(folder),
            f"{format_bytes(needed)} must be downloaded, but only {format_bytes(free)} are free",
            hint="free some space there, or set HF_HOME to a directory on another disk",
        )
