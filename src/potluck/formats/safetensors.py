"""Models in safetensors files: one file, or several with an index.

Headers are read and checked; the files are found, and checked to be consistent.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path, PurePosixPath
from typing import TypeGuard

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import ByteFile, OpenFile, ReadableFile, ReadOnlyFile, quoted, read_bytes
from potluck.formats.json_reader import JsonReader
from potluck.formats.source import MAX_TENSORS, FileTensor, FileTensorSource, check_tensor_name
from potluck.types.tensor import TensorFormat

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_OTHER_MODEL = "the file is damaged, or belongs to another model: download it again"

_CONSOLIDATED = "consolidated."
"""The weights under the names of Mistral's own library, often beside those of Hugging Face."""
_ADAPTER = "adapter_model."
_PICKLE = re.compile(r"pytorch_model[^/]*\.bin|[^/]*\.(pth|pt|ckpt)")


MAX_HEADER_BYTES = 100_000_000
"""The maximum size of a header or an index, which is the format's own limit (``MAX_HEADER_SIZE`` of
the reference). A tensor takes 100 to 200 bytes; the index of DeepSeek-V3, with 91,991 tensors, has
9 MB. It bounds time, not memory."""

MAX_FILES = 2**12
"""The maximum number of files of a model; DeepSeek-V3 has 163, Llama 3.1 405B 191."""

MAX_METADATA_ENTRIES = 2**16
"""The maximum number of texts in the metadata, which are not used. Skipping them takes 0.1 s."""

MAX_DIMENSIONS = 32
"""The maximum number of dimensions, which bounds the product of a shape; models use at most 5."""

_MAX_DIMENSION = 2**63 - 1
_MAX_INDEX_MEMBERS = 2**6
_LENGTH = struct.Struct("<Q")
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_METADATA = "__metadata__"

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
_TYPE_NAMES = {dtype: dtype for dtype in _DTYPE_BITS}


def read_header(file: ByteFile) -> list[FileTensor]:
    """Return the tensors of a file sorted by offset, with everything but repeated names checked.

    Raise ``ModelFileError`` if the header is invalid. Only the result and a few windows of text are
    held in memory.

    The format (https://github.com/huggingface/safetensors#format): eight bytes, the length of the
    header, little endian; the header, a JSON object from tensor names to ``dtype``, ``shape`` and
    ``data_offsets`` (begin and end, relative to the end of the header), and with ``__metadata__``,
    an object of texts; and then the tensors' bytes, which cover the rest of the file without gaps
    or overlaps. All of this is checked here. In addition to what the reference rejects, this
    refuses names that ``check_tensor_name`` refuses, unknown keys of tensors, and more tensors than
    ``MAX_TENSORS``.
    """
    (length,) = _LENGTH.unpack(read_bytes(file, 0, _LENGTH.size))
    data_start = _LENGTH.size + length
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            file.path,
            f"not a safetensors file: its header has {length} bytes; the format allows at most "
            f"{MAX_HEADER_BYTES}",
        )
    if data_start > file.size:
        raise ModelFileError(
            file.path,
            f"truncated: the header ends at byte {data_start}, the file at byte {file.size}",
        )
    reader = JsonReader(file, _LENGTH.size, data_start, what="the header")
    tensors: list[FileTensor] = []
    has_metadata = False
    for name in reader.keys(MAX_TENSORS + 1, "the header"):
        if name != _METADATA:
            tensors.append(_read_entry(name, reader.value(), file, data_start))
        elif has_metadata:
            raise ModelFileError(file.path, f"the header has '{_METADATA}' twice")
        else:
            has_metadata = True
            reader.skip_texts(MAX_METADATA_ENTRIES, _METADATA)
    reader.finish()
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.num_bytes))
    _check_coverage(tensors, file, data_start)
    return tensors


def read_weight_map(file: ByteFile) -> dict[str, str]:
    """Return the ``weight_map`` of an index, from tensor names to files below its directory.

    Raise ``ModelFileError`` if the index is invalid, or if a file name is outside that directory.
    """
    if file.size > MAX_HEADER_BYTES:
        raise ModelFileError(file.path, f"larger than {MAX_HEADER_BYTES} bytes")
    reader = JsonReader(file, 0, file.size, what="the index")
    file_of: dict[str, str] | None = None
    for key in reader.keys(_MAX_INDEX_MEMBERS, "the index"):
        if key != "weight_map":
            reader.value()
        elif file_of is not None:
            raise ModelFileError(file.path, "the index has 'weight_map' twice")
        else:
            file_of = _files_by_name(reader, file)
    reader.finish()
    if not file_of:
        raise ModelFileError(file.path, "the index has no weight_map, or an empty one")
    return file_of


