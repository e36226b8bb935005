"""Weights of 4 and 8 bits with scales, shown in GGUF formats that represent them exactly.

A value is ``scale * (q - zero)``, with one scale and zero point per group of consecutive values in
a row. Without zero points (zero is the middle of the range), this is Q4_0 or Q8_0. With 4-bit zero
points the difference is from -16 to 15, which is Q5_0; Q4_1 is not suitable, because its minimum,
``scale * zero``, is rounded to f16. Scales must be exact in f16, which is the case for scales
trained in f16, and for BF16 scales from ``2**-17`` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.formats.encodings.encoding import BLOCK_COLUMNS, IntegerEncoding, Layout
from potluck.formats.encodings.parts import (
    PIECE_BYTES,
    PIECE_ELEMENTS,
    ReadBytes,
    blocks_of_q4_0,
    blocks_of_q5_0,
    blocks_of_q8_0,
    check_scales,
    check_shape,
    check_type,
    contradiction,
    read_array,
    read_scales,
    unreadable,
)
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from potluck.formats.source import FileTensor

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.uint32]

BAND_BYTES = 32 * 2**20
"""The memory for transposed packed integers, which suffices for a whole matrix of 8192 by 8192. A
larger matrix is processed in several bands of rows, each of which reads the whole matrix again."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The row, of eight, of each nibble of a word, from the lowest nibble on."""

_READ_BYTES = 2**20
_WORD_BYTES = 4
_WORD_BITS = 32


