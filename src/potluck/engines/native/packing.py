"""Write weights to a file in the layout that the native engine uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from potluck import kernels
from potluck.engines.dequantize import dequantize
from potluck.engines.native.engine import PANEL_ROWS
from potluck.engines.native.pool import ThreadPool
from potluck.engines.native.program import core_errors
from potluck.kernels import runner
from potluck.types.tensor import TensorFormat, TensorInfo

BUFFER_BYTES = 2**20
"""Bytes of panels packed at once; a larger panel is packed by itself."""

Write = Callable[[str, int, memoryview], None]
"""Receives bytes of a weight: its name, an offset, and the bytes, which it must copy."""


def packed_info(info: TensorInfo) -> TensorInfo:
    """Return the format of a weight in a packed file: vectors are float32."""
    return info if len(info.shape) > 1 else dataclasses.replace(info, format=TensorFormat.F32)


def packing_bytes(loaded: Iterable[TensorInfo]) -> int:
    """Return the memory that a ``PackingSink`` uses for such weights."""
    return max((_num_panels(info) * _panel_bytes(info) for info in loaded), default=0)


class PackingSink:
    """A ``TensorSink`` that passes on what ``NativeEngine.map_weight`` accepts, in
    ascending order.
    """

    def __init__(self, pool: ThreadPool, write: Write) -> None:
        self._pool = pool
        self._write = write
        self._info: TensorInfo | None = None
        self._panels = memoryview(b"")
        self._first_row = 0

    def begin(self, info: TensorInfo) -> None:
        """Allocate the buffer for some panels."""
        self._info = info
        self._panels = memoryview(bytearray(_num_panels(info) * _panel_bytes(info)))
        self._first_row = 0

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Pack rows, and pass on complete panels."""
        info = self._begun(name)
        if len(info.shape) == 1:
            numbers = dequantize(data, info.format, info.num_columns)
            self._write(name, 0, numbers.data.cast("B"))
            return
        capacity = _num_panels(info) * PANEL_ROWS
        row = start_row
        while row < end_row:
            count = min(end_row - row, self._first_row + capacity - row)
            begin = (row - start_row) * info.row_bytes
            with core_errors():
                runner.pack_rows_on(
                    self._pool,
                    info.format.label,
                    info.num_columns,
                    data[begin : begin + count * info.row_bytes],
                    row - self._first_row,
                    count,
                    self._panels,
                )
            row += count
            if row == self._first_row + capacity or row == info.num_rows:
                self._hand_on(info, row)

    def finish(self, name: str) -> None:
        """Free the buffer."""
        self._begun(name)
        self._info = None
        self._panels = memoryview(b"")

    def _hand_on(self, info: TensorInfo, end_row: int) -> None:
        size = _panel_bytes(info)
        used = -(-(end_row - self._first_row) // PANEL_ROWS) * size
        self._write(info.name, self._first_row // PANEL_ROWS * size, self._panels[:used])
        np.frombuffer(self._panels, dtype=np.uint8)[:] = 0  # as required by pack_rows
        self._first_row = end_row

    def _begun(self, name: str) -> TensorInfo:
        if self._info is None or self._info.name != name:
            raise ValueError(f"{name} is not being written")
        return self._info


def _panel_bytes(info: TensorInfo) -> int:
    return kernels.panel_bytes(info.format.label, info.num_columns)


def _num_panels(info: TensorInfo) -> int:
    """Return how many panels are packed at once; 0 for a vector."""
    if len(info.shape) == 1:
        return 0
    return min(max(1, BUFFER_BYTES // _panel_bytes(info)), -(-info.num_rows // PANEL_ROWS))
