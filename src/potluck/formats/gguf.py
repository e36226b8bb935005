"""GGUF models, in one part or split.

Headers are read and checked when a model is opened; tensors, texts and arrays stay in the file
until they are requested. The names and the metadata of split files are those of
llama.cpp's ``gguf-split``. Tensors are returned as stored: ``potluck.weights`` undoes the changes
of converters (interleaved rows of q and k).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats.files import ByteFile, OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.gguf_metadata import HeaderReader, Metadata, read_metadata
from potluck.formats.source import (
    MAX_NAME_BYTES,
    MAX_TENSORS,
    FileTensor,
    FileTensorSource,
    check_tensor_name,
)
from potluck.types.tensor import TensorFormat

PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL | re.ASCII | re.IGNORECASE)
"""The name of a part of a split model, as ``gguf-split`` writes it: its stem, number, the number of
parts, and the ending."""


MAX_HEADER_TENSORS = 2**14
"""The maximum number of tensors of one part. A layer has about 20, with all experts in one, and no
model has over 200 layers. At 400 bytes each, this many would take 6.5 MB."""

MAX_DIMENSIONS = 4
"""``GGML_MAX_DIMS``."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSION = 2**63 - 1
_LEAST_TENSOR_INFO_BYTES = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _GgmlType:
    """A storage type: blocks of ``block_elements`` values in ``block_bytes`` bytes.

    ``format`` is None for types that this build cannot use; ``block_bytes`` is 0 if their size is
    unknown.

    The numbers are those of ``enum ggml_type`` in ggml's ``docs/gguf.md``, and the block sizes
    those of ``ggml-common.h``. Types that this build cannot use are included so that messages can
    name them and their extent in the file can be checked.
    """

    name: str
    block_elements: int
    block_bytes: int
    format: TensorFormat | None = None


def _usable(format: TensorFormat) -> _GgmlType:
    return _GgmlType(
        name=format.name,
        block_elements=format.block_elements,
        block_bytes=format.block_bytes,
        format=format,
    )


def _known(name: str, block_elements: int, block_bytes: int) -> _GgmlType:
    return _GgmlType(name=name, block_elements=block_elements, block_bytes=block_bytes)


def _named(name: str) -> _GgmlType:
    """Return a type of unknown size: one that was abandoned before it had any, or a newer one."""
    return _known(name, 1, 0)


