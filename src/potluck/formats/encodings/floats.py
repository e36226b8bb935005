"""Floating-point weights of few bits: FP8 with scales, shown as BF16, and MXFP4 as gpt-oss stores
it, shown in GGUF's layout of the same blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.formats.encodings.parts import (
    PIECE_BYTES,
    PIECE_ELEMENTS,
    ReadBytes,
    check_scales,
    check_shape,
    check_type,
    contradiction,
    halves_from_pairs,
    read_scales,
    unreadable,
)
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from potluck.formats.encodings.encoding import FloatEncoding
    from potluck.formats.source import FileTensor


FLOAT_TYPE = "F8_E4M3"

_BYTES = 16


class MicroscaledTensor:
    """Matrices of MXFP4; an ``EncodedTensor``.

    A block has 32 E2M1 numbers with one E8M0 scale (OCP Microscaling Formats 1.0). The files store
    the numbers as ``…_blocks``, ``[…, blocks, 16]``, where byte ``j`` has numbers ``2j`` (low
    nibble) and ``2j + 1``, and the scales as ``…_scales``, ``[…, blocks]``. GGUF stores the scale
    and then 16 bytes, where byte ``j`` has numbers ``j`` and ``j + 16``. No values change.
    """

    def __init__(self, name: str, blocks: FileTensor, scales: FileTensor, read: ReadBytes) -> None:
        check_type(blocks, "U8")
        check_type(scales, "U8", "F8_E8M0")
        if len(blocks.shape) < 3 or blocks.shape[-1] != _BYTES or not math.prod(blocks.shape):
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


def _e4m3_values() -> NDArray[np.float32]:
    """Return each byte's value: sign, 4 bits of exponent (bias 7), 3 of fraction, no infinity."""
    codes = np.arange(256)
    exponents, fractions = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(1 + fractions / 8, exponents - 7)
    values = np.where(exponents == 0, np.ldexp(fractions / 8, -6), normal)
    values = np.where(codes & 127 == 127, np.nan, values)
    return np.where(codes >= 128, -values, values).astype(np.float32)


_E4M3_VALUES = _e4m3_values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Scales ``[matrices, rows, columns]``, each for ``block_rows`` and ``block_columns``."""

    shape: tuple[int, int, int]
    block_rows: int
    block_columns: int


class FloatTensor:
    """One or several FP8 matrices; an ``EncodedTensor``.

    A value is the product of an E4M3 number (4 significant bits) and its scale, computed in float32
    and rounded to the nearest BF16 number, ties to even, as in ``transformers``
    (``Fp8Dequantize``). If scales are powers of two, nothing is rounded. Scales are stored in a
    separate tensor: one for the whole tensor, one for each row, or one for each block of rows and
    columns.
    """

    def __init__(
        self,
        name: str,
        weight: FileTensor,
        scale: FileTensor,
        encoding: FloatEncoding,
        read: ReadBytes,
    ) -> None:
        if len(weight.shape) < 2 or not math.prod(weight.shape):
            raise unreadable(weight, "FP8 vectors")
        check_scales(scale)
        self.info = TensorInfo(name=name, shape=weight.shape, format=TensorFormat.BF16)
        self.parts = (weight, scale)
        self._read = read
        self._grid = _grid(weight, scale, encoding)
        self._scales: NDArray[np.float32] | None = None

    @property
    def decoding_bytes(self) -> int:
        """The memory for a piece, for the scales twice while they are read, and for the tables of
        one row of blocks.
        """
        piece = max(PIECE_BYTES, 24 * self.info.num_columns)
        return piece + 12 * math.prod(self._grid.shape) + 16 * 256 * self._grid.shape[2]

    def read_rows(self, start_row: int, end_row: int, out: memoryview) -> None:
        """Read rows, counted from the first matrix; rows with the same scales share a table."""
        weight, scale = self.parts
        grid = self._grid
        if self._scales is None:
            self._scales = read_scales(self._read, scale).reshape(grid.shape)
        matrix_rows, columns = weight.shape[-2:]
        target = np.frombuffer(out, dtype="<u2").reshape(-1, columns)
        most_rows = max(1, PIECE_ELEMENTS // columns)
        row = start_row
        while row < end_row:
            matrix, row_in_matrix = divmod(row, matrix_rows)
            block = row_in_matrix // grid.block_rows
            block_end = min((block + 1) * grid.block_rows, matrix_rows)
            count = min(block_end - row_in_matrix, end_row - row, most_rows)
            stored = bytearray(count * columns)
            self._read(weight, row * columns, memoryview(stored))
            codes = np.frombuffer(stored, dtype=np.uint8).reshape(count, columns)
            part = target[row - start_row : row - start_row + count]
            tables = _bf16(_E4M3_VALUES * self._scales[matrix, block][:, None])
            for index, table in enumerate(tables):
                begin = index * grid.block_columns
                end = begin + grid.block_columns
                part[:, begin:end] = table.take(codes[:, begin:end], mode="clip")
            row += count

    def stored_ranges(self, start_row: int, end_row: int) -> Iterator[tuple[FileTensor, int, int]]:
        """Yield the ranges of all scales, and of the rows."""
        weight, scale = self.parts
        columns = weight.shape[-1]
        yield scale, 0, scale.num_bytes
        yield weight, start_row * columns, end_row * columns

    def release(self) -> None:
        """Free the scales."""
        self._scales = None


def _grid(weight: FileTensor, scale: FileTensor, encoding: FloatEncoding) -> _Grid:
    """Return the scales' grid over the weight. Raise ``ModelFileError`` if shapes do not match."""
    *leading, rows, columns = weight.shape
    matrices = math.prod(leading)
    found = math.prod(scale.shape)
    if found == 1 and matrices == 1:
        return _Grid(shape=(1, 1, 1), block_rows=rows, block_columns=columns)
    if encoding.block is not None:
        block_rows, block_columns = encoding.block
        grid = (matrices, -(-rows // block_rows), -(-columns // block_columns))
        if scale.shape == (*leading, *grid[1:]):
            return _Grid(shape=grid, block_rows=block_rows, block_columns=block_columns)
    elif scale.shape in ((*leading, rows, 1), (*leading, rows)):
        return _Grid(shape=(matrices, rows, 1), block_rows=1, block_columns=columns)
    if scale.shape in ((*leading, 1, 1), (*leading, 1), tuple(leading)):
        return _Grid(shape=(matrices, 1, 1), block_rows=rows, block_columns=columns)
    raise contradiction(
        scale, f"has the shape {list(scale.shape)}, which cannot scale {list(weight.shape)}"
    )


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the nearest BF16 numbers, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