def _files_by_name(reader: JsonReader, file: ByteFile) -> dict[str, str]:
    file_of: dict[str, str] = {}
    known: dict[str, str] = {}  # so that each file name is held only once
    for name in reader.keys(MAX_TENSORS, "weight_map"):
        check_tensor_name(name, file.path)
        file_name = reader.value()
        if not isinstance(file_name, str):
            raise ModelFileError(
                file.path, f"weight_map does not map to a file name for {quoted(name)}"
            )
        if file_name not in known:
            _check_file_name(name, file_name, file)
            if len(known) == MAX_FILES:
                raise ModelFileError(file.path, f"weight_map names more than {MAX_FILES} files")
            known[file_name] = file_name
        if name in file_of:
            raise ModelFileError(file.path, f"weight_map has {quoted(name)} twice")
        file_of[name] = known[file_name]
    return file_of


def _check_file_name(name: str, file_name: str, file: ByteFile) -> None:
    target = PurePosixPath(file_name)
    if target.is_absolute() or ".." in target.parts or not target.name or "\0" in file_name:
        raise ModelFileError(
            file.path,
            f"{quoted(name)} is mapped to {quoted(file_name)}, which is outside the model's "
            f"directory",
        )
    try:
        file_name.encode("utf-8")  # JSON can spell half a surrogate pair
    except UnicodeEncodeError as error:
        raise ModelFileError(file.path, f"{quoted(file_name)} is not valid Unicode") from error


def _read_entry(name: str, entry: object, file: ByteFile, data_start: int) -> FileTensor:
    check_tensor_name(name, file.path)
    what = f"tensor {quoted(name)}"
    if not isinstance(entry, dict) or entry.keys() != _ENTRY_KEYS:
        raise ModelFileError(file.path, f"{what}: not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ModelFileError(file.path, f"{what}: dtype is not a string")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelFileError(file.path, f"{what}: shape is not a valid list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(file.path, f"{what}: data_offsets is not a pair of begin and end")
    begin, end = offsets
    if data_start + end > file.size:
        raise ModelFileError(
            file.path,
            f"truncated: {what} ends at byte {data_start + end}, the file at byte {file.size}",
        )
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
        raise ModelFileError(
            file.path, f"{what}: {dtype} of shape {_shown(shape)} does not take {end - begin} bytes"
        )
    return FileTensor(
        name=name,
        shape=tuple(shape),
        type_name=_TYPE_NAMES.get(dtype) or quoted(dtype),
        format=_FORMATS.get(dtype),
        file=file,
        offset=data_start + begin,
        num_bytes=end - begin,
    )


def _check_coverage(tensors: Iterable[FileTensor], file: ByteFile, data_start: int) -> None:
    """Raise an error unless sorted ``tensors`` cover the data without gaps or overlaps."""
    covered = data_start
    for tensor in tensors:
        if tensor.offset != covered:
            problem = "overlaps the one" if tensor.offset < covered else "leaves a gap"
            raise ModelFileError(file.path, f"tensor {quoted(tensor.name)} {problem} before it")
        covered = tensor.offset + tensor.num_bytes
    if covered != file.size:
        raise ModelFileError(
            file.path, f"the tensors end at byte {covered}, the file at byte {file.size}"
        )


def _shown(shape: list[int]) -> str:
    text = str(shape)
    return text if len(text) <= 100 else f"{text[:90]}…]"


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= _MAX_DIMENSION for size in value
    )