GGML_TYPES: Mapping[int, _GgmlType] = MappingProxyType(
    {
        0: _usable(TensorFormat.F32),
        1: _usable(TensorFormat.F16),
        2: _usable(TensorFormat.Q4_0),
        3: _usable(TensorFormat.Q4_1),
        4: _named("Q4_2"),
        5: _named("Q4_3"),
        6: _usable(TensorFormat.Q5_0),
        7: _usable(TensorFormat.Q5_1),
        8: _usable(TensorFormat.Q8_0),
        9: _known("Q8_1", 32, 40),
        10: _usable(TensorFormat.Q2_K),
        11: _usable(TensorFormat.Q3_K),
        12: _usable(TensorFormat.Q4_K),
        13: _usable(TensorFormat.Q5_K),
        14: _usable(TensorFormat.Q6_K),
        15: _known("Q8_K", 256, 292),
        16: _usable(TensorFormat.IQ2_XXS),
        17: _usable(TensorFormat.IQ2_XS),
        18: _usable(TensorFormat.IQ3_XXS),
        19: _usable(TensorFormat.IQ1_S),
        20: _usable(TensorFormat.IQ4_NL),
        21: _usable(TensorFormat.IQ3_S),
        22: _usable(TensorFormat.IQ2_S),
        23: _usable(TensorFormat.IQ4_XS),
        24: _known("I8", 1, 1),
        25: _known("I16", 1, 2),
        26: _known("I32", 1, 4),
        27: _known("I64", 1, 8),
        28: _known("F64", 1, 8),
        29: _usable(TensorFormat.IQ1_M),
        30: _usable(TensorFormat.BF16),
        # Rows of Q4_0 or IQ4_NL interleaved for one CPU; no longer written, but still in use.
        31: _known("Q4_0_4_4", 32, 18),
        32: _known("Q4_0_4_8", 32, 18),
        33: _known("Q4_0_8_8", 32, 18),
        34: _usable(TensorFormat.TQ1_0),
        35: _usable(TensorFormat.TQ2_0),
        36: _known("IQ4_NL_4_4", 32, 18),
        37: _known("IQ4_NL_4_8", 32, 18),
        38: _known("IQ4_NL_8_8", 32, 18),
        39: _usable(TensorFormat.MXFP4),
        40: _known("NVFP4", 64, 36),
        41: _known("Q1_0", 128, 18),
        42: _known("Q2_0", 64, 18),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The header of a file; ``tensors`` are in the order of the header, and may repeat names.

    The format is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The whole
    header is read and checked here. As in llama.cpp, arrays of arrays are refused, and so are
    tensors that are not contiguous except for alignment.
    """

    metadata: Metadata
    tensors: tuple[FileTensor, ...]


def read_header(file: ByteFile) -> GgufHeader:
    """Read the header of ``file``. Only the result and one window are held in memory.

    Raise ``ModelFileError`` if it is invalid, and ``UnsupportedModelError`` if the version or byte
    order is not supported.
    """
    reader = HeaderReader(file)
    _check_version(file, reader)
    num_tensors = reader.u64("the number of tensors")
    num_entries = reader.u64("the number of metadata entries")
    metadata = read_metadata(file, reader, num_entries)
    if num_tensors > MAX_HEADER_TENSORS:
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
            num_bytes=entry.num_bytes,
        )
        for entry in entries
    )
    return GgufHeader(metadata=metadata, tensors=tensors)


def _check_version(file: ByteFile, reader: HeaderReader) -> None:
    if reader.take(len(_MAGIC), "the magic number") != _MAGIC:
        raise ModelFileError(file.path, "not a GGUF file: it does not start with 'GGUF'")
    version = reader.u32("the version")
    if version in _VERSIONS:
        return
    # A version whose low half is zero was written in the other byte order.
    if version and version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{file.path}: big-endian GGUF files are not supported",
            missing=("big-endian GGUF",),
            hint="use the little-endian version of the model",
        )
    raise UnsupportedModelError(
        f"{file.path}: unsupported GGUF version {version}; this build reads versions "
        f"{' and '.join(map(str, _VERSIONS))}",
        missing=(f"GGUF version {version}",),
        hint="convert the model again with a current version of the converter",
    )


def _alignment(file: ByteFile, metadata: Metadata) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(file.path, "general.alignment is not a power of two")
    return alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A tensor's entry in the header; ``offset`` is relative to the start of the data.

    ``num_bytes`` is 0 for types whose size is unknown.
    """

    name: str
    shape: tuple[int, ...]
    type: _GgmlType
    offset: int
    num_bytes: int


def _read_entry(index: int, file: ByteFile, reader: HeaderReader) -> _Entry:
    name = reader.name(f"the name of tensor {index}", MAX_NAME_BYTES)
    check_tensor_name(name, file.path)
    what = f"tensor {quoted(name)}"
    num_dimensions = reader.u32(what)
    if num_dimensions > MAX_DIMENSIONS:
        raise ModelFileError(file.path, f"{what} has {num_dimensions} dimensions")
    # The first dimension is the contiguous one.
    shape = tuple(reader.u64(what) for _ in range(num_dimensions))[::-1]
    if any(size > _MAX_DIMENSION for size in shape):
        raise ModelFileError(file.path, f"{what} has an invalid shape {shape}")
    type_number = reader.u32(what)
    type_ = GGML_TYPES.get(type_number) or _named(f"type {type_number}")
    num_columns = shape[-1] if shape else 1
    if num_columns % type_.block_elements:
        raise ModelFileError(
            file.path,
            f"{what}: rows of {num_columns} are not a multiple of the {type_.name} block size",
        )
    return _Entry(
        name=name,
        shape=shape,
        type=type_,
        offset=reader.u64(what),
        num_bytes=math.prod(shape) // type_.block_elements * type_.block_bytes,
    )


def _check_extents(
    entries: Sequence[_Entry], file: ByteFile, data_start: int, alignment: int
) -> None:
    """Raise an error unless the tensors are consecutive in the file, and each is aligned."""
    free_from = 0
    is_end_known = True
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.num_bytes)):
        what = f"tensor {quoted(entry.name)}"
        if entry.offset % alignment:
            raise ModelFileError(file.path, f"{what} does not start at a multiple of {alignment}")
        if entry.offset < free_from:
            raise ModelFileError(file.path, f"{what} overlaps the one before it")
        if is_end_known and entry.offset - free_from >= alignment:
            raise ModelFileError(file.path, f"{what} leaves a gap before it")
        free_from = entry.offset + entry.num_bytes
        is_end_known = entry.type.block_bytes > 0
        if data_start + free_from > file.size:
            raise ModelFileError(
                file.path,
                f"truncated: {what} ends at byte {data_start + free_from}, "
                f"the file at byte {file.size}",
            )


