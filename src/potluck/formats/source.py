"""Tensors that lie in files, whatever the format of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import ReadableFile, quoted
from potluck.types.tensor import TensorFormat, TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensor:
    """Where a tensor lies: at byte ``offset`` of ``file``, checked to be within it.

    ``type_name`` is what the file calls its storage type; ``format`` is None when this build
    cannot use that type. ``shape`` is row-major.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    format: TensorFormat | None
    file: ReadableFile
    offset: int


class FileTensorSource:
    """The tensors of one or several files; a ``TensorSource``. Owns the files and closes them.

    Tensors of types that this build cannot use are listed, and refused when they are asked for.
    Raises ``ModelFileError`` when two tensors have one name; the files are then the caller's.
    """

    def __init__(self, tensors: Iterable[FileTensor], files: Sequence[ReadableFile]) -> None:
        by_name: dict[str, FileTensor] = {}
        for tensor in tensors:
            if tensor.name in by_name:
                raise ModelFileError(
                    tensor.file.path, f"there are two tensors named {quoted(tensor.name)}"
                )
            by_name[tensor.name] = tensor
        self._files = tuple(files)
        self.tensors: Mapping[str, FileTensor] = MappingProxyType(by_name)

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
        has become shorter or cannot be read, ``ValueError`` for rows that do not exist, an
        ``out`` of another length, and after ``close``.
        """
        tensor, info = self._usable(name)
        if not 0 <= start_row <= end_row <= info.num_rows:
            raise ValueError(f"{name} has no rows [{start_row}, {end_row})")
        row_bytes = info.row_bytes
        if out.nbytes != (end_row - start_row) * row_bytes:
            raise ValueError(f"rows [{start_row}, {end_row}) of {name} do not fill {out.nbytes} B")
        if out.nbytes == 0:  # which cannot be cast
            return
        with out.cast("B") as target:
            tensor.file.read_into(tensor.offset + start_row * row_bytes, target)

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
            unusable = {t.type_name for t in self.tensors.values() if t.format is None}
            raise UnsupportedModelError(
                f"{tensor.file.path}: {quoted(name)} is stored as {tensor.type_name}, which this "
                f"build cannot use (types in the model: {', '.join(self._type_names())})",
                missing=tuple(sorted(unusable)),
                hint="choose a file with other types: "
                + ", ".join(format.name for format in TensorFormat),
            )
        info = TensorInfo(name=name, shape=tensor.shape, format=tensor.format)
        return tensor, info

    def _type_names(self) -> list[str]:
        return sorted({tensor.type_name for tensor in self.tensors.values()})
