"""MXFP4 as gpt-oss stores it, shown in GGUF's layout of the same blocks.

A block has 32 E2M1 numbers with one E8M0 scale (OCP Microscaling Formats 1.0). The files store the
numbers as ``…_blocks``, ``[…, blocks, 16]``, where byte ``j`` has numbers ``2j`` (low nibble) and
``2j + 1``, and the scales as ``…_scales``, ``[…, blocks]``. GGUF stores the scale and then 16
bytes, where byte ``j`` has numbers ``j`` and ``j + 16``. No values change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.formats.encodings.blocks import halves_from_pairs
from potluck.formats.encodings.parts import (
    PIECE_BYTES,
    PIECE_ELEMENTS,
    ReadBytes,
    check_shape,
    check_type,
    contradiction,
    num_elements,
)
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from potluck.formats.source import FileTensor

_BYTES = 16


class MicroscaledTensor:
    """Matrices of MXFP4; an ``EncodedTensor``."""

    def __init__(self, name: str, blocks: FileTensor, scales: FileTensor, read: ReadBytes) -> None:
        check_type(blocks, "U8")
        check_type(scales, "U8", "F8_E8M0")
        if len(blocks.shape) < 3 or blocks.shape[-1] != _BYTES or not num_elements(blocks.shape):
            raise contradiction(
                blocks, f"has the shape {list(blocks.shape)}, but must have blocks of 16 bytes"
            )
        check_shape(scales, blocks.shape[:-1])
        *leading, num_blocks, _ = blocks.shape
        self.info = TensorInfo(
            name=name, shape=(*leading, 2 * _BYTES * num_blocks), format=TensorFormat.MXFP4
        )
        self.parts = (blocks, scales)
        self._read = read
        self._row_blocks = num_blocks

    @property
    def decoding_bytes(self) -> int:
        """The memory for decoding a piece or a row."""
        return max(PIECE_BYTES, 3 * self.info.row_bytes)

    def read_rows(self, start_row: int, end_row: int, out: memoryview) -> None:
        """Read rows, as many at a time as fit into a piece."""
        blocks, scales = self.parts
        step = max(1, PIECE_ELEMENTS // self.info.num_columns)
        target = np.frombuffer(out, dtype=np.uint8).reshape(-1, _BYTES + 1)
        for row in range(start_row, end_row, step):
            first = row * self._row_blocks
            count = (min(row + step, end_row) - row) * self._row_blocks
            codes, exponents = bytearray(count * _BYTES), bytearray(count)
            self._read(blocks, first * _BYTES, memoryview(codes))
            self._read(scales, first, memoryview(exponents))
            begin = first - start_row * self._row_blocks
            part = target[begin : begin + count]
            part[:, 0] = np.frombuffer(exponents, dtype=np.uint8)
            part[:, 1:] = halves_from_pairs(
                np.frombuffer(codes, dtype=np.uint8).reshape(count, _BYTES)
            )

    def stored_ranges(self, start_row: int, end_row: int) -> Iterator[tuple[FileTensor, int, int]]:
        """Yield the ranges of the rows' numbers and of their scales."""
        blocks, scales = self.parts
        first, end = start_row * self._row_blocks, end_row * self._row_blocks
        yield blocks, first * _BYTES, end * _BYTES
        yield scales, first, end

    def release(self) -> None:
        """Do nothing, since no data is held."""