def is_gguf(name: str) -> bool:
    """Return whether a file is in GGUF format, by its name."""
    return name.lower().endswith(".gguf")


def gguf_parts(name: str) -> list[str]:
    """Return the file itself, or all parts of the split model that it is a part of."""
    match = PART_NAME.fullmatch(name)
    if match is None:
        return [name]
    stem, _, count, ending = match.groups()
    return [f"{stem}-{part:05d}-of-{count}{ending}" for part in range(1, int(count) + 1)]


class GgufSource(FileTensorSource):
    """The tensors and the metadata of a GGUF model. Owns its files."""

    def __init__(
        self, tensors: Iterable[FileTensor], files: Sequence[ReadableFile], metadata: Metadata
    ) -> None:
        super().__init__(tensors, files)
        self.metadata = metadata
        """The metadata of the first part, which has all that concerns the model. Texts and arrays
        can be read from it until the source is closed."""


def open_gguf(path: Path, open_file: OpenFile = ReadOnlyFile) -> GgufSource:
    """Open the model in ``path``, which may be any part of a split model.

    Raise ``ModelNotFoundError`` if there is no such file; ``ModelFileError`` if a part is missing,
    truncated or corrupt; and ``UnsupportedModelError`` if the version or byte order is not
    supported.
    """
    with ExitStack() as opened:
        parts = _read_parts(path, open_file, opened)
        source = GgufSource(
            (tensor for part in parts for tensor in part.header.tensors),
            [part.file for part in parts],
            parts[0].header.metadata,
        )
        num_tensors = len(source.tensors)
        expected = parts[0].count("split.tensors.count", num_tensors)
        if len(parts) > 1 and num_tensors != expected:
            raise ModelFileError(
                str(path),
                f"its {len(parts)} parts have {num_tensors} tensors, not {expected}",
                hint="a part is damaged or belongs to another model: download them again",
            )
        opened.pop_all()
        return source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    file: ReadableFile
    header: GgufHeader

    def count(self, key: str, default: int) -> int:
        """Return an integer of the metadata."""
        value = self.header.metadata.get(key, default)
        if type(value) is not int or value < 0:
            raise ModelFileError(self.file.path, f"metadata {quoted(key)} is not a valid count")
        return value


def _read_parts(path: Path, open_file: OpenFile, opened: ExitStack) -> list[_Part]:
    given = _read_part(path, open_file, opened)
    num_parts = given.count("split.count", 1)
    if num_parts <= 1:
        return [given]
    name = PART_NAME.fullmatch(path.name)
    if name is None or int(name[3]) != num_parts:
        raise ModelFileError(
            str(path),
            f"one of {num_parts} parts, but its name does not have the form "
            f"NAME-00001-of-{num_parts:05}.gguf",
            hint="rename the parts to their original names",
        )
    parts: list[_Part] = []
    num_tensors = 0
    for index, part_name in enumerate(gguf_parts(path.name)):
        part_path = path.with_name(part_name)
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
                part.file.path, f"its metadata does not identify it as part {index + 1}"
            )
        num_tensors += len(part.header.tensors)
        if num_tensors > MAX_TENSORS:
            raise ModelFileError(str(path), f"its parts have more than {MAX_TENSORS} tensors")
        parts.append(part)
    return parts


def _read_part(path: Path, open_file: OpenFile, opened: ExitStack) -> _Part:
    file = open_file(path)
    opened.callback(file.close)
    header = read_header(file)
    file.release()
    return _Part(file=file, header=header)
