"""Stored bytes to float32, for every format.

Block layouts are those of llama.cpp's ``ggml-common.h``, arithmetic that of ``ggml-quants.c``
(``dequantize_row_*``): one float32 multiplication, and where a format has a minimum one
subtraction or addition, per value. All numbers are little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]


def dequantize(data: memoryview, tensor_format: TensorFormat, num_columns: int) -> Floats:
    """Float32 ``[num_rows, num_columns]`` of whole stored rows. The result owns its memory."""
    row_bytes = tensor_format.row_bytes(num_columns)
    stored = np.frombuffer(data, dtype=np.uint8)
    num_rows, rest = divmod(stored.size, row_bytes)
    if rest:
        raise ValueError(f"{stored.size} bytes are not whole rows of {row_bytes}")
    blocks = stored.reshape(-1, tensor_format.block_bytes)
    return _DEQUANTIZERS[tensor_format](blocks).reshape(num_rows, num_columns)


# Every function below takes uint8 [num_blocks, block_bytes] and gives float32
# [num_blocks, block_elements].


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    """The upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 int8."""
    return _f16(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes of nibbles; a nibble stands for itself less 8."""
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 16 bytes of nibbles."""
    return _f16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _f16(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 fifth bits, 16 bytes of nibbles; a value stands for itself less 16."""
    values = _nibbles(blocks[:, 6:]) + 16 * _bits(blocks[:, 2:6])
    return _f16(blocks[:, :2]) * (values - np.float32(16))


def _q5_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 32 fifth bits, 16 bytes of nibbles."""
    values = _nibbles(blocks[:, 8:]) + 16 * _bits(blocks[:, 4:8])
    return _f16(blocks[:, :2]) * values + _f16(blocks[:, 2:4])


def _q4_k(blocks: Bytes) -> Floats:
    """f16 scale of scales, f16 scale of minimums, 12 bytes of both, 8 groups of 32 nibbles."""
    return _with_group_scales(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles; value i of group g has bit g of
    byte i.
    """
    high = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _with_group_scales(blocks, _k_nibbles(blocks[:, 48:]) + 16 * high.astype(np.float32))


def _q6_k(blocks: Bytes) -> Floats:
    """128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales, f16 scale of scales.

    Each half of the block, 128 values, has 64 bytes of nibbles and 32 of pairs. Quarter 0 and 1
    are the low nibbles of the first and last 32 bytes, 2 and 3 their high nibbles; quarter j takes
    bits 2j and 2j + 1 of the pairs. A value stands for itself less 32; 16 share a scale.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (pairs >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3
    values = (low + 16 * high).astype(np.float32) - np.float32(32)
    scales = _f16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


def _nibbles(packed: Bytes) -> Floats:
    """All low nibbles, then all high nibbles."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _bits(packed: Bytes) -> Floats:
    """Bits from the lowest of the first byte on."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32)


def _k_nibbles(packed: Bytes) -> Floats:
    """``[num_blocks, 8, 32]``: groups 2i and 2i + 1 are the nibbles of the i-th 32 bytes."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)


def _with_group_scales(blocks: Bytes, values: Floats) -> Floats:
    """``scale * value - minimum``, both of 6 bits per group of 32 times an f16 of the block.

    The first 4 scales and minimums are the low 6 bits of bytes 0..3 and 4..7; the last 4 have
    their low 4 bits in bytes 8..11 (scales low, minimums high nibbles) and their upper 2 in the
    upper bits of bytes 0..3 and 4..7.
    """
    first, second, third = np.split(blocks[:, 4:16], 3, axis=1)
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    scale = _f16(blocks[:, :2]) * scales.astype(np.float32)
    minimum = _f16(blocks[:, 2:4]) * minimums.astype(np.float32)
    return (scale[:, :, None] * values - minimum[:, :, None]).reshape(-1, 256)


_DEQUANTIZERS: Mapping[TensorFormat, Callable[[Bytes], Floats]] = {
    TensorFormat.F32: _f32,
    TensorFormat.F16: _f16,
    TensorFormat.BF16: _bf16,
    TensorFormat.Q8_0: _q8_0,
    TensorFormat.Q4_0: _q4_0,
    TensorFormat.Q4_1: _q4_1,
    TensorFormat.Q5_0: _q5_0,
    TensorFormat.Q5_1: _q5_1,
    TensorFormat.Q4_K: _q4_k,
    TensorFormat.Q5_K: _q5_k,
    TensorFormat.Q6_K: _q6_k,
}
