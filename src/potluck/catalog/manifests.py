"""Validate manifests.

A manifest, with its names and sizes, may come from another node. ``check_manifest`` rejects invalid
ones before anything is opened or created from them. The contents of files are checked when they are
read: bytes against digests, and headers against sizes.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath

import msgspec

from potluck.catalog.file_names import SMALL_FILES
from potluck.catalog.hub_cache import COMMIT
from potluck.errors import ModelFileError
from potluck.formats.gguf import is_gguf
from potluck.formats.safetensors import missing_weights, weights_name
from potluck.models.names import FileKind
from potluck.types.content import MAX_FILE_BYTES, SHA256, Manifest

MAX_FILES = 1024
"""The maximum number of files of a manifest. Kimi K2 has 61 weight files, and Llama 3.1 405B 191. A
stage's manifest must fit into a message to its worker."""

MAX_NAME_BYTES = 255

MAX_SMALL_BYTES = 2**28
"""The maximum size of such a file. The largest known tokenizer has 35 MB, and index 15 MB."""

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
            "it was deployed from",
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
        if not SHA256.fullmatch(content.sha256):
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
        _REPO_ID.fullmatch(manifest.hub.repo_id) and COMMIT.fullmatch(manifest.hub.commit)
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


def _name_problem(name: str) -> str:
    """Return why a file of a model cannot have this name; empty if it can."""
    if not name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"does not have 1 to {MAX_NAME_BYTES} bytes"
    if not name.isprintable() or "\\" in name:
        return "has characters that are not allowed in names of model files"
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        return "is not relative to the model's directory"
    return ""
