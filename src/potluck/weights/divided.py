"""The view of a model's tensors for one member of a group."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from potluck.types.program import WeightSpec
from potluck.types.tensor import TensorInfo, TensorSource


def read_runs(weight: WeightSpec, num_rows: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a whole tensor of ``num_rows`` that reading ``weight`` reads, in order."""
    if weight.rows is None or weight.rows.axis == len(weight.shape) - 1:
        yield 0, num_rows
        return
    axis, start, total = weight.rows.axis, weight.rows.start, weight.rows.total
    inner = math.prod(weight.shape[axis + 1 : -1])
    for index in range(math.prod(weight.shape[:axis])):
        first = (index * total + start) * inner
        yield first, first + weight.shape[axis] * inner


def rows_by_matrix(start_row: int, end_row: int, num_rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield the matrices of ``num_rows`` each that contain the rows, and the rows within each."""
    row = start_row
    while row < end_row:
        index, begin = divmod(row, num_rows)
        end = min(begin + end_row - row, num_rows)
        yield index, begin, end
        row += end - begin


def targets_by_matrix(
    start_row: int, end_row: int, num_rows: int, out: memoryview, row_bytes: int
) -> Iterator[tuple[int, int, int, memoryview]]:
    """Yield what ``rows_by_matrix`` does, with the bytes of ``out`` for the rows of each matrix."""
    done = 0
    for index, begin, end in rows_by_matrix(start_row, end_row, num_rows):
        size = (end - begin) * row_bytes
        yield index, begin, end, out[done : done + size]
        done += size


class DividedSource:
    """The parts of the tensors of ``whole`` that ``weights`` specify; a ``TensorSource``.

    Tensors for which ``weights`` specify no rows are unchanged. Only the requested rows are read.
    ``whole`` has the shapes of the whole weights and is not owned: closing this source closes
    nothing.
    """

    def __init__(self, whole: TensorSource, weights: Iterable[WeightSpec]) -> None:
        self._whole = whole
        self._parts = {each.name: each for each in weights if each.rows is not None}

    def names(self) -> Iterable[str]:
        """Return the names of the whole source."""
        return self._whole.names()

    def info(self, name: str) -> TensorInfo:
        """Return the stored part of the tensor."""
        info, part = self._whole.info(name), self._parts.get(name)
        return info if part is None else dataclasses.replace(info, shape=part.shape)

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of rows ``[start_row, end_row)`` of the part into ``out``.

        Raise the errors of the whole source.
        """
        part = self._parts.get(name)
        if part is None or part.rows is None:
            self._whole.read_rows(name, start_row, end_row, out)
            return
        axis, start, total = part.rows.axis, part.rows.start, part.rows.total
        info = self._whole.info(name)
        if axis == len(part.shape) - 1:
            self._read_columns(info, start, part.shape[axis], start_row, end_row, out)
            return
        # A run of rows of each matrix of a stack, or of all of them.
        inner, size = math.prod(part.shape[axis + 1 : -1]), info.row_bytes
        count = part.shape[axis] * inner
        for index, begin, end, target in targets_by_matrix(start_row, end_row, count, out, size):
            first = (index * total + start) * inner
            self._whole.read_rows(name, first + begin, first + end, target)

    def close(self) -> None:
        """Do nothing."""

    def _read_columns(
        self,
        info: TensorInfo,
        start: int,
        count: int,
        start_row: int,
        end_row: int,
        out: memoryview,
    ) -> None:
        """Read elements of vectors, which are not stored in blocks."""
        data = memoryview(bytearray((end_row - start_row) * info.row_bytes))
        self._whole.read_rows(info.name, start_row, end_row, data)
        size, row_bytes = info.format.block_bytes, info.row_bytes
        for row in range(end_row - start_row):
            begin = row * row_bytes + start * size
            out[row * count * size : (row + 1) * count * size] = data[begin : begin + count * size]
