"""The layout of a matrix on a device: panels of 16 rows, word by word.

A panel holds 16 rows. Its 32-bit words are ordered first by their position in the row and then by
row: neighbouring threads, each with its own row, read neighbouring words, whatever the format, and
a vector processor has 16 rows in a register. The part of a block that is not whole words, one f16
scale, is in a plane of 16-bit numbers in the same order. Nothing is decoded: a block keeps its
stored bytes, except in Q8_0, whose int8 become uint8 by adding 128 (flipping the upper bit of
each).

The last panel is padded with rows of zeros, and rows of floats are padded with zeros to whole
blocks. This module does not use tinygrad, so that sizes can be computed without it.
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
"""Rows of a panel: 16 words are a cache line of 64 bytes, and half of a warp's load of 128."""

GROUP_BYTES = 2**20
"""Size up to which panels are arranged, and copied to the device, together; a larger panel is
copied by itself. It is large enough to keep the overhead of copies low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """A block that consists of words, and optionally one 16-bit number at ``half_offset``."""

    num_elements: int
    num_bytes: int
    half_offset: int | None = None
    flipped_bits: int = 0
    """These bits of every word are flipped."""

    @property
    def num_halves(self) -> int:
        """0 or 1."""
        return 0 if self.half_offset is None else 1

    @property
    def num_words(self) -> int:
        """The remaining bytes, in words of 4 bytes."""
        return (self.num_bytes - 2 * self.num_halves) // 4


BLOCKS: Mapping[TensorFormat, BlockLayout] = {
    # Blocks of floats are our own: a few words, so that a kernel has several loads in flight.
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


@dataclass(frozen=True, slots=True)
class MatrixLayout:
    """The layout of a matrix that is loaded as ``info``."""

    info: TensorInfo

    @property
    def block(self) -> BlockLayout:
        """The block layout of its format."""
        return BLOCKS[self.info.format]

    @property
    def num_blocks(self) -> int:
        """Number of blocks per row."""
        return -(-self.info.num_columns // self.block.num_elements)

    @property
    def padded_columns(self) -> int:
        """The number of columns, rounded up to whole blocks."""
        return self.num_blocks * self.block.num_elements

    @property
    def num_panels(self) -> int:
        """Number of panels; the last one may be padded."""
        return -(-self.info.num_rows // PANEL_ROWS)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel in both planes."""
        return PANEL_ROWS * self.num_blocks * self.block.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix on the device."""
        return self.num_panels * self.panel_bytes

    @property
    def words_shape(self) -> tuple[int, int, int]:
        """Shape of the plane of uint32 words."""
        return self.num_panels, self.num_blocks * self.block.num_words, PANEL_ROWS

    @property
    def halves_shape(self) -> tuple[int, int, int] | None:
        """Shape of the plane of uint16 numbers, if the format has one."""
        if not self.block.num_halves:
            return None
        return self.num_panels, self.num_blocks, PANEL_ROWS

    @property
    def group_panels(self) -> int:
        """Number of panels that are arranged together."""
        return min(max(1, GROUP_BYTES // self.panel_bytes), self.num_panels)

    @property
    def staging_bytes(self) -> int:
        """Host memory used while rows are copied to the device.

        A group as received, padded, without its halves, interleaved, and once more in drivers that
        copy from their own memory.
        """
        return 5 * self.group_panels * self.panel_bytes


def arrange(
    stored: NDArray[np.uint8], layout: MatrixLayout
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Convert whole panels to their layout on the device.

    ``stored`` is uint8 ``[num_rows, row_bytes]``: the rows of some panels, of which the last may
    have fewer. Returns words ``[panels, words, 16]`` and halves ``[panels, halves, 16]``, both
    contiguous and owned by the caller.
    """
    block = layout.block
    num_rows = len(stored)
    num_panels = -(-num_rows // PANEL_ROWS)
    padded_bytes = layout.num_blocks * block.num_bytes
    if num_rows < num_panels * PANEL_ROWS or layout.info.row_bytes < padded_bytes:
        padded = np.zeros((num_panels * PANEL_ROWS, padded_bytes), np.uint8)
        padded[:num_rows, : layout.info.row_bytes] = stored
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
    """Return ``[panels, numbers, 16]`` from bytes that are ordered by panel, row and block."""
    if not part.size:
        return np.empty((num_panels, 0, PANEL_ROWS), dtype)
    numbers = np.ascontiguousarray(part).view(dtype).reshape(num_panels, PANEL_ROWS, -1)
    return np.ascontiguousarray(numbers.transpose(0, 2, 1))
