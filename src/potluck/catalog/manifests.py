"""Validate manifests, and create the manifest of a model.

A manifest, with its names and sizes, may come from another node. ``check_manifest`` rejects invalid
ones before anything is opened or created from them. The contents of files are checked when they are
read: bytes against digests, and headers against sizes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from potluck.catalog.fingerprint import TEXT_FILES
from potluck.catalog.hub import OTHER_TOKENIZERS, weight_files
from potluck.catalog.locate import ModelFiles
from potluck.catalog.vectors import VECTOR_FILES
from potluck.errors import ModelFileError
from potluck.formats.gguf import gguf_parts, is_gguf
from potluck.formats.safetensors import INDEX_FILE, missing_weights, read_index, weights_name
from potluck.models.names import FileKind
from potluck.types.content import FileContent, HubOrigin, Manifest, ManifestFile

MAX_FILES = 1024
"""The maximum number of files of a manifest. Kimi K2 has 61 weight files, and Llama 3.1 405B 191. A
stage's manifest must fit into a message to its worker."""

MAX_NAME_BYTES = 255

MAX_FILE_BYTES = 2**44
"""Sixteen times the size of the largest published model."""

CONFIG_FILES = ("config.json", "generation_config.json", *VECTOR_FILES, INDEX_FILE)
"""The small files of a directory that describe the model."""

SMALL_FILES = tuple(sorted({*CONFIG_FILES, *TEXT_FILES}))
"""All files that are read whole; the weights are in ``*.safetensors``."""

