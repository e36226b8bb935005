"""How a matrix lies on a device: panels of 16 rows, word by word.

A panel holds 16 rows. Its words, of 32 bits, are ordered first by their place in the row and then
by row: neighbouring threads, each with a row of its own, read neighbouring words, whatever the
format, and a vector processor has 16 rows in a register. What of a block is not whole words, one
f16 scale, is in a plane of 16-bit numbers of the same order. Nothing is decoded: a block keeps its
stored bytes, but for Q8_0, whose int8 become uint8 that are 128 more (a flipped upper bit each).

The last panel is filled up with rows of zeros, and rows of floats with zeros to whole blocks.
No tinygrad here: what a matrix takes is counted without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from potluck.types.tensor import TensorInfo

PANEL_ROWS = 16
"""Rows of a panel: 16 words are a cache line of 64 bytes, and half a warp's load of 128."""

GROUP_BYTES = 2**20
"""Panels are arranged, and copied to the device, as many together as fit this; one that does not
fit goes alone. Large enough that a copy is not all overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """A block, of which all is words but perhaps one 16-bit number at ``half_offset``."""

    num_elements: int
    num_bytes: int
    half_offset: int | None = None
    flipped_bits: int = 0
    """These of every word are flipped."""

    @property
    def num_halves(self) -> int:
        """0 or 1."""
        return 0 if self.half_offset is None else 1

    @property
    def num_words(self) -> int:
        """What is left, in words of 4 bytes."""
        return (self.num_bytes - 2 * self.num_halves) // 4


BLOCKS: Mapping[TensorFormat, BlockLayout] = {
    # Blocks of floats are ours: some words, so that a kernel has several loads under way.
    TensorFormat.F32: BlockLayout(num_elements=4, num_bytes=16),
    TensorFormat.F16: BlockLayout(num_elements=8, num_bytes=16),
    TensorFormat.BF16: BlockLayout(num_elements=8, num_bytes=16),
    TensorFormat.Q8_0: BlockLayout(
        num_elements=32, num_bytes=34, half_offset=0, flipped_bits=0x80808080
    ),
    TensorFormat.Q4_0: BlockLayout(num_elements=32, num_bytes=18, half_offset=0),
    TensorFormat.Q4_1: BlockLayout(num_elements=32, num_bytes=20),
    TensorFormat.Q5_0: BlockLayout(num_elements=32, num_bytes=22, half_offset=0),
    TensorFormat.Q5_1: BlockLayout(num_elements=32, num_bytes=24),
    TensorFormat.Q4_K: BlockLayout(num_elements=256, num_bytes=144),
    TensorFormat.Q5_K: BlockLayout(num_elements=256, num_bytes=176),
    TensorFormat.Q6_K: BlockLayout(num_elements=256, num_bytes=210, half_offset=208),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayout:
    """A matrix ``[num_rows, num_columns]`` of a format."""

    num_rows: int
    num_columns: int
    format: TensorFormat

    @classmethod
    def of(cls, info: TensorInfo) -> MatrixLayout:
        """Of a matrix as it is loaded."""
        return cls(num_rows=info.num_rows, num_columns=info.num_columns, format=info.format)

    @property
    def block(self) -> BlockLayout:
        """Of its format."""
        return BLOCKS[self.format]

    @property
    def num_blocks(self) -> int:
        """Of a row."""
        return -(-self.num_columns // self.block.num_elements)

    @property
    def padded_columns(self) -> int:
        """``num_columns``, filled up to whole blocks."""
        return self.num_blocks * self.block.num_elements

    @property
    def num_panels(self) -> int:
        """The last may be filled up."""
        return -(-self.num_rows // PANEL_ROWS)

    @property
    def panel_bytes(self) -> int:
        """Of both planes."""
        return PANEL_ROWS * self.num_blocks * self.block.num_bytes

    @property
    def num_bytes(self) -> int:
        """What the matrix takes on the device."""
        return self.num_panels * self.panel_bytes

    @property
    def words_shape(self) -> tuple[int, int, int]:
        """Of the plane of uint32 words."""
        return self.num_panels, self.num_blocks * self.block.num_words, PANEL_ROWS

    @property
    def halves_shape(self) -> tuple[int, int, int] | None:
        """Of the plane of uint16 numbers, where the format has one."""
        if not self.block.num_halves:
            return None
        return self.num_panels, self.num_blocks, PANEL_ROWS

    @property
    def group_panels(self) -> int:
        """Panels that are arranged together."""
        return min(max(1, GROUP_BYTES // self.panel_bytes), self.num_panels)

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return self.format.row_bytes(self.num_columns)

    @property
    def staging_bytes(self) -> int:
        """What is held of the host's while rows go to the device.

        A group as it came, filled up, without its halves, interleaved, and once more by drivers
        that copy from memory of their own.
        """
        return 5 * self.group_panels * self.panel_bytes


def arrange(
    stored: NDArray[np.uint8], layout: MatrixLayout
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Whole panels as they are on the device.

    ``stored``: uint8 ``[num_rows, row_bytes]`` of the rows of some panels; the last may have fewer.
    The words are ``[panels, words, 16]`` and the halves ``[panels, halves, 16]``, both contiguous
    and the caller's.
    """
    block = layout.block
    num_rows = len(stored)
    num_panels = -(-num_rows // PANEL_ROWS)
    padded_bytes = layout.num_blocks * block.num_bytes
    if num_rows < num_panels * PANEL_ROWS or layout.row_bytes < padded_bytes:
        padded = np.zeros((num_panels * PANEL_ROWS, padded_bytes), np.uint8)
        padded[:num_rows, : layout.row_bytes] = stored
        stored = padded
    blocks = stored.reshape(num_panels, PANEL_ROWS, layout.num_blocks, block.num_bytes)
    half, body = np.empty(0, np.uint8), blocks
    if block.half_offset is not None:
        half = blocks[..., block.half_offset : block.half_offset + 2]
        body = blocks[..., 2:] if block.half_offset == 0 else blocks[..., : block.half_offset]
    words = _interleaved(body, np.dtype("<u4"), num_panels)
    if block.flipped_bits:
        words ^= np.uint32(block.flipped_bits)
    return words, _interleaved(half, np.dtype("<u2"), num_panels)


def _interleaved(part: NDArray[np.uint8], dtype: np.dtype[np.generic], num_panels: int) -> Any:
    """``[panels, numbers, 16]`` of bytes that are ordered by panel, row and block."""
    if not part.size:
        return np.empty((num_panels, 0, PANEL_ROWS), dtype)
    numbers = np.ascontiguousarray(part).view(dtype).reshape(num_panels, PANEL_ROWS, -1)
    return np.ascontiguousarray(numbers.transpose(0, 2, 1))
