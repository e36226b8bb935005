"""GGUF files: versions 2 and 3, little endian, in one part or split.

The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the names and the
metadata of split files are those of llama.cpp's ``gguf-split``. The header of every part is read
and checked whole when a model is opened; tensors stay in the file until they are asked for.
Tensors are given as they are stored: what converters do to them (interleaved rows of q and k) is
undone in ``potluck.weights``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.ggml_types import GGML_TYPES, GgmlType
from potluck.formats.gguf_metadata import HeaderReader, MetadataValue, read_metadata
from potluck.formats.source import FileTensor, FileTensorSource

MAX_TENSORS = 2**17
"""Of one part. The largest models published have a few thousand."""

MAX_DIMENSIONS = 4
"""``GGML_MAX_DIMS``."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSION = 2**63 - 1
_LEAST_TENSOR_INFO_BYTES = 8 + 4 + 4 + 8
_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class GgufSource(FileTensorSource):
    """The tensors and the metadata of a GGUF model. Owns its files."""

    def __init__(
        self,
        tensors: Iterable[FileTensor],
        files: Sequence[ReadableFile],
        metadata: dict[str, MetadataValue],
    ) -> None:
        super().__init__(tensors, files)
        self.metadata = metadata
        """That of the first part, which has all that concerns the model."""


def open_gguf(path: Path, open_file: OpenFile = ReadOnlyFile) -> GgufSource:
    """The model in ``path``, which may be any part of a split one.

    Raises ``ModelNotFoundError`` when there is no such file; ``ModelFileError`` when a part is
    missing, truncated or corrupt; ``UnsupportedModelError`` for another version or byte order.
    """
    with ExitStack() as opened:
        parts = _read_parts(path, open_file, opened)
        source = GgufSource(
            (tensor for part in parts for tensor in part.tensors),
            [part.file for part in parts],
            parts[0].metadata,
        )
        opened.pop_all()
        return source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    file: ReadableFile
    metadata: dict[str, MetadataValue]
    tensors: tuple[FileTensor, ...]

    def count(self, key: str, default: int) -> int:
        """A whole number of the metadata."""
        value = self.metadata.get(key, default)
        if type(value) is not int or value < 0:
            raise ModelFileError(self.file.path, f"metadata {quoted(key)} is not a count")
        return value


def _read_parts(path: Path, open_file: OpenFile, opened: ExitStack) -> list[_Part]:
    given = _read_part(path, open_file, opened)
    num_parts = given.count("split.count", 1)
    if num_parts <= 1:
        return [given]
    name = _PART_NAME.fullmatch(path.name)
    if name is None or int(name[3]) != num_parts:
        raise ModelFileError(
            str(path),
            f"one of {num_parts} parts, but its name is not like NAME-00001-of-{num_parts:05}.gguf",
            hint="give the parts their original names back",
        )
    parts: list[_Part] = []
    for index in range(num_parts):
        part_path = path.with_name(f"{name[1]}-{index + 1:05}-of-{num_parts:05}.gguf")
        try:
            part = given if part_path == path else _read_part(part_path, open_file, opened)
        except ModelNotFoundError as error:
            raise ModelFileError(
                str(part_path),
                f"missing; the model has {num_parts} parts",
                hint="put all parts into one directory",
            ) from error
        if part.count("split.no", 0) != index or part.count("split.count", 1) != num_parts:
            raise ModelFileError(
                part.file.path, f"its metadata do not say that it is part {index + 1}"
            )
        parts.append(part)
    num_tensors = sum(len(part.tensors) for part in parts)
    expected = parts[0].count("split.tensors.count", num_tensors)
    if num_tensors != expected:
        raise ModelFileError(str(path), f"its parts have {num_tensors} tensors, not {expected}")
    return parts