def open_safetensors(
    path: Path, open_file: OpenFile = ReadOnlyFile, *, names: Collection[str] | None = None
) -> FileTensorSource:
    """Open a ``*.safetensors`` file, an index, or a directory in Hugging Face layout.

    A directory has ``model.safetensors``, or ``model.safetensors.index.json`` and the files that
    it names, or a single ``*.safetensors`` file (searched in this order, as in ``transformers``).
    With ``names``, only the files that the index lists for these tensors are opened. Raise
    ``ModelNotFoundError`` if a directory has none of these, and ``ModelFileError`` if a file is
    missing, truncated, corrupt or inconsistent with the index.
    """
    try:
        file_or_index = _find(path)
    except OSError as error:
        raise ModelFileError(
            str(path), f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    file_of: Mapping[str, str] | None = None
    paths = [file_or_index]
    if file_or_index.name == INDEX_FILE:
        file_of = read_index(file_or_index)
        if names is not None:
            file_of = {name: file_name for name, file_name in file_of.items() if name in names}
        paths = [file_or_index.parent / name for name in sorted(set(file_of.values()))]
    with ExitStack() as opened:
        files: dict[Path, ReadableFile] = {}

        def open_next(path: Path) -> ReadableFile:
            file = open_file(path)
            opened.callback(file.close)
            files[path] = file
            return file

        source = FileTensorSource(
            _read_files(paths, file_or_index, open_next, file_of), files.values()
        )
        if file_of is not None:
            _check_index(file_of, source, files, file_or_index)
        opened.pop_all()
        return source


def weights_name(names: Collection[str]) -> str | None:
    """Return the file of a directory through which its weights are opened; None if there is none.

    As in ``transformers``, it is ``model.safetensors``, else the index, else the only
    ``*.safetensors`` file.
    """
    for name in (SINGLE_FILE, INDEX_FILE):
        if name in names:
            return name
    found = _top_level(names)
    return found[0] if len(found) == 1 else None


def missing_weights(place: str, names: Collection[str]) -> ModelNotFoundError:
    """Return the error for a directory or repository without safetensors of its model."""
    if other := other_weights(place, names):
        return other
    num_found = len(_top_level(names))
    found = f"{num_found} .safetensors files but no index" if num_found else "no weights"
    return ModelNotFoundError(
        f"{place}: {found}",
        hint=f"the directory must contain {SINGLE_FILE}, or {INDEX_FILE} and the files it names",
    )


def other_weights(place: str, names: Collection[str]) -> ModelNotFoundError | None:
    """Return the error for weights that are only in a layout that is not read; None without any."""
    pickles = sorted(name for name in names if _PICKLE.fullmatch(name))
    if pickles:
        return ModelNotFoundError(
            f"{place}: no weights but {pickles[0]}, a pickle file",
            hint="pickle files can run programs and are not read: convert the model, for example "
            "with save_pretrained of transformers, or get it as safetensors or GGUF",
        )
    if any(name.startswith(_CONSOLIDATED) for name in names):
        return ModelNotFoundError(
            f"{place}: no weights but {_CONSOLIDATED}safetensors, the layout of Mistral's library",
            hint=f"get the model in Hugging Face layout: config.json and {SINGLE_FILE}",
        )
    return None


def _top_level(names: Iterable[str]) -> list[str]:
    """Return the files that can be the only file of a model."""
    return sorted(
        name
        for name in names
        if name.endswith(".safetensors")
        and "/" not in name
        and not name.startswith((_CONSOLIDATED, _ADAPTER))
    )


def read_index(path: Path) -> dict[str, str]:
    """Return the ``weight_map`` of an index, from tensor names to files below its directory.

    Raise ``ModelFileError`` if it is invalid.
    """
    with closing(ReadOnlyFile(path)) as file:
        return read_weight_map(file)


def _find(path: Path) -> Path:
    """Return the file to open for ``path``: a file with tensors, or an index."""
    if not path.is_dir():
        return path
    names = [each.name for each in path.iterdir()]
    name = weights_name(names)
    if name is None:
        raise missing_weights(str(path), names)
    return path / name  # it may be a broken link; opening it raises an error that names it


def _read_files(
    paths: list[Path],
    named_by: Path,
    open_file: OpenFile,
    file_of: Mapping[str, str] | None,
) -> Iterator[FileTensor]:
    """Yield the tensors of each file in turn, and release each file when its header was read.

    Raise an error for a file with a tensor that the index lists for another one.
    """
    for path in paths:
        try:
            file = open_file(path)
        except ModelNotFoundError as error:
            if path == named_by:
                raise
            name = path.relative_to(named_by.parent)
            raise ModelFileError(
                str(named_by), f"the file {name}, which it names, is missing"
            ) from error
        for tensor in read_header(file):
            listed = None if file_of is None else file_of.get(tensor.name)
            if listed is not None and named_by.parent / listed != path:
                raise ModelFileError(
                    file.path,
                    f"it has {quoted(tensor.name)}, which {INDEX_FILE} lists for {quoted(listed)}",
                    hint=_OTHER_MODEL,
                )
            yield tensor
        file.release()


def _check_index(
    file_of: Mapping[str, str],
    source: FileTensorSource,
    files: Mapping[Path, ReadableFile],
    index_path: Path,
) -> None:
    """Raise an error for a file without a tensor that the index lists for it.

    Tensors in the files that are not in the index also belong to the model, as in ``transformers``.
    """
    file_named = {name: files[index_path.parent / name] for name in set(file_of.values())}
    for name, file_name in file_of.items():
        tensor = source.tensors.get(name)
        if tensor is None or tensor.file is not file_named[file_name]:
            raise ModelFileError(
                file_named[file_name].path,
                f"it has no {quoted(name)}, which {INDEX_FILE} lists for it",
                hint=_OTHER_MODEL,
            )
