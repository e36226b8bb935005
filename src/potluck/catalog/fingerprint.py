"""Identify a model: by a digest of samples of its files, or by a manifest of whole files.

Nodes check by digests whether their own copies of a model are the same.

Weights are sampled in blocks of 4 KiB, at offsets derived from a tensor's name and size, so that
every node reads the same blocks regardless of how tensors are distributed over files. Another
training, conversion or quantization changes nearly every block. Sampling can miss changes of parts
that no block covers, such as one edited row of an embedding.

For tokenization and sampling, all relevant bytes are included. A manifest has the SHA-256 of every
file instead, so nodes that have no copy can fetch one from anywhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from potluck.catalog.file_names import OTHER_TOKENIZERS, SMALL_FILES, TEXT_FILES
from potluck.catalog.hub import weight_files
from potluck.catalog.locate import ModelFiles
from potluck.errors import ModelFileError
from potluck.formats.files import FileStamp, ReadOnlyFile
from potluck.formats.gguf import gguf_parts, open_gguf
from potluck.formats.safetensors import INDEX_FILE, read_index, weights_name
from potluck.formats.source import FileTensor, FileTensorSource
from potluck.models.names import FileKind
from potluck.types.content import FileContent, HubOrigin, Manifest, ManifestFile

BLOCK_BYTES = 4096
"""The smallest unit that disks read."""

TARGET_BLOCKS = 512
"""The total number of blocks, if there are fewer tensors. They take 0.2 s on a virtual disk, where
0.3 ms per uncached block were measured, and 4 s on a spinning disk, at about 8 ms per block."""

MAX_BLOCKS = 4096
"""The maximum number of blocks, one per tensor, which is 16 MiB. If there are more tensors
(Qwen3-235B has 36,945), only as many as there are blocks are sampled."""

_TEXT_KEYS = ("tokenizer.", "general.sampling.")
"""Prefixes of keys in a GGUF file's metadata."""

_Block = tuple[int, int, tuple[str, int]]
"""A block's offset in its file, its size in bytes, and its tensor with the offset in it."""

Stamps = tuple[tuple[str, FileStamp | None], ...]
"""Stamps of files by path; None if there is no file."""


def weight_stamps(source: FileTensorSource) -> Stamps:
    """Return the stamps of the files that contain the tensors, all of which are on this disk."""
    files = {tensor.file.path: tensor.file for tensor in source.tensors.values()}
    return tuple(
        (path, file.stamp if isinstance(file, ReadOnlyFile) else None)
        for path, file in sorted(files.items())
    )


def sample_weights(source: FileTensorSource) -> str:
    """Return a digest of blocks of the tensors' stored bytes, all of which are on this disk.

    Raise ``ModelFileError`` if a file cannot be read, or changes meanwhile.
    """
    names = sorted(source.tensors)
    if len(names) > MAX_BLOCKS:
        names = sorted(names, key=lambda name: _number(name, -1))[:MAX_BLOCKS]
    num_blocks = max(1, TARGET_BLOCKS // max(1, len(names)))
    in_files: dict[str, list[_Block]] = {}
    for name in names:
        tensor = source.tensors[name]
        for offset, num_bytes in _blocks(tensor, num_blocks):
            block = (tensor.offset + offset, num_bytes, (name, offset))
            in_files.setdefault(tensor.file.path, []).append(block)
    digests: dict[tuple[str, int], bytes] = {}
    for path, blocks in in_files.items():
        digests.update(_read(path, sorted(blocks)))
    source.check_unchanged()
    digest = hashlib.sha256()
    for (name, offset), value in sorted(digests.items()):
        digest.update(f"{name}|{offset}|".encode() + value)
    return digest.hexdigest()


def text_stamps(files: ModelFiles) -> Stamps:
    """Return the stamps of the files that ``text_digest`` reads."""
    paths = [files.path]
    if files.kind is FileKind.HUGGING_FACE:
        paths = [files.path / name for name in TEXT_FILES]
    return tuple((str(path), _stamp(path)) for path in paths)


def text_digest(files: ModelFiles) -> str:
    """Return a digest of the tokenizer, the chat template and the recommended sampling parameters.

    All files are on this disk. Raise ``ModelNotFoundError`` and ``ModelFileError``.
    """
    digest = hashlib.sha256()
    parts = _directory_text(files.path)
    if files.kind is FileKind.GGUF:
        parts = _gguf_text(files.path)
    for name, data in parts:
        digest.update(f"{name}|{len(data)}|".encode() + data)
    return digest.hexdigest()


def _blocks(tensor: FileTensor, num_blocks: int) -> Iterator[tuple[int, int]]:
    """Yield offsets and sizes of blocks in a tensor: a pseudo-random one in each of equal parts."""
    if tensor.num_bytes <= num_blocks * BLOCK_BYTES:
        if tensor.num_bytes:  # also 0 if the type's size is unknown
            yield 0, tensor.num_bytes
        return
    part_bytes = tensor.num_bytes // num_blocks
    for index in range(num_blocks):
        room = part_bytes - BLOCK_BYTES + 1
        yield index * part_bytes + _number(tensor.name, index) % room, BLOCK_BYTES


def _number(name: str, index: int) -> int:
    """Return a pseudo-random number that is the same on every node."""
    return int.from_bytes(hashlib.sha256(f"{index}|{name}".encode()).digest()[:8], "big")


def _read(path: str, blocks: list[_Block]) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Yield the digest of each block, read in the order of the file."""
    try:
        # Not through the source, which makes the kernel drop pages: weights are loaded next.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with suppress(OSError):  # advice that a file system may not support
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for start, num_bytes, place in blocks:
                data = os.pread(descriptor, num_bytes, start)
                if len(data) != num_bytes:
                    raise ModelFileError(path, f"truncated: it ends before byte {start}")
                yield place, hashlib.sha256(data).digest()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror}") from error


def _stamp(path: Path) -> FileStamp | None:
    if not path.is_file():
        return None
    with closing(ReadOnlyFile(path)) as file:
        return file.stamp


def _directory_text(directory: Path) -> Iterator[tuple[str, bytes]]:
    for name in TEXT_FILES:
        try:
            yield name, hashlib.sha256((directory / name).read_bytes()).digest()
        except FileNotFoundError:
            yield name, b""
        except OSError as error:
            raise ModelFileError(
                str(directory / name), f"cannot be read: {error.strerror}"
            ) from error


def _gguf_text(path: Path) -> Iterator[tuple[str, bytes]]:
    with closing(open_gguf(path)) as source:
        for key in sorted(source.metadata):
            if key.startswith(_TEXT_KEYS):
                digest = hashlib.sha256()
                for piece in source.metadata.stored_bytes(key):
                    digest.update(piece)
                yield key, digest.digest()
        source.check_unchanged()


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