MAX_SMALL_BYTES = 2**28
"""The maximum size of such a file. The largest known tokenizer has 35 MB, and index 15 MB."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def check_manifest(manifest: Manifest, name: str) -> None:
    """Raise ``ModelFileError`` if the manifest is not valid.

    ``name`` is the model's name in messages. File names must be relative and within the directory,
    sizes must be plausible, and the same content must always have the same size.
    """

    def refused(problem: str) -> ModelFileError:
        return ModelFileError(
            name,
            f"its list of files {problem}",
            hint="deploy the model again; if the error persists, the fault is on the node that "
            "it was"
            " deployed from",
        )

    kinds = [kind.value for kind in FileKind]
    if manifest.kind not in kinds:
        raise refused(
            f"has the kind {manifest.kind[:40]!a}, which is not one of {', '.join(kinds)}"
        )
    if not 0 < len(manifest.files) <= MAX_FILES:
        raise refused(f"has {len(manifest.files)} entries, but may have 1 to {MAX_FILES}")
    sizes: dict[str, int] = {}
    names: set[str] = set()
    for file in manifest.files:
        if problem := _name_problem(file.name):
            raise refused(f"has the name {file.name[:80]!a}, which {problem}")
        if file.name in names:
            raise refused(f"lists {file.name} twice")
        names.add(file.name)
        content = file.content
        if not _SHA256.fullmatch(content.sha256):
            raise refused(f"gives {file.name} a digest that is not 64 hexadecimal digits")
        if not 0 <= content.num_bytes <= MAX_FILE_BYTES:
            raise refused(f"gives {file.name} {content.num_bytes} bytes")
        if sizes.setdefault(content.sha256, content.num_bytes) != content.num_bytes:
            raise refused(f"gives the content of {file.name} two sizes")
        if file.name in SMALL_FILES and content.num_bytes > MAX_SMALL_BYTES:
            raise refused(
                f"gives {file.name} {content.num_bytes} bytes, but the limit is {MAX_SMALL_BYTES}"
            )
    for each in names:
        if any(str(parent) in names for parent in PurePosixPath(each).parents):
            raise refused(f"has {each} within another file")
    if manifest.kind == FileKind.GGUF.value:
        if manifest.main not in names or not is_gguf(manifest.main):
            raise refused(f"does not list its main file {manifest.main[:80]!a}")
    elif manifest.main:
        raise refused("names a main file, but describes a directory")
    elif "config.json" not in names:
        raise refused("does not list config.json")
    if manifest.hub is not None and not (
        _REPO_ID.fullmatch(manifest.hub.repo_id) and _COMMIT.fullmatch(manifest.hub.commit)
    ):
        raise refused("names no repository and commit on the hub")


def manifest_digest(manifest: Manifest) -> str:
    """Return 32 hexadecimal digits that identify the files, regardless of their source."""
    files = tuple(sorted(manifest.files, key=lambda file: file.name))
    same = msgspec.structs.replace(manifest, files=files, hub=None)
    return hashlib.sha256(msgspec.msgpack.encode(same)).hexdigest()[:32]


def weights_file(manifest: Manifest) -> str:
    """Return the name of the file through which the weights are opened: an index, or a single file.

    Raise ``ModelNotFoundError`` if a directory has neither.
    """
    if manifest.kind == FileKind.GGUF.value:
        return manifest.main
    names = {file.name for file in manifest.files}
    name = weights_name(names)
    if name is None:
        raise missing_weights("the model", names)
    return name


def manifest_names(files: ModelFiles) -> dict[str, Path]:
    """Return the paths of a model's files by their names in its manifest.

    The files of a model on the hub need not exist yet. Raise the ``ModelFileError`` and
    ``ModelNotFoundError`` of opening the model.
    """
    if files.view is not None:
        return {file.name: files.view.directory / file.name for file in files.view.manifest.files}
    if files.kind is FileKind.GGUF:
        first = files.path.name
        parent = files.path.parent
        if files.snapshot is not None:
            parent = files.snapshot.directory
            first = files.path.relative_to(parent).as_posix()
        return {name: parent / name for name in gguf_parts(first)}
    directory, snapshot = files.path, files.snapshot
    if snapshot is None:
        names = [name for name in SMALL_FILES if (directory / name).is_file()]
        weights = _weights_in(directory)
    else:
        names = [name for name in SMALL_FILES if name in snapshot.files]
        weights = weight_files(snapshot)
    if "tokenizer.json" in names:
        names = [name for name in names if name not in OTHER_TOKENIZERS]
    return {name: directory / name for name in [*names, *weights]}


def make_manifest(files: ModelFiles, contents: Mapping[str, FileContent]) -> Manifest:
    """Return the manifest of a model; ``contents`` has an entry for all of ``manifest_names``."""
    if files.view is not None:
        return files.view.manifest
    snapshot = files.snapshot
    names = list(manifest_names(files))
    return Manifest(
        kind=files.kind.value,
        files=tuple(ManifestFile(name=name, content=contents[name]) for name in sorted(names)),
        main=names[0] if files.kind is FileKind.GGUF else "",
        hub=None
        if snapshot is None
        else HubOrigin(repo_id=snapshot.repo_id, commit=snapshot.commit),
    )


def listed_contents(files: ModelFiles) -> dict[str, FileContent | None]:
    """Return the content of each of ``manifest_names`` according to the hub's listing.

    It is None if the listing does not have the SHA-256 and the size of a file, which must then be
    downloaded whole, and for all files of a model that is not from the hub.
    """
    snapshot = files.snapshot
    found: dict[str, FileContent | None] = dict.fromkeys(manifest_names(files))
    if snapshot is not None:
        for name in found:
            listed = snapshot.files.get(name)
            if listed is not None and listed.sha256 is not None and listed.size is not None:
                found[name] = FileContent(sha256=listed.sha256, num_bytes=listed.size)
    return found


def _weights_in(directory: Path) -> list[str]:
    name = weights_name([each.name for each in directory.iterdir()])
    if name == INDEX_FILE:
        return sorted(set(read_index(directory / INDEX_FILE).values()))
    return [] if name is None else [name]


def _name_problem(name: str) -> str:
    """Return why a file of a model cannot have this name; empty if it can."""
    if not name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"does not have 1 to {MAX_NAME_BYTES} bytes"
    if not name.isprintable() or "\\" in name:
        return "has characters that are not allowed in names of model files"
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        return "is not relative to the model's directory"
    return ""
