"""Select and download the required files of a model's repository on the hub.

Small files are downloaded first, so that a model that cannot be run is refused before its weights
are downloaded. Files are stored in huggingface_hub's cache (``HF_HOME``); ``HF_TOKEN``,
``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` work as documented by that library.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.cache_folder import hub_cache_folder
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
from potluck.catalog.locate import HubModel
from potluck.catalog.vectors import VECTOR_FILES
from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats.safetensors import INDEX_FILE, SINGLE_FILE, read_index
from potluck.quantities import format_bytes, format_count

_CONFIG = "config.json"
_SMALL_FILES = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "additional_chat_templates/tool_use.jinja",
    *VECTOR_FILES,
    INDEX_FILE,
)
OTHER_TOKENIZERS = ("tekken.json", "tiktoken.model", "tokenizer.model")
"""The files of models without a tokenizer.json; with one, they have the same vocabulary again."""
_SPLIT_GGUF = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")

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
    the errors of ``fetch_files``, and ``UnsupportedModelError`` if there are no weights that this
    build can read.
    """
    if _CONFIG not in snapshot.files:
        raise _without_config(snapshot)
    config = fetch_files(snapshot, [_CONFIG])
    check_config(snapshot.directory)
    names: tuple[str, ...] = _SMALL_FILES
    if "tokenizer.json" not in snapshot.files:
        names += OTHER_TOKENIZERS
    others = fetch_files(
        snapshot, [name for name in names if name in snapshot.files and name != _CONFIG]
    )
    check_tokenizer(snapshot.directory)
    weight_files(snapshot)
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


def gguf_parts(filename: str) -> list[str]:
    """Return the file itself, or all parts if it is the first part of a split file."""
    match = _SPLIT_GGUF.fullmatch(filename)
    if match is None:
        return [filename]
    stem, count = match.groups()
    return [f"{stem}-{part:05d}-of-{count}.gguf" for part in range(1, int(count) + 1)]


def weight_files(snapshot: Snapshot, tensors: Container[str] | None = None) -> list[str]:
    """Return the safetensors files that hold the model, or only those that hold ``tensors``.

    The index, if there is one, must be on this disk.
    """
    if INDEX_FILE in snapshot.files:
        weight_map = read_index(snapshot.path(INDEX_FILE))
        return sorted(
            {
                filename
                for name, filename in weight_map.items()
                if tensors is None or name in tensors
            }
        )
    return [single_file(snapshot)]


def single_file(snapshot: Snapshot) -> str:
    """Return the only safetensors file of a repository without an index."""
    top_level = [
        name for name in snapshot.files if name.endswith(".safetensors") and "/" not in name
    ]
    if SINGLE_FILE in top_level:
        return SINGLE_FILE
    if len(top_level) == 1:
        return top_level[0]
    raise UnsupportedModelError(
        f"{snapshot.repo_id} has no {SINGLE_FILE}",
        missing=("safetensors weights",),
        hint="look for another repository of the same model that has safetensors or GGUF files",
    )


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


def _without_config(snapshot: Snapshot) -> ModelNotFoundError:
    ggufs = sorted(name for name in snapshot.files if name.endswith(".gguf"))
    if ggufs:
        listed = ", ".join(f"{snapshot.repo_id}:{name}" for name in ggufs[:4])
        return ModelNotFoundError(
            f"{snapshot.repo_id} holds {format_count(len(ggufs), 'GGUF file')}; "
            f"name {'it' if len(ggufs) == 1 else 'one of them'}",
            hint=f"use {listed}" if len(ggufs) == 1 else f"for example {listed}",
        )
    return ModelNotFoundError(
        f"{snapshot.repo_id} has no config.json", hint="give a repository in Hugging Face layout"
    )
