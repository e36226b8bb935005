"""Tensors in memory, and helpers to read whole ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from potluck.types.tensor import TensorInfo, TensorSource


class MemorySource:
    """A ``TensorSource`` over bytes, which remembers what was asked of it."""

    def __init__(self, tensors: Mapping[str, tuple[TensorInfo, bytes]]) -> None:
        self.tensors = tensors
        self.reads: list[tuple[str, int, int]] = []
        self.largest_read_bytes = 0
        self.is_closed = False

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def info(self, name: str) -> TensorInfo:
        return self.tensors[name][0]

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        info, data = self.tensors[name]
        self.reads.append((name, start_row, end_row))
        self.largest_read_bytes = max(self.largest_read_bytes, len(out))
        out[:] = data[start_row * info.row_bytes : end_row * info.row_bytes]

    def close(self) -> None:
        self.is_closed = True


def read_whole(source: TensorSource, name: str) -> bytes:
    """All stored bytes of a tensor, in one read."""
    info = source.info(name)
    data = bytearray(info.num_bytes)
    source.read_rows(name, 0, info.num_rows, memoryview(data))
    return bytes(data)


def read_in_pieces(source: TensorSource, name: str, rows: int) -> bytes:
    """All stored bytes of a tensor, ``rows`` rows at a time."""
    info = source.info(name)
    data = bytearray(info.num_bytes)
    for start in range(0, info.num_rows, rows):
        end = min(start + rows, info.num_rows)
        piece = memoryview(data)[start * info.row_bytes : end * info.row_bytes]
        source.read_rows(name, start, end, piece)
    return bytes(data)
