"""The tensors of a file under canonical names and with canonical rows."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from potluck.errors import ModelFileError
from potluck.types.tensor import StoredTensor, TensorInfo, TensorSource

STAGING_BYTES = 2**20
"""What undoing an interleaving may hold (or one pair of rows, where that is more)."""


class CanonicalSource:
    """``raw`` with the names and the row order that programs use; a ``TensorSource``.

    It has those of ``stored_tensors`` that ``raw`` has, in the order given. It owns ``raw`` and
    closes it. ``path`` is what messages call the model. Raises ``ValueError`` when a canonical
    name is given twice.
    """

    def __init__(
        self, raw: TensorSource, stored_tensors: Iterable[StoredTensor], *, path: str = "the model"
    ) -> None:
        by_name: dict[str, StoredTensor] = {}
        for stored in stored_tensors:
            if stored.canonical_name in by_name:
                raise ValueError(f"{stored.canonical_name} is given twice")
            by_name[stored.canonical_name] = stored
        present = frozenset(raw.names())
        self._file_names = {name: each.stored_names[0] for name, each in by_name.items()}
        self._raw = raw
        self._stored = {
            name: stored
            for name, stored in by_name.items()
            if not present.isdisjoint(stored.stored_names)
        }
        self._path = path

    def names(self) -> Iterable[str]:
        """The canonical names of the tensors there are."""
        return self._stored.keys()

    def info(self, name: str) -> TensorInfo:
        """What is stored for ``name``; ``KeyError`` if nothing is.

        Raises as ``raw`` does, and ``ModelFileError`` if of a stack a matrix is missing or unlike
        the others.
        """
        stored = self._stored[name]
        info = self._first(stored)
        shape = info.shape
        if stored.is_stacked:
            for each in stored.stored_names:
                self._check_alike(each, info)
            shape = (len(stored.stored_names), *shape)
        elif stored.rows is not None:
            self._check_rows(stored.rows, info)
            shape = (len(stored.rows), *shape[1:])
        return dataclasses.replace(info, name=name, shape=shape)

    def name_in_files(self, name: str) -> str:
        """What the files call it, whether they have it or not; of a stack its first matrix."""
        return self._file_names.get(name, name)

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of canonical rows ``[start_row, end_row)`` into ``out``.

        Raises as ``raw`` does, and ``ModelFileError`` when the rows cannot be those of the heads
        that the tensor should have.
        """
        stored = self._stored[name]
        if stored.is_stacked:
            self._read_stack(stored, start_row, end_row, out)
        elif stored.rows is not None:
            self._read_some(stored, stored.rows, start_row, end_row, out)
        elif stored.interleaved_heads is None:
            self._raw.read_rows(stored.stored_names[0], start_row, end_row, out)
        else:
            self._read_interleaved(stored, stored.interleaved_heads, start_row, end_row, out)

    def close(self) -> None:
        """Close the source below. Idempotent."""
        self._raw.close()

    def _first(self, stored: StoredTensor) -> TensorInfo:
        """The only tensor, or the first matrix that there is of a stack."""
        for name in stored.stored_names:
            with contextlib.suppress(KeyError):
                return self._raw.info(name)
        raise KeyError(stored.canonical_name)

    def _check_alike(self, name: str, first: TensorInfo) -> None:
        try:
            info = self._raw.info(name)
        except KeyError as error:
            raise ModelFileError(self._path, f"the tensor {name} is missing") from error
        if (info.shape, info.format) != (first.shape, first.format):
            raise ModelFileError(
                self._path,
                f"the tensor {name} is {info.format.label} {list(info.shape)}, and {first.name}, "
                f"which belongs with it, is {first.format.label} {list(first.shape)}",
            )

    def _check_rows(self, rows: tuple[int, ...], info: TensorInfo) -> None:
        if len(info.shape) != 2 or not all(0 <= row < info.num_rows for row in rows):
            raise ModelFileError(
                self._path,
                f"the tensor {info.name}, {list(info.shape)}, does not have the rows {list(rows)}",
            )

    def _read_some(
        self,
        stored: StoredTensor,
        rows: tuple[int, ...],
        start_row: int,
        end_row: int,
        out: memoryview,
    ) -> None:
        info = self._first(stored)
        self._check_rows(rows, info)
        size = info.row_bytes
        if not 0 <= start_row <= end_row <= len(rows) or out.nbytes != (end_row - start_row) * size:
            raise ValueError(
                f"{out.nbytes} B are not rows [{start_row}, {end_row}) of {stored.canonical_name}"
            )
        for index, row in enumerate(rows[start_row:end_row]):
            part = out[index * size : (index + 1) * size]
            self._raw.read_rows(info.name, row, row + 1, part)

    def _read_stack(
        self, stored: StoredTensor, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """From each matrix in turn, its rows that are asked for."""
        first = self._first(stored)
        num_rows, size = first.num_rows, first.row_bytes
        if not 0 <= start_row <= end_row <= num_rows * len(stored.stored_names):
            raise ValueError(f"{stored.canonical_name} has no rows [{start_row}, {end_row})")
        if out.nbytes != (end_row - start_row) * size:
            raise ValueError(f"{out.nbytes} B are not rows of {stored.canonical_name}")
        row = start_row
        while row < end_row:
            index, begin = divmod(row, num_rows)
            end = min(begin + end_row - row, num_rows)
            part = out[(row - start_row) * size : (row - start_row + end - begin) * size]
            self._raw.read_rows(stored.stored_names[index], begin, end, part)
            row += end - begin

    def _read_interleaved(
        self, stored: StoredTensor, num_heads: int, start_row: int, end_row: int, out: memoryview
    ) -> None:
        info = self._raw.info(stored.stored_names[0])
        is_vector = len(info.shape) == 1
        num_rows = info.num_columns if is_vector else info.num_rows
        head_rows, rest = divmod(num_rows, num_heads)
        if rest or head_rows % 2 or (is_vector and info.format.is_quantized):
            raise ModelFileError(
                self._path,
                f"{info.name}, {info.format.label} {info.shape}, cannot have {num_heads} "
                "interleaved heads",
            )
        if not 0 <= start_row <= end_row <= info.num_rows:
            raise ValueError(f"{info.name} has no rows [{start_row}, {end_row})")
        if out.nbytes != (end_row - start_row) * info.row_bytes:
            raise ValueError(f"{out.nbytes} B are not rows [{start_row}, {end_row}) of {info.name}")
        if out.nbytes == 0:
            return
        with out.cast("B") as target:
            if is_vector:
                self._read_vector(info, head_rows, target)
            else:
                self._read_matrix(info, head_rows, start_row, end_row, target)

    def _read_vector(self, info: TensorInfo, head_rows: int, out: memoryview) -> None:
        """The whole vector, whose elements are interleaved as the rows of a matrix are."""
        stored = bytearray(info.row_bytes)
        self._raw.read_rows(info.name, 0, 1, memoryview(stored))
        size = info.format.block_bytes
        for head in range(info.num_columns // head_rows):
            begin, end = head * head_rows * size, (head + 1) * head_rows * size
            _separate(memoryview(stored)[begin:end], out[begin:end], size)

    def _read_matrix(
        self, info: TensorInfo, head_rows: int, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Whole heads at once where they are asked for and fit the buffer, else runs of rows.

        A run lies within one half of one head, which is every other row of the file: both halves
        read the same bytes there.
        """
        half, size = head_rows // 2, info.row_bytes
        most_pairs = max(1, STAGING_BYTES // (2 * size))
        staging = memoryview(bytearray(2 * size * min(most_pairs, half)))
        row = start_row
        while row < end_row:
            head, row_in_head = divmod(row, head_rows)
            is_second, pair = divmod(row_in_head, half)
            begin = (row - start_row) * size
            if row_in_head == 0 and row + head_rows <= end_row and half <= most_pairs:
                count = head_rows
                self._raw.read_rows(info.name, row, row + head_rows, staging)
                _separate(staging, out[begin : begin + head_rows * size], size)
            else:
                count = min(half - pair, most_pairs, end_row - row)
                stored_row = head * head_rows + 2 * pair
                pairs = staging[: 2 * size * count]
                self._raw.read_rows(info.name, stored_row, stored_row + 2 * count, pairs)
                _rows(out[begin : begin + count * size], size)[:] = _rows(pairs, 2 * size)[
                    :, is_second * size : (is_second + 1) * size
                ]
            row += count


def _separate(pairs: memoryview, out: memoryview, row_bytes: int) -> None:
    """A head's rows from pairs ``(j, j + half)`` one after another to the two halves."""
    stored = _rows(pairs, 2 * row_bytes)
    target = _rows(out, row_bytes)
    half = len(stored)
    target[:half] = stored[:, :row_bytes]
    target[half:] = stored[:, row_bytes:]


def _rows(data: memoryview, row_bytes: int) -> NDArray[np.uint8]:
    """Bytes ``[rows, row_bytes]``; a view."""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)
