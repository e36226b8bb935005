"""Provide the tensors of a file under canonical names and in canonical row order."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from potluck.errors import ModelFileError
from potluck.types.tensor import (
    InterleavedHeads,
    RowRange,
    StoredTensor,
    TensorFormat,
    TensorInfo,
    TensorSource,
)
from potluck.weights.divided import rows_by_matrix, targets_by_matrix
from potluck.weights.load import UNDOING_BYTES

Dequantize = Callable[[memoryview, TensorFormat, int], NDArray[np.float32]]
"""Dequantizes whole stored rows, given by their bytes, format and number of columns, to float32
``[rows, columns]``."""


class CanonicalSource:
    """``raw`` with the names and the row order that programs use; a ``TensorSource``.

    It has those of ``stored_tensors`` that ``raw`` has, in the given order. It owns ``raw`` and
    closes it. ``path`` is the model's name in messages. ``dequantize`` is needed to read parts that
    are stored in blocks and must be transposed, which become float32. Raise ``ValueError`` if a
    canonical name is given twice.
    """

    def __init__(
        self,
        raw: TensorSource,
        stored_tensors: Iterable[StoredTensor],
        *,
        path: str = "the model",
        dequantize: Dequantize | None = None,
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
        self._dequantize = dequantize
        self._matrix: tuple[tuple[str, int], NDArray[np.uint8]] | None = None

    def names(self) -> Iterable[str]:
        """Return the canonical names of the available tensors."""
        return self._stored.keys()

    def info(self, name: str) -> TensorInfo:
        """Return the tensor stored for ``name``. Raise ``KeyError`` if there is none.

        Raise the errors of ``raw``, and ``ModelFileError`` if a matrix of a stack is missing or
        differs from the others, or if a tensor does not have the rows of a part.
        """
        stored = self._stored[name]
        info = self._first(stored)
        shape = info.shape
        if stored.row_range is not None:
            shape = _shape_of_part(self._path, stored.row_range, info)
            if stored.is_part_transposed:
                info = dataclasses.replace(info, format=_transposable(info.format))
                shape = (*shape[:-2], shape[-1], shape[-2])
        if stored.is_stacked:
            for each in stored.stored_names:
                self._check_alike(each, info)
            shape = (len(stored.stored_names), *shape)
        elif stored.rows is not None:
            _check_rows(self._path, stored.rows, info)
            shape = (sum(map(len, stored.rows)), *shape[1:])
        if stored.is_flat:
            shape = (math.prod(shape),)
        if stored.shape is not None and _without_ones(shape) == _without_ones(stored.shape):
            shape = stored.shape
        format = TensorFormat.F32 if _is_computed(stored) else info.format
        return dataclasses.replace(info, name=name, shape=shape, format=format)

    def transposing_bytes(self, name: str) -> int:
        """Return the memory that reading ``name`` needs for a transposed matrix, or 0."""
        stored = self._stored[name]
        info = self._raw.info(stored.stored_names[0])
        if stored.is_part_transposed and stored.row_range is not None:
            row_bytes = _transposable(info.format).row_bytes(info.num_columns)
            return stored.row_range.num_rows * row_bytes + UNDOING_BYTES
        if not _is_transposed(stored, info):
            return 0
        return math.prod(info.shape[-2:]) * info.format.block_bytes + UNDOING_BYTES

    def name_in_files(self, name: str) -> str:
        """Return the tensor's name in the files, whether it exists or not; for a stack, the name of
        its first matrix.
        """
        return self._file_names.get(name, name)

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of canonical rows ``[start_row, end_row)`` into ``out``.

        Raise the errors of ``raw``, and ``ModelFileError`` if the rows do not match the heads that
        the tensor should have.
        """
        stored = self._stored[name]
        if _is_computed(stored):
            self._read_computed(stored, start_row, end_row, out)
        elif stored.row_range is not None:
            self._read_part(stored, stored.row_range, start_row, end_row, out)
        elif stored.is_stacked or stored.rows is not None:
            self._read_runs(stored, start_row, end_row, out)
        else:
            factor = self._stored_rows_per_row(stored)
            self._read_stored(
                stored, stored.stored_names[0], start_row * factor, end_row * factor, out
            )

    def stored_runs(
        self, name: str, start_row: int, end_row: int
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the rows of tensors of ``raw`` that are read for these rows, in order.

        They may include unneeded rows between needed ones. Raise the errors of ``info``.
        """
        stored = self._stored[name]
        first = self._first(stored)
        if _is_computed(stored):
            yield first.name, start_row, end_row
        elif stored.row_range is not None:
            yield from self._runs_of_part(stored, stored.row_range, first, start_row, end_row)
        elif stored.is_stacked:
            for index, begin, end in rows_by_matrix(start_row, end_row, first.num_rows):
                yield stored.stored_names[index], begin, end
        elif stored.rows is not None:
            done = 0
            for run in stored.rows:
                begin, end = max(start_row, done), min(end_row, done + len(run))
                if begin < end:
                    yield first.name, run.start + begin - done, run.start + end - done
                done += len(run)
        else:
            factor = self._stored_rows_per_row(stored)
            yield from self._runs_of_stored(
                stored, stored.stored_names[0], start_row * factor, end_row * factor
            )

    def close(self) -> None:
        """Close the underlying source. Idempotent."""
        self._matrix = None
        self._raw.close()

    def _stored_rows_per_row(self, stored: StoredTensor) -> int:
        """Return how many rows of the file's tensor make up a row: all of them for a vector."""
        is_vector = stored.interleaved is None and len(self.info(stored.canonical_name).shape) == 1
        return self._first(stored).num_rows if is_vector else 1

    def _runs_of_stored(
        self, stored: StoredTensor, name: str, start_row: int, end_row: int
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the rows that ``_read_stored`` reads."""
        info = self._raw.info(name)
        if stored.interleaved is not None:
            if len(info.shape) == 1:
                yield name, 0, 1
                return
            heads = stored.interleaved
            turned = (start_row % heads.head_dim) - heads.start
            begin = start_row - (turned if 0 < turned < heads.rotary_dim else 0)
            turned = (end_row % heads.head_dim) - heads.start
            left = heads.rotary_dim - turned if 0 < turned < heads.rotary_dim else 0
            yield name, begin, end_row + left
        elif _is_transposed(stored, info):
            stored_rows, num_rows = info.shape[-2:]
            for index, _, _ in rows_by_matrix(start_row, end_row, num_rows):
                yield name, index * stored_rows, (index + 1) * stored_rows
        else:
            yield name, start_row, end_row

    def _runs_of_part(
        self, stored: StoredTensor, part: RowRange, info: TensorInfo, start_row: int, end_row: int
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the rows that ``_read_part`` reads of a tensor like ``info``."""
        if _is_vector(part, info):
            yield info.name, start_row, end_row
            return
        matrix_rows = info.shape[-2]
        if stored.is_part_transposed:
            for index, _, _ in rows_by_matrix(start_row, end_row, info.num_columns):
                first = index * matrix_rows + part.start
                yield info.name, first, first + part.num_rows
            return
        for index, begin, end in rows_by_matrix(start_row, end_row, part.num_rows):
            name, first = info.name, index * matrix_rows + part.start
            if stored.is_stacked:
                name, first = stored.stored_names[index], part.start
            last = first + (end - 1) * part.stride
            yield from self._runs_of_stored(stored, name, first + begin * part.stride, last + 1)

    def _first(self, stored: StoredTensor) -> TensorInfo:
        """Return the only tensor, or the first matrix of a stack, transposed if necessary."""
        for name in stored.stored_names:
            with contextlib.suppress(KeyError):
                info = self._raw.info(name)
                if stored.num_matrices is not None:
                    return _divided(self._path, info, stored.num_matrices)
                if not _is_transposed(stored, info):
                    return info
                *stack, rows, columns = info.shape
                return dataclasses.replace(info, shape=(*stack, columns, rows))
        raise KeyError(stored.canonical_name)

    def _floats(self, data: memoryview, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the numbers of stored rows as bytes; rows in blocks are dequantized."""
        if not info.format.is_quantized:
            return np.frombuffer(data, dtype=np.uint8)
        if self._dequantize is None:
            raise ValueError(f"there is no function to dequantize {info.name}")
        return self._dequantize(data, info.format, info.num_columns).view(np.uint8)

    def _read_stored(
        self, stored: StoredTensor, name: str, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Read rows of ``name`` in canonical order, or of the transposes of its matrices."""
        info = self._raw.info(name)
        if stored.interleaved is not None:
            self._read_interleaved(stored, stored.interleaved, start_row, end_row, out)
            return
        if not _is_transposed(stored, info):
            self._raw.read_rows(name, start_row, end_row, out)
            return
        stored_rows, num_rows = info.shape[-2:]
        size = stored_rows * info.format.block_bytes
        for index, begin, end, target in targets_by_matrix(start_row, end_row, num_rows, out, size):
            matrix = self._transposed(info, index * stored_rows, stored_rows)
            _rows(target, size)[:] = matrix[begin:end]

    def _transposed(self, info: TensorInfo, first: int, num_rows: int) -> NDArray[np.uint8]:
        """Return the transpose of rows of ``info``, as bytes of the transpose's rows.

        The last transpose is cached, since the next rows are usually from the same one.
        """
        key = (info.name, first)
        if self._matrix is None or self._matrix[0] != key:
            self._matrix = None
            num_columns, size = info.num_columns, _transposable(info.format).block_bytes
            rows = np.empty((num_columns, num_rows, size), dtype=np.uint8)
            step = max(1, UNDOING_BYTES // (num_columns * size))
            for row in range(0, num_rows, step):
                count = min(step, num_rows - row)
                data = memoryview(bytearray(count * info.row_bytes))
                self._raw.read_rows(info.name, first + row, first + row + count, data)
                piece = self._floats(data, info).reshape(count, num_columns, size)
                rows[:, row : row + count] = piece.swapaxes(0, 1)
            self._matrix = (key, rows.reshape(num_columns, num_rows * size))
        return self._matrix[1]

    def _check_alike(self, name: str, first: TensorInfo) -> None:
        try:
            info = self._raw.info(name)
        except KeyError as error:
            raise ModelFileError(self._path, f"the tensor {name} is missing") from error
        if (info.shape, info.format) != (first.shape, first.format):
            raise ModelFileError(
                self._path,
                f"the tensor {name} is {info.format.label} {list(info.shape)}, but {first.name} "
                f"in the same stack is {first.format.label} {list(first.shape)}",
            )

    def _read_part(
        self, stored: StoredTensor, part: RowRange, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Read rows of each matrix, consecutive ones at once, others one by one from a piece."""
        info = self._first(stored)
        _shape_of_part(self._path, part, info)
        if _is_vector(part, info):
            self._read_part_of_vectors(stored, info, part, start_row, end_row, out)
            return
        if stored.is_part_transposed:
            self._read_transposed_part(info, part, start_row, end_row, out)
            return
        matrix_rows, size = info.shape[-2], info.row_bytes
        row = start_row
        while row < end_row:
            index, begin = divmod(row, part.num_rows)
            count = min(part.num_rows - begin, end_row - row)
            count = min(count, max(1, UNDOING_BYTES // (size * part.stride)))
            name, first = info.name, index * matrix_rows + part.start + begin * part.stride
            if stored.is_stacked:
                name, first = stored.stored_names[index], part.start + begin * part.stride
            target = out[(row - start_row) * size : (row - start_row + count) * size]
            if part.stride == 1:
                self._read_stored(stored, name, first, first + count, target)
            else:
                num_rows = (count - 1) * part.stride + 1
                staging = memoryview(bytearray(num_rows * size))
                self._read_stored(stored, name, first, first + num_rows, staging)
                _rows(target, size)[:] = _rows(staging, size)[:: part.stride]
            row += count

    def _read_transposed_part(
        self, info: TensorInfo, part: RowRange, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Read rows of the transposes of parts, which are consecutive rows of each matrix."""
        num_rows = info.num_columns
        size = part.num_rows * _transposable(info.format).block_bytes
        for index, begin, end, target in targets_by_matrix(start_row, end_row, num_rows, out, size):
            first = index * info.shape[-2] + part.start
            _rows(target, size)[:] = self._transposed(info, first, part.num_rows)[begin:end]

    def _read_part_of_vectors(
        self,
        stored: StoredTensor,
        info: TensorInfo,
        part: RowRange,
        start_row: int,
        end_row: int,
        out: memoryview,
    ) -> None:
        """Read elements of each row of a small tensor of vectors."""
        data = memoryview(bytearray((end_row - start_row) * info.row_bytes))
        if stored.interleaved is None:
            self._raw.read_rows(info.name, start_row, end_row, data)
        else:
            self._read_interleaved(stored, stored.interleaved, start_row, end_row, data)
        size = info.format.block_bytes
        elements = _rows(data, size).reshape(end_row - start_row, info.num_columns, size)
        end = part.start + (part.num_rows - 1) * part.stride + 1
        wanted = np.ascontiguousarray(elements[:, part.start : end : part.stride])
        out[:] = wanted.reshape(-1).data

    def _read_computed(
        self, stored: StoredTensor, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Read a vector of floats with 1 added, as in ``transformers``, or ``-exp`` of it."""
        info = self._first(stored)
        data = memoryview(bytearray((end_row - start_row) * info.row_bytes))
        self._raw.read_rows(info.name, start_row, end_row, data)
        values = _as_float32(data, info.format)
        if values is None:
            raise ModelFileError(
                self._path, f"the tensor {info.name} is {info.format.label}, but must hold floats"
            )
        if stored.is_negative_exp:
            values = -np.exp(values.astype(np.float64)).astype(np.float32)  # rounded once
        if stored.plus_one:
            values = values + np.float32(1)
        out[:] = values.view(np.uint8).data

    def _read_runs(
        self, stored: StoredTensor, start_row: int, end_row: int, out: memoryview
    ) -> None:
        """Read the requested rows of each run of rows, or of each matrix of a stack, at once."""
        first = self._first(stored)
        num_rows = first.num_rows * len(stored.stored_names)
        if stored.rows is not None:
            _check_rows(self._path, stored.rows, first)
            num_rows = sum(map(len, stored.rows))
        _check_request(stored.canonical_name, num_rows, first.row_bytes, start_row, end_row, out)
        done = 0
        for name, begin, end in self.stored_runs(stored.canonical_name, start_row, end_row):
            size = (end - begin) * first.row_bytes
            self._raw.read_rows(name, begin, end, out[done : done + size])
            done += size

    def _read_interleaved(
        self,
        stored: StoredTensor,
        heads: InterleavedHeads,
        start_row: int,
        end_row: int,
        out: memoryview,
    ) -> None:
        info = self._raw.info(stored.stored_names[0])
        is_vector = len(info.shape) == 1
        num_rows = info.num_columns if is_vector else info.num_rows
        is_possible = num_rows == heads.num_heads * heads.head_dim
        if not is_possible or (is_vector and info.format.is_quantized):
            raise ModelFileError(
                self._path,
                f"{info.name}, {info.format.label} {info.shape}, cannot have {heads.num_heads} "
                "interleaved heads",
            )
        _check_request(info.name, info.num_rows, info.row_bytes, start_row, end_row, out)
        if out.nbytes == 0:
            return
        with out.cast("B") as target:
            if is_vector:
                self._read_vector(info, heads, target)
            else:
                self._read_matrix(info, heads, start_row, end_row, target)

    def _read_vector(self, info: TensorInfo, heads: InterleavedHeads, out: memoryview) -> None:
        """Read a whole vector, whose elements are interleaved like the rows of a matrix."""
        stored = bytearray(info.row_bytes)
        self._raw.read_rows(info.name, 0, 1, memoryview(stored))
        out[:] = memoryview(stored)
        size = info.format.block_bytes
        for head in range(heads.num_heads):
            begin = (head * heads.head_dim + heads.start) * size
            end = begin + heads.rotary_dim * size
            _separate(memoryview(stored)[begin:end], out[begin:end], size)

    def _read_matrix(
        self,
        info: TensorInfo,
        heads: InterleavedHeads,
        start_row: int,
        end_row: int,
        out: memoryview,
    ) -> None:
        """Read all rotated rows of a head at once if they are requested and fit into the buffer,
        and runs of rows otherwise.

        A run is within one half of a head's rotated rows, which are every other row in the file (so
        both halves read the same bytes), or within the rows that are not rotated.
        """
        head_rows, turning = heads.head_dim, heads.rotary_dim
        half, size = turning // 2, info.row_bytes
        most_pairs = max(1, UNDOING_BYTES // (2 * size))
        staging = memoryview(bytearray(2 * size * min(most_pairs, half)))
        row = start_row
        while row < end_row:
            head, row_in_head = divmod(row, head_rows)
            turned = row_in_head - heads.start
            begin = (row - start_row) * size
            if not 0 <= turned < turning:
                end = heads.start if turned < 0 else head_rows
                count = min(end - row_in_head, end_row - row)
                self._raw.read_rows(info.name, row, row + count, out[begin : begin + count * size])
            elif turned == 0 and row + turning <= end_row and half <= most_pairs:
                count = turning
                self._raw.read_rows(info.name, row, row + turning, staging)
                _separate(staging, out[begin : begin + turning * size], size)
            else:
                is_second, pair = divmod(turned, half)
                count = min(half - pair, most_pairs, end_row - row)
                stored_row = head * head_rows + heads.start + 2 * pair
                pairs = staging[: 2 * size * count]
                self._raw.read_rows(info.name, stored_row, stored_row + 2 * count, pairs)
                _rows(out[begin : begin + count * size], size)[:] = _rows(pairs, 2 * size)[
                    :, is_second * size : (is_second + 1) * size
                ]
            row += count


def _is_computed(stored: StoredTensor) -> bool:
    """Return whether the values differ from those in the file."""
    return stored.plus_one or stored.is_negative_exp


def _transposable(format: TensorFormat) -> TensorFormat:
    """Return the format of a transposed part."""
    return TensorFormat.F32 if format.is_quantized else format


def _is_transposed(stored: StoredTensor, info: TensorInfo) -> bool:
    return stored.is_transposed and not info.format.is_quantized and len(info.shape) >= 2


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _is_vector(part: RowRange, info: TensorInfo) -> bool:
    """Return whether a part belongs to vectors: a single one, or one for each expert."""
    return len(info.shape) == 1 or part.of_vectors


def _as_float32(data: memoryview, format: TensorFormat) -> NDArray[np.float32] | None:
    if format is TensorFormat.F32:
        return np.frombuffer(data, dtype=np.float32)
    if format is TensorFormat.F16:
        return np.frombuffer(data, dtype=np.float16).astype(np.float32)
    if format is TensorFormat.BF16:
        wide = np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32)
    return None


def _separate(pairs: memoryview, out: memoryview, row_bytes: int) -> None:
    """Reorder a head's rows from consecutive pairs ``(j, j + half)`` to the two halves."""
    stored = _rows(pairs, 2 * row_bytes)
    target = _rows(out, row_bytes)
    half = len(stored)
    target[:half] = stored[:, :row_bytes]
    target[half:] = stored[:, row_bytes:]


def _rows(data: memoryview, row_bytes: int) -> NDArray[np.uint8]:
    """Return the bytes as a view ``[rows, row_bytes]``."""
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, row_bytes)


def _divided(path: str, info: TensorInfo, num_matrices: int) -> TensorInfo:
    """Return the tensor for a matrix that is a stack of ``num_matrices`` matrices."""
    rows, rest = divmod(info.num_rows, num_matrices)
    if len(info.shape) != 2 or rest:
        raise ModelFileError(
            path,
            f"the tensor {info.name}, {list(info.shape)}, cannot be divided into "
            f"the rows of {num_matrices} heads",
        )
    return dataclasses.replace(info, shape=(num_matrices, rows, info.num_columns))


def _check_request(
    name: str, num_rows: int, row_bytes: int, start_row: int, end_row: int, out: memoryview
) -> None:
    """Raise ``ValueError`` unless there are these rows, and they fill ``out``."""
    if not 0 <= start_row <= end_row <= num_rows:
        raise ValueError(f"{name} has no rows [{start_row}, {end_row})")
    if out.nbytes != (end_row - start_row) * row_bytes:
        raise ValueError(f"{out.nbytes} B are not rows [{start_row}, {end_row}) of {name}")


def _check_rows(path: str, rows: tuple[range, ...], info: TensorInfo) -> None:
    first, end = min(each.start for each in rows), max(each.stop for each in rows)
    if len(info.shape) != 2 or first < 0 or end > info.num_rows:
        raise ModelFileError(
            path,
            f"the tensor {info.name}, {list(info.shape)}, does not have the expected rows "
            f"{first} to {end - 1}",
        )


def _shape_of_part(path: str, part: RowRange, info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a part of each matrix of a tensor, or of each vector."""
    is_vector = _is_vector(part, info)
    axis = len(info.shape) - (1 if is_vector else 2)
    last = part.start + (part.num_rows - 1) * part.stride
    if axis < 0 or last >= info.shape[axis] or (is_vector and info.format.is_quantized):
        raise ModelFileError(
            path,
            f"the tensor {info.name}, {info.format.label} {list(info.shape)}, does not have "
            f"the required rows {part.start} to {last}",
        )
    return (*info.shape[:axis], part.num_rows, *info.shape[axis + 1 :])
