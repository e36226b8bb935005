"""safetensors files: bounds-checked headers, and models of one or several files.

The format (https://github.com/huggingface/safetensors#format): eight bytes, the length of the
header, little endian; the header, a JSON object from tensor names to ``dtype``, ``shape`` and
``data_offsets`` (begin and end, counted from the end of the header) with the texts of
``__metadata__`` besides; then the tensors' bytes, which cover the rest of the file without gaps or
overlaps. All of it is checked before any tensor is read. Stricter than the reference in two
points: a name that occurs twice, and keys that no tensor has, are refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile, quoted
from potluck.formats.source import FileTensor, FileTensorSource
from potluck.types.tensor import TensorFormat

MAX_HEADER_BYTES = 100_000_000
"""The reference implementation's limit (``safetensors/src/tensor.rs``); for an index also."""

MAX_DIMENSIONS = 32
"""So that the product of a shape stays a small number; tensors of models have at most 5."""

_MAX_DIMENSION = 2**63 - 1
_LENGTH = struct.Struct("<Q")
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_FORMATS = {"F32": TensorFormat.F32, "F16": TensorFormat.F16, "BF16": TensorFormat.BF16}

# Sizes of the types of the reference implementation, 0.8. Others can be listed but not checked.
_DTYPE_BITS = {
    dtype: bits
    for bits, dtypes in {
        4: ("F4",),
        6: ("F6_E2M3", "F6_E3M2"),
        8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
        16: ("I16", "U16", "F16", "BF16"),
        32: ("I32", "U32", "F32"),
        64: ("I64", "U64", "F64", "C64"),
    }.items()
    for dtype in dtypes
}


def open_safetensors(
    path: Path, open_file: OpenFile = ReadOnlyFile, *, names: Collection[str] | None = None
) -> FileTensorSource:
    """The tensors of a ``*.safetensors`` file, an index, or a directory in Hugging Face layout.

    A directory has ``model.safetensors``, or ``model.safetensors.index.json`` and the files that
    it names, or a single ``*.safetensors`` (looked for in this order, as ``transformers`` does).
    With ``names``, only the files that an index gives for these tensors are opened.
    Raises ``ModelNotFoundError`` when it has none of them, ``ModelFileError`` when a file is
    missing, truncated, corrupt or not what the index says.
    """
    try:
        file_or_index = _find(path)
    except OSError as error:
        raise ModelFileError(
            str(path), f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    if file_or_index.name == INDEX_FILE:
        return _open_indexed(file_or_index, open_file, names)
    return _open_one(file_or_index, open_file)


def _find(path: Path) -> Path:
    """The file to open for ``path``: tensors, or an index."""
    if not path.is_dir():
        return path
    for name in (SINGLE_FILE, INDEX_FILE):
        if (path / name).exists():
            return path / name
    candidates = sorted(path.glob("*.safetensors"))
    if len(candidates) == 1:
        return candidates[0]
    found = f"{len(candidates)} .safetensors files and no index" if candidates else "no weights"
    raise ModelNotFoundError(
        f"{path}: {found}",
        hint=f"the directory must have {SINGLE_FILE}, or {INDEX_FILE} and the files it names",
    )


def _open_one(path: Path, open_file: OpenFile) -> FileTensorSource:
    with ExitStack() as opened:
        file = open_file(path)
        opened.callback(file.close)
        source = FileTensorSource(_read_header(file), [file])
        opened.pop_all()
        return source


def _open_indexed(
    index_path: Path, open_file: OpenFile, names: Collection[str] | None
) -> FileTensorSource:
    file_of = read_index(index_path)
    if names is not None:
        file_of = {name: file_name for name, file_name in file_of.items() if name in names}
    with ExitStack() as opened:
        files: list[ReadableFile] = []
        tensors: list[FileTensor] = []
        for file_name in sorted(set(file_of.values())):
            try:
                file = open_file(index_path.parent / file_name)
            except ModelNotFoundError as error:
                raise ModelFileError(
                    str(index_path), f"the file {file_name}, which it names, is missing"
                ) from error
            opened.callback(file.close)
            files.append(file)
            # A tensor that the index places elsewhere, or does not know, is not the model's.
            tensors += [t for t in _read_header(file) if file_of.get(t.name) == file_name]
        missing = file_of.keys() - {tensor.name for tensor in tensors}
        if missing:
            name = min(missing)
            raise ModelFileError(
                str(index_path), f"{quoted(name)} is not in {file_of[name]}, where it should be"
            )
        source = FileTensorSource(tensors, files)
        opened.pop_all()
        return source


def read_index(path: Path) -> dict[str, str]:
    """The ``weight_map`` of an index: from tensor names to files below its own directory.

    Raises ``ModelFileError`` where it is not one.
    """
    file = ReadOnlyFile(path)
    try:
        if file.size > MAX_HEADER_BYTES:
            raise ModelFileError(str(path), f"larger than {MAX_HEADER_BYTES} bytes")
        index = _parse_object(file.read(0, file.size), file, "it")
    finally:
        file.close()
    weight_map = index.get("weight_map")
    if not _is_str_map(weight_map):
        raise ModelFileError(str(path), "weight_map is not an object of file names")
    for name, file_name in weight_map.items():
        target = PurePosixPath(file_name)
        if target.is_absolute() or ".." in target.parts or not target.name or "\0" in file_name:
            raise ModelFileError(
                str(path), f"{quoted(name)} is said to be in {quoted(file_name)}, outside the model"
            )
        _check_name(name, file)
        _check_name(file_name, file)
    return weight_map


def _read_header(file: ReadableFile) -> list[FileTensor]:
    """The tensors of a file by offset, all checked."""
    (length,) = _LENGTH.unpack(file.read(0, _LENGTH.size))
    data_start = _LENGTH.size + length
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            file.path, f"not a safetensors file: its header would have {length} bytes"
        )
    if data_start > file.size:
        raise ModelFileError(
            file.path,
            f"truncated: the header ends at byte {data_start}, the file at byte {file.size}",
        )
    header = _parse_object(file.read(_LENGTH.size, length), file, "the header")
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not _is_str_map(metadata):
        raise ModelFileError(file.path, "__metadata__ is not an object of texts")
    spans = sorted(
        (_read_entry(name, entry, file, data_start) for name, entry in header.items()),
        key=lambda span: (span[1], span[2]),
    )
    _check_coverage(spans, file, data_start)
    return [tensor for tensor, _, _ in spans]


