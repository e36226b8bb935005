"""Tensors in files, independent of the file format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import ByteFile, ReadableFile, quoted
from potluck.types.tensor import TensorFormat, TensorInfo

MAX_TENSORS = 3 * 2**16
"""The maximum number of tensors of a model. The largest known dense model (Llama 3.1 405B) has
1,138. Qwen3-235B, whose experts are separate tensors, has 36,945, and twice as many in FP8 with
scales; Kimi K2 in FP8 has 140,000. Each takes up to 400 bytes of memory, so without this limit a
header could require more than 79 MB."""

MAX_NAME_BYTES = 255
"""The maximum size of a tensor's name. GGUF allows 64, and names in safetensors files are module
paths of about 80."""

_MOST_TYPES_NAMED = 10
"""The maximum number of types in a message. Models have two or three; malicious files may have one
per tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensor:
    """The location of a tensor: ``num_bytes`` from byte ``offset`` of ``file``, which exist.

    ``type_name`` is the file's name for the storage type; ``format`` is None if this build cannot
    use that type (``num_bytes`` is then 0 if its size is unknown). ``shape`` is row-major.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    format: TensorFormat | None
    file: ByteFile
    offset: int
    num_bytes: int


def _duplicate(first: FileTensor, second: FileTensor) -> ModelFileError:
    name = quoted(second.name)
    if first.file is second.file:
        return ModelFileError(second.file.path, f"there are two tensors named {name}")
    return ModelFileError(
        second.file.path,
        f"{name} is also in {Path(first.file.path).name}",
        hint="one of the two files belongs to another model: download them again",
    )


def check_tensor_name(name: str, path: str) -> None:
    """Raise ``ModelFileError`` unless ``name`` has 1 to ``MAX_NAME_BYTES`` printable ASCII bytes.

    Names of tensors are paths of identifiers; no program reads any others. They are printed to
    terminals and logs.
    """
    if not (0 < len(name) <= MAX_NAME_BYTES and name.isascii() and name.isprintable()):
        raise ModelFileError(
            path, f"{quoted(name)} is not a valid tensor name (it has {len(name)} characters)"
        )


def check_rows(info: TensorInfo, start_row: int, end_row: int, out: memoryview) -> None:
    """Raise ``ValueError`` unless ``info`` has these rows and they fill ``out``."""
    if not 0 <= start_row <= end_row <= info.num_rows:
        raise ValueError(f"{info.name} has no rows [{start_row}, {end_row})")
    if out.nbytes != (end_row - start_row) * info.row_bytes:
        raise ValueError(f"rows [{start_row}, {end_row}) of {info.name} do not fill {out.nbytes} B")


class FileTensorSource:
    """The tensors of one or several files; a ``TensorSource``. Owns the files and closes them.

    Only the file that was read last has an open descriptor. (Reading a model of 200 files in a
    program's order switches files a few hundred times, at 20 µs each.) Tensors of types that this
    build cannot use are listed, but refused when they are requested. ``tensors`` may be an iterator
    that still adds to ``files``. Raise ``ModelFileError`` if two tensors have the same name or
    there are more than ``MAX_TENSORS``; the caller then still owns the files.
    """

    def __init__(self, tensors: Iterable[FileTensor], files: Collection[ReadableFile]) -> None:
        by_name: dict[str, FileTensor] = {}
        for tensor in tensors:
            if tensor.name in by_name:
                raise _duplicate(by_name[tensor.name], tensor)
            if len(by_name) == MAX_TENSORS:
                raise ModelFileError(
                    tensor.file.path, f"the model has more than {MAX_TENSORS} tensors"
                )
            by_name[tensor.name] = tensor
        self.files = tuple(files)
        """The files that it owns."""
        self._last_read: ByteFile | None = None
        self.tensors: Mapping[str, FileTensor] = MappingProxyType(by_name)
        self.encoding = ""
        """A text that identifies how tensors are decoded; empty if they are used as stored."""

    def names(self) -> Iterable[str]:
        """Return all tensor names, in file order."""
        return self.tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """Return the tensor stored under ``name``.

        Raise ``KeyError`` if there is none, and ``UnsupportedModelError`` if its type cannot be
        used.
        """
        return self._usable(name)[1]

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of rows ``[start_row, end_row)`` into ``out``.

        Rows are copied as stored. Raise the errors of ``info``; ``ModelFileError`` if the file has
        become shorter, was replaced or cannot be read; and ``ValueError`` if rows do not exist, if
        ``out`` has the wrong length, and after ``close``.
        """
        tensor, info = self._usable(name)
        check_rows(info, start_row, end_row, out)
        self.read_stored(tensor, start_row * info.row_bytes, out)

    def read_stored(self, tensor: FileTensor, start_byte: int, out: memoryview) -> None:
        """Fill ``out`` with stored bytes of one of ``tensors`` from ``start_byte`` on.

        The tensor may be of any type. Raise ``ModelFileError`` like ``read_rows``, and
        ``ValueError`` if the tensor does not have these bytes.
        """
        if not 0 <= start_byte <= start_byte + out.nbytes <= tensor.num_bytes:
            raise ValueError(f"{tensor.name} has no {out.nbytes} bytes at offset {start_byte}")
        if out.nbytes == 0:  # an empty buffer cannot be cast
            return
        if self._last_read is not None and self._last_read is not tensor.file:
            self._last_read.release()
        self._last_read = tensor.file
        with out.cast("B") as target:
            try:
                tensor.file.read_into(tensor.offset + start_byte, target)
            except ModelFileError as error:
                raise ModelFileError(
                    error.path, f"tensor {quoted(tensor.name)}: {error.problem}", hint=error.hint
                ) from error

    def stored_parts(self, name: str) -> tuple[FileTensor, ...]:
        """Return the stored tensors that make up ``name``. Raise ``KeyError`` if none exist."""
        return (self.tensors[name],)

    def stored_ranges(
        self, name: str, start_row: int, end_row: int
    ) -> Iterator[tuple[FileTensor, int, int]]:
        """Yield the ranges of stored tensors that ``read_rows`` reads for these rows, in order.

        Raise the errors of ``info``.
        """
        tensor, info = self._usable(name)
        yield tensor, start_row * info.row_bytes, end_row * info.row_bytes

    def decoding_bytes(self, name: str) -> int:
        """Return the memory that reading rows of ``name`` needs in addition to them: none here."""
        return 0

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if a file was written to or replaced since it was opened.

        When called after the last read, it covers all reads and the headers.
        """
        for file in self.files:
            file.check_unchanged()

    @property
    def num_bytes_read(self) -> int:
        """The bytes read from all files so far, including headers."""
        return sum(file.num_bytes_read for file in self.files)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _usable(self, name: str) -> tuple[FileTensor, TensorInfo]:
        tensor = self.tensors[name]
        if tensor.format is None:
            types = {each.type_name: each.format for each in self.tensors.values()}
            unusable = sorted(type_name for type_name, format in types.items() if format is None)
            named = sorted(types)[:_MOST_TYPES_NAMED]
            raise UnsupportedModelError(
                f"{tensor.file.path}: {quoted(name)} is stored as {tensor.type_name}, which this "
                f"build cannot use (types in the model: {', '.join(named)})",
                missing=tuple(unusable[:_MOST_TYPES_NAMED]),
                hint="choose a file with supported types: "
                + ", ".join(format.name for format in TensorFormat),
            )
        info = TensorInfo(name=name, shape=tensor.shape, format=tensor.format)
        return tensor, info