class IntegerTensor:
    """A matrix of integers; an ``EncodedTensor``. ``stored`` has its parts by name suffix."""

    def __init__(
        self,
        name: str,
        stored: Mapping[str, FileTensor],
        encoding: IntegerEncoding,
        read: ReadBytes,
    ) -> None:
        self._encoding = encoding
        self._read = read
        self.parts = tuple(stored.values())
        self._packed = self.parts[0]
        scales = stored.get("scales") or stored.get("weight_scale")
        if scales is None:
            raise contradiction(self._packed, "has no matching scales")
        self._scales_part = scales
        self._zeros_part = stored.get("qzeros") or stored.get("weight_zero_point")
        self._order_part = stored.get("g_idx")
        self._shape_part = stored.get("weight_shape")
        rows, columns = self._shape()
        if columns % BLOCK_COLUMNS or not rows or not columns:
            raise unreadable(
                self._packed, f"rows of {columns} integers (not a multiple of {BLOCK_COLUMNS})"
            )
        self.info = TensorInfo(name=name, shape=(rows, columns), format=_target(encoding))
        self._groups = self._num_groups(columns)
        self._check_companions()
        self._scales: NDArray[np.float16] | None = None
        self._zeros: Bytes | None = None
        self._band: tuple[int, Words] | None = None

    @property
    def decoding_bytes(self) -> int:
        """The memory for a piece, scales and zero points, and transposed words."""
        rows, columns = self.info.shape
        held = max(PIECE_BYTES, 24 * columns * self._unit_rows) + 13 * rows * self._groups
        if self._encoding.layout in _IS_TRANSPOSED:
            return held + min(self._packed.num_bytes, self._band_bytes) + _READ_BYTES
        return held

    def read_rows(self, start_row: int, end_row: int, out: memoryview) -> None:
        """Read rows, as many at a time as fit into a piece."""
        if self._scales is None:
            self._read_companions()
        columns = self.info.num_columns
        step = max(1, PIECE_ELEMENTS // columns)
        step += -step % self._unit_rows
        target = np.frombuffer(out, dtype=np.uint8).reshape(-1, self.info.row_bytes)
        row = start_row
        while row < end_row:
            end = min((row // step + 1) * step, end_row)
            blocks = self._encoded(row, end)
            target[row - start_row : end - start_row] = blocks.reshape(end - row, -1)
            row = end

    def stored_ranges(self, start_row: int, end_row: int) -> Iterator[tuple[FileTensor, int, int]]:
        """Yield the ranges of all scales and zero points, and of the rows (all if transposed)."""
        for part in (self._scales_part, self._order_part, self._shape_part, self._zeros_part):
            if part is not None:
                yield part, 0, part.num_bytes
        row_bytes = self._packed.num_bytes // self.info.num_rows
        if self._encoding.layout in _IS_TRANSPOSED:
            start_row, end_row, row_bytes = 0, 1, self._packed.num_bytes
        yield self._packed, start_row * row_bytes, end_row * row_bytes

    def release(self) -> None:
        """Free the scales, the zero points and the band."""
        self._scales = self._zeros = self._band = None

    @property
    def _unit_rows(self) -> int:
        """The number of rows that share words."""
        return 8 if self._encoding.layout is Layout.AWQ else 1

    @property
    def _per_word(self) -> int:
        return _WORD_BITS // self._encoding.num_bits

    @property
    def _band_bytes(self) -> int:
        """The size of a band, at least one unit of rows."""
        return max(BAND_BYTES, self._packed.shape[0] * _WORD_BYTES)

    def _shape(self) -> tuple[int, int]:
        """Return the rows and columns of the weight."""
        packed = self._packed
        check_type(packed, "I8" if self._encoding.layout is Layout.BYTES else "I32")
        if len(packed.shape) != 2:
            raise unreadable(packed, f"packed integers of the shape {list(packed.shape)}")
        first, second = packed.shape
        if self._encoding.layout is Layout.GPTQ:
            return second, first * self._per_word
        if self._encoding.layout is Layout.AWQ:
            return second * self._per_word, first
        if self._encoding.layout is Layout.ROWS:
            return first, second * self._per_word
        return first, second

    def _num_groups(self, columns: int) -> int:
        group_columns = self._encoding.group_columns
        if group_columns is None:
            return 1
        num_groups, rest = divmod(columns, group_columns)
        if rest:
            raise unreadable(
                self._packed, f"rows of {columns} in groups of {group_columns} columns"
            )
        return num_groups

    def _check_companions(self) -> None:
        """Raise an error unless the types and shapes of the other parts match the weight."""
        rows, columns = self.info.shape
        groups, encoding = self._groups, self._encoding
        check_scales(self._scales_part)
        zeros = self._zeros_part
        if encoding.layout in _IS_TRANSPOSED:
            check_shape(self._scales_part, (groups, rows))
            if zeros is None:
                raise contradiction(self._packed, "has no matching zero points (qzeros)")
            check_shape(zeros, (groups, -(-rows // self._per_word)))
        else:
            shapes: list[tuple[int, ...]] = [(rows, groups)]
            if groups == 1:
                shapes += [(rows,), (1,), (), (1, 1)]
            check_shape(self._scales_part, *shapes)
            if not encoding.is_symmetric:
                if zeros is None:
                    raise contradiction(self._packed, "has no matching zero points")
                if encoding.layout is Layout.BYTES:
                    raise unreadable(zeros, "8-bit integers with zero points")
                check_shape(zeros, (-(-rows // self._per_word), groups))
            elif zeros is not None:
                raise contradiction(zeros, "belongs to weights that are declared symmetric")
        if zeros is not None:
            check_type(zeros, "I32")
        if self._order_part is not None:
            check_type(self._order_part, "I32")
            check_shape(self._order_part, (columns,))
        if self._shape_part is not None:
            check_type(self._shape_part, "I64", "I32")
            check_shape(self._shape_part, (2,))

    def _read_companions(self) -> None:
        """Read the scales ``[rows, groups]`` as f16, and the numbers to add to integers to subtract
        their zero points.
        """
        rows, columns = self.info.shape
        is_transposed = self._encoding.layout in _IS_TRANSPOSED
        scales = read_scales(self._read, self._scales_part)
        if is_transposed:
            scales = scales.T
        with np.errstate(over="ignore"):
            exact = scales.astype(np.float16)
        if not np.array_equal(exact.astype(np.float32), scales, equal_nan=True):
            raise unreadable(self._scales_part, "scales outside the range of f16")
        self._scales = np.ascontiguousarray(
            np.broadcast_to(exact.reshape(-1, self._groups), (rows, self._groups))
        )
        if self._order_part is not None:
            order = read_array(self._read, self._order_part, "<i4")
            if not np.array_equal(order, np.arange(columns) // (columns // self._groups)):
                raise unreadable(self._order_part, "reordered columns (desc_act, g_idx)")
        if self._shape_part is not None:
            kind = "<i8" if self._shape_part.type_name == "I64" else "<i4"
            shape = read_array(self._read, self._shape_part, kind)
            if shape.tolist() != [rows, columns]:
                raise unreadable(self._shape_part, f"padded rows (of {shape.tolist()})")
        if self._zeros_part is None:
            return
        words = read_array(self._read, self._zeros_part, "<u4").astype(np.uint32)
        if self._encoding.layout is Layout.AWQ:
            zeros = _unpacked_awq(words.T).T
        else:
            zeros = _unpacked(words if is_transposed else words.T, self._encoding.num_bits)
        # [groups, rows], which may be padded to whole words.
        zeros = zeros.T[:rows] + np.uint8(self._encoding.zero_offset)
        if not self._encoding.is_symmetric:
            self._zeros = np.ascontiguousarray(zeros)
        elif (zeros != 1 << (self._encoding.num_bits - 1)).any():
            raise contradiction(
                self._zeros_part, "has zero points, which contradicts sym in quantization_config"
            )

    def _encoded(self, start_row: int, end_row: int) -> Bytes:
        """Return the blocks of the rows in the format of ``info``."""
        if self._scales is None:
            raise ValueError(f"{self.info.name}: no rows have been read")
        values = self._values(start_row, end_row)
        scales = np.repeat(
            self._scales[start_row:end_row],
            self.info.num_columns // self._groups // BLOCK_COLUMNS,
            axis=1,
        ).reshape(-1)
        if self._zeros is not None:
            grouped = values.reshape(end_row - start_row, self._groups, -1)
            values = grouped + (np.uint8(16) - self._zeros[start_row:end_row])[:, :, None]
        blocks = values.reshape(-1, BLOCK_COLUMNS)
        if self.info.format is TensorFormat.Q4_0:
            return blocks_of_q4_0(blocks, scales)
        if self.info.format is TensorFormat.Q5_0:
            return blocks_of_q5_0(blocks, scales)
        if self._encoding.layout is not Layout.BYTES:
            blocks = blocks ^ np.uint8(0x80)  # less 128, as int8
        return blocks_of_q8_0(blocks, scales)

    def _values(self, start_row: int, end_row: int) -> Bytes:
        """Return the integers ``[rows, columns]``."""
        layout = self._encoding.layout
        if layout in (Layout.ROWS, Layout.BYTES):
            row_bytes = self._packed.num_bytes // self.info.num_rows
            stored = bytearray((end_row - start_row) * row_bytes)
            self._read(self._packed, start_row * row_bytes, memoryview(stored))
            packed = np.frombuffer(stored, dtype=np.uint8).reshape(end_row - start_row, row_bytes)
            if layout is Layout.BYTES:
                return packed
            return _unpacked_bytes(packed, self._encoding.num_bits)
        first, last = start_row // self._unit_rows, -(-end_row // self._unit_rows)
        words = self._transposed(first, last)
        if layout is Layout.GPTQ:
            return _unpacked(words, self._encoding.num_bits)
        skipped = start_row - first * self._unit_rows
        return _unpacked_awq(words)[skipped : skipped + end_row - start_row]

    def _transposed(self, first: int, last: int) -> Words:
        """Return the words of the units of rows ``[first, last)``, unit by unit."""
        parts = []
        while first < last:
            start, band = self._band_with(first)
            end = min(last, start + band.shape[1])
            parts.append(np.ascontiguousarray(band[:, first - start : end - start].T))
            first = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _band_with(self, unit: int) -> tuple[int, Words]:
        """Return the band with ``unit``: its first unit, and its words ``[stored rows, units]``."""
        if self._band is not None:
            start, words = self._band
            if start <= unit < start + words.shape[1]:
                return start, words
        self._band = None  # so that its memory can be reused
        stored_rows, num_units = self._packed.shape
        most = self._band_bytes // (stored_rows * _WORD_BYTES)
        start = unit // most * most
        end = min(start + most, num_units)
        words = np.empty((stored_rows, end - start), dtype="<u4")
        if end - start == num_units:
            self._read(self._packed, 0, words.reshape(-1).view(np.uint8).data)
        else:
            step = max(1, _READ_BYTES // (num_units * _WORD_BYTES))
            for row in range(0, stored_rows, step):
                count = min(step, stored_rows - row)
                stored = bytearray(count * num_units * _WORD_BYTES)
                self._read(self._packed, row * num_units * _WORD_BYTES, memoryview(stored))
                read = np.frombuffer(stored, dtype="<u4").reshape(count, num_units)
                words[row : row + count] = read[:, start:end]
        self._band = (start, words)
        return self._band


_IS_TRANSPOSED = frozenset({Layout.GPTQ, Layout.AWQ})


def _target(encoding: IntegerEncoding) -> TensorFormat:
    if encoding.num_bits == 8:
        return TensorFormat.Q8_0
    return TensorFormat.Q4_0 if encoding.is_symmetric else TensorFormat.Q5_0


def _unpacked(words: Words, num_bits: int) -> Bytes:
    """Unpack ``[n, words]`` to ``[n, integers]``, the lowest bits of each word first."""
    stored = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    return _unpacked_bytes(stored, num_bits)


def _unpacked_bytes(packed: Bytes, num_bits: int) -> Bytes:
    if num_bits == 8:
        return packed
    out = np.empty((len(packed), 2 * packed.shape[1]), dtype=np.uint8)
    out[:, 0::2] = packed & 15
    out[:, 1::2] = packed >> 4
    return out


def _unpacked_awq(words: Words) -> Bytes:
    """Unpack ``[n, columns]`` words of eight rows each to ``[8 n, columns]``."""
    out = np.empty((len(words), 8, words.shape[1]), dtype=np.uint8)
    for nibble, row in enumerate(AWQ_ORDER):
        out[:, row] = (words >> np.uint32(4 * nibble)) & np.uint32(15)
    return out.reshape(-1, words.shape[1])