def _read_part(path: Path, open_file: OpenFile, opened: ExitStack) -> _Part:
    file = open_file(path)
    opened.callback(file.close)
    reader = HeaderReader(file)
    _check_version(file, reader)
    num_tensors = reader.u64("the number of tensors")
    num_entries = reader.u64("the number of metadata entries")
    metadata = read_metadata(reader, num_entries, file.path)
    if num_tensors > MAX_TENSORS:
        raise ModelFileError(file.path, f"it would have {num_tensors} tensors")
    reader.require(num_tensors, _LEAST_TENSOR_INFO_BYTES, "the list of tensors")
    entries = [_read_entry(index, file, reader) for index in range(num_tensors)]
    alignment = _alignment(file, metadata)
    data_start = -(-reader.position // alignment) * alignment
    _check_extents(entries, file, data_start, alignment)
    tensors = tuple(
        FileTensor(
            name=entry.name,
            shape=entry.shape,
            type_name=entry.type.name,
            format=entry.type.format,
            file=file,
            offset=data_start + entry.offset,
        )
        for entry in entries
    )
    return _Part(file=file, metadata=metadata, tensors=tensors)


def _check_version(file: ReadableFile, reader: HeaderReader) -> None:
    if reader.take(len(_MAGIC), "the magic number") != _MAGIC:
        raise ModelFileError(file.path, "not a GGUF file: it does not begin with 'GGUF'")
    version = reader.u32("the version")
    if version in _VERSIONS:
        return
    # A small number whose low half is zero was written with its bytes the other way round.
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{file.path}: a big-endian GGUF file",
            missing=("big-endian GGUF",),
            hint="get the little-endian file of the model",
        )
    raise UnsupportedModelError(
        f"{file.path}: version {version} of GGUF; this build reads {_VERSIONS[0]} and "
        f"{_VERSIONS[1]}",
        missing=(f"GGUF version {version}",),
        hint="convert the model again with a current converter",
    )


def _alignment(file: ReadableFile, metadata: dict[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(file.path, "general.alignment is not a power of two")
    return alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One tensor as the header has it; ``offset`` is counted from where the data begin.

    ``num_bytes`` is 0 for types whose size is not known.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    num_bytes: int


def _read_entry(index: int, file: ReadableFile, reader: HeaderReader) -> _Entry:
    name = reader.name(f"the name of tensor {index}")
    what = f"tensor {quoted(name)}"
    num_dimensions = reader.u32(what)
    if num_dimensions > MAX_DIMENSIONS:
        raise ModelFileError(file.path, f"{what} has {num_dimensions} dimensions")
    # The first dimension is the one that lies together in memory.
    shape = tuple(reader.u64(what) for _ in range(num_dimensions))[::-1]
    if any(size > _MAX_DIMENSION for size in shape):
        raise ModelFileError(file.path, f"{what} has the impossible shape {shape}")
    type_number = reader.u32(what)
    type_ = GGML_TYPES.get(type_number) or GgmlType(
        name=f"type {type_number}", block_elements=1, block_bytes=0
    )
    num_columns = shape[-1] if shape else 1
    if num_columns % type_.block_elements:
        raise ModelFileError(
            file.path, f"{what}: rows of {num_columns} are not whole {type_.name} blocks"
        )
    return _Entry(
        name=name,
        shape=shape,
        type=type_,
        offset=reader.u64(what),
        num_bytes=math.prod(shape) // type_.block_elements * type_.block_bytes,
    )


def _check_extents(
    entries: Sequence[_Entry], file: ReadableFile, data_start: int, alignment: int
) -> None:
    """Raise unless every tensor is aligned, within the file, and apart from the others."""
    free_from = 0
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.num_bytes)):
        what = f"tensor {quoted(entry.name)}"
        if entry.offset % alignment:
            raise ModelFileError(file.path, f"{what} does not begin at a multiple of {alignment}")
        if entry.offset < free_from:
            raise ModelFileError(file.path, f"{what} overlaps the one before it")
        free_from = entry.offset + entry.num_bytes
        if data_start + free_from > file.size:
            raise ModelFileError(
                file.path,
                f"truncated: {what} ends at byte {data_start + free_from}, "
                f"the file at byte {file.size}",
            )
