"""Convert integers and their scales to blocks of 32 in GGUF's layouts.

The layouts are those of ``ggml-common.h``; ``potluck.engines.dequantize`` defines their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_BLOCK = 32


def halves_from_pairs(packed: Bytes) -> Bytes:
    """Reorder blocks of 32 nibbles, so that byte ``j`` has numbers ``j`` and ``j + 16`` instead of
    adjacent ones.
    """
    first, second = packed[:, :8], packed[:, 8:]
    out = np.empty_like(packed)
    out[:, 0::2] = (first & 15) | (second << 4)
    out[:, 1::2] = (first >> 4) | (second & 0xF0)
    return out


def blocks_of_q4_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` integers from 0 to 15, which represent -8 to 7, and scales."""
    out = np.empty((len(values), TensorFormat.Q4_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:] = _nibbles(values)
    return out


def blocks_of_q5_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` integers from 0 to 31, which represent -16 to 15, and scales."""
    out = np.empty((len(values), TensorFormat.Q5_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:6] = np.packbits(values >> 4, axis=1, bitorder="little")
    out[:, 6:] = _nibbles(values & np.uint8(15))
    return out


def blocks_of_q8_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` bytes of int8 and their scales."""
    out = np.empty((len(values), TensorFormat.Q8_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:] = values
    return out


def _nibbles(values: Bytes) -> Bytes:
    low, high = values[:, : _BLOCK // 2], values[:, _BLOCK // 2 :]
    return low | (high << np.uint8(4))


def _bytes_of(scales: NDArray[np.float16]) -> Bytes:
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)
