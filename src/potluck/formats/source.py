"""Tensors that lie in files, whatever the format of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import ByteFile, ReadableFile, quoted
from potluck.types.tensor import TensorFormat, TensorInfo

MAX_TENSORS = 3 * 2**16
"""Of one model. The largest dense one known (Llama 3.1 405B) has 1,138, Qwen3-235B, whose experts
are tensors of their own, 36,945, and twice as many in FP8, with their scales; Kimi K2 has 140,000
then. Each takes up to 400 bytes here, so a header that claims more would cost more than 79 MB
whatever the size of its file."""

MAX_NAME_BYTES = 255
"""Of a tensor. GGUF allows 64, and names in safetensors files are module paths of about 80."""

_MOST_TYPES_NAMED = 10
"""In a message. Models have two or three, hostile files as many as they have tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensor:
    """Where a tensor lies: the ``num_bytes`` from byte ``offset`` of ``file``, checked to be there.

    ``type_name`` is what the file calls its storage type; ``format`` is None when this build
    cannot use that type (``num_bytes`` is then 0 where its size is not known). ``shape`` is
    row-major.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    format: TensorFormat | None
    file: ByteFile
    offset: int
    num_bytes: int


def check_tensor_name(name: str, path: str) -> None:
    """Raise ``ModelFileError`` unless ``name`` is of 1 to ``MAX_NAME_BYTES`` printable ASCII.

    Names of tensors are paths of identifiers. Nothing else is a name that some program reads, and
    what is in a name reaches terminals and logs.
    """
    if not (0 < len(name) <= MAX_NAME_BYTES and name.isascii() and name.isprintable()):
        raise ModelFileError(
            path, f"{quoted(name)} cannot be the name of a tensor (it has {len(name)} characters)"
        )


class FileTensorSource:
    """The tensors of one or several files; a ``TensorSource``. Owns the files and closes them.

    Of the files only the one read last has a descriptor open. (A program's order changes files a
    few hundred times in a model of 200 files, at 20 µs each.) Tensors of types that this build
    cannot use are listed, and refused when they are asked for. ``tensors`` may come from an
    iterator that still adds to ``files``. Raises ``ModelFileError`` when two tensors have one name
    or there are more than ``MAX_TENSORS``; the files are then the caller's.
    """

    def __init__(self, tensors: Iterable[FileTensor], files: Collection[ReadableFile]) -> None:
        by_name: dict[str, FileTensor] = {}
        for tensor in tensors:
            if tensor.name in by_name:
                raise ModelFileError(
                    tensor.file.path, f"there are two tensors named {quoted(tensor.name)}"
                )
            if len(by_name) == MAX_TENSORS:
                raise ModelFileError(
                    tensor.file.path, f"the model has more than {MAX_TENSORS} tensors"
                )
            by_name[tensor.name] = tensor
        self._files = tuple(files)
        self._last_read: ByteFile | None = None
        self.tensors: Mapping[str, FileTensor] = MappingProxyType(by_name)
        self.encoding = ""
        """How tensors are decoded, in words that tell it apart; empty where they are as stored."""

    @property
    def files(self) -> tuple[ReadableFile, ...]:
        """The files that it owns."""
        return self._files

    def names(self) -> Iterable[str]:
        """All tensor names, in file order."""
        return self.tensors.keys()

    def info(self, name: str) -> TensorInfo:
        """What is stored under ``name``.

        Raises ``KeyError`` if nothing is, ``UnsupportedModelError`` if its type cannot be used.
        """
        return self._usable(name)[1]

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of rows ``[start_row, end_row)`` into ``out``.

        Rows come as they are stored. Raises as ``info`` does, ``ModelFileError`` when the file
        has become shorter, was replaced or cannot be read, ``ValueError`` for rows that do not
        exist, an ``out`` of another length, and after ``close``.
        """
        tensor, info = self._usable(name)
        if not 0 <= start_row <= end_row <= info.num_rows:
            raise ValueError(f"{name} has no rows [{start_row}, {end_row})")
        row_bytes = info.row_bytes
        if out.nbytes != (end_row - start_row) * row_bytes:
            raise ValueError(f"rows [{start_row}, {end_row}) of {name} do not fill {out.nbytes} B")
        self.read_stored(tensor, start_row * row_bytes, out)

    def read_stored(self, tensor: FileTensor, start_byte: int, out: memoryview) -> None:
        """Fill ``out`` with stored bytes of one of ``tensors`` from ``start_byte`` on.

        The tensor may be of any type. Raises ``ModelFileError`` as ``read_rows`` does, and
        ``ValueError`` for bytes that the tensor does not have.
        """
        if not 0 <= start_byte <= start_byte + out.nbytes <= tensor.num_bytes:
            raise ValueError(f"{tensor.name} has no {out.nbytes} bytes from {start_byte} on")
        if out.nbytes == 0:  # which cannot be cast
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
        """The tensors of the files that ``name`` consists of; ``KeyError`` if there are none."""
        return (self.tensors[name],)

    def decoding_bytes(self, name: str) -> int:
        """What reading rows of ``name`` holds besides them: nothing here."""
        return 0

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if a file was written to or replaced since it was opened.

        Asked after the last read, it vouches for all of them and for the headers.
        """
        for file in self._files:
            file.check_unchanged()

    @property
    def num_bytes_read(self) -> int:
        """Of all the files so far, headers included."""
        return sum(file.num_bytes_read for file in self._files)

    def close(self) -> None:
        """Close the files. Idempotent."""
        for file in self._files:
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
                hint="choose a file with other types: "
                + ", ".join(format.name for format in TensorFormat),
            )
        info = TensorInfo(name=name, shape=tensor.shape, format=tensor.format)
        return tensor, info