def _read_entry(
    name: str, entry: object, file: ReadableFile, data_start: int
) -> tuple[FileTensor, int, int]:
    """One tensor and its begin and end in the data."""
    _check_name(name, file)
    what = f"tensor {quoted(name)}"
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise ModelFileError(file.path, f"{what}: not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ModelFileError(file.path, f"{what}: dtype is not a text")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelFileError(file.path, f"{what}: shape is not a short list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(file.path, f"{what}: data_offsets are not a begin and an end")
    begin, end = offsets
    if data_start + end > file.size:
        raise ModelFileError(
            file.path,
            f"truncated: {what} ends at byte {data_start + end}, the file at byte {file.size}",
        )
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
        raise ModelFileError(
            file.path, f"{what}: {dtype} of shape {shape} does not take {end - begin} bytes"
        )
    tensor = FileTensor(
        name=name,
        shape=tuple(shape),
        type_name=dtype if dtype in _DTYPE_BITS else quoted(dtype),
        format=_FORMATS.get(dtype),
        file=file,
        offset=data_start + begin,
    )
    return tensor, begin, end


def _check_coverage(
    spans: Iterable[tuple[FileTensor, int, int]], file: ReadableFile, data_start: int
) -> None:
    """Raise unless sorted ``spans`` cover the data without gaps or overlaps."""
    covered = 0
    for tensor, begin, end in spans:
        if begin != covered:
            problem = "overlaps the one before it" if begin < covered else "leaves a gap before it"
            raise ModelFileError(file.path, f"tensor {quoted(tensor.name)} {problem}")
        covered = end
    if data_start + covered != file.size:
        raise ModelFileError(
            file.path,
            f"the tensors end at byte {data_start + covered}, the file at byte {file.size}",
        )


def _parse_object(data: bytes, file: ReadableFile, what: str) -> dict[str, object]:
    """``data`` as a JSON object in UTF-8 in which no key occurs twice."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in pairs:
            if key in values:
                raise ModelFileError(file.path, f"{what} has {quoted(key)} twice")
            values[key] = value
        return values

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(file.path, f"{what} is not valid JSON") from error
    if not isinstance(value, dict):
        raise ModelFileError(file.path, f"{what} is not a JSON object")
    return value


def _check_name(name: str, file: ReadableFile) -> None:
    """JSON can spell half a surrogate pair, which no file or terminal takes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ModelFileError(file.path, f"{quoted(name)} is not valid Unicode") from error


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= _MAX_DIMENSION for size in value
    )


def _is_str_map(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
