"""Convert stored bytes of every format to float32.

Block layouts are those of llama.cpp's ``ggml-common.h``, arithmetic that of ``ggml-quants.c``
(``dequantize_row_*``): one float32 multiplication, and where a format has a minimum one
subtraction or addition, per value. All numbers are little-endian.

In IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, an index selects 4 or 8 values at once
from a grid. The grids are in ``codebooks.json``. The functions of these types take uint8
``[num_blocks, block_bytes]`` and return float32 ``[num_blocks, 256]``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Integers = NDArray[np.integer[Any]]


_DELTA = np.float32(0.125)
"""The delta that IQ1_S and IQ1_M add to or subtract from the values of a grid."""


def iq2_xxs(blocks: Bytes) -> Floats:
    """f16 scale, then for 32 values 4 bytes of indices and a word: 4 × 7 bits of signs, 4 bits of
    scale.
    """
    words = _words(blocks[:, 2:]).reshape(-1, 8, 2)
    indices = np.ascontiguousarray(words[..., 0]).view(np.uint8)
    scales = _f16(blocks[:, :2]) * (np.float32(0.5) + (words[..., 1] >> 28).astype(np.float32))
    values = _grid("IQ2_XXS")[indices] * _signs(_seven_bit_signs(words[..., 1])).reshape(-1, 32, 8)
    return _scaled(scales * np.float32(0.25), values)


def iq2_xs(blocks: Bytes) -> Floats:
    """f16 scale, 32 words of 9 bits of index and 7 of signs, 16 scales of 4 bits."""
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    signs = _signs(_completed(words >> 9))
    scales = _f16(blocks[:, :2]) * (np.float32(0.5) + _four_bit_scales(blocks[:, 66:]))
    return _scaled(scales * np.float32(0.25), _grid("IQ2_XS")[words & 511] * signs)


def iq2_s(blocks: Bytes) -> Floats:
    """f16 scale, 32 low bytes of indices, 32 bytes of signs, 8 bytes of upper pairs of the indices'
    bits, 16 scales of 4 bits.
    """
    indices = _with_upper_bits(blocks[:, 2:34], blocks[:, 66:74], 2)
    scales = _f16(blocks[:, :2]) * (np.float32(0.5) + _four_bit_scales(blocks[:, 74:]))
    values = _grid("IQ2_S")[indices] * _signs(blocks[:, 34:66])
    return _scaled(scales * np.float32(0.25), values)


def iq3_xxs(blocks: Bytes) -> Floats:
    """f16 scale, 64 bytes of indices, 8 words of 4 × 7 bits of signs and 4 bits of scale."""
    words = _words(blocks[:, 66:])
    scales = _f16(blocks[:, :2]) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    values = _grid("IQ3_XXS")[blocks[:, 2:66]].reshape(-1, 32, 8)
    signs = _signs(_seven_bit_signs(words)).reshape(-1, 32, 8)
    return _scaled(scales * np.float32(0.5), values * signs)


def iq3_s(blocks: Bytes) -> Floats:
    """f16 scale, 64 low bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 8 scales
    of 4 bits.
    """
    indices = _with_upper_bits(blocks[:, 2:66], blocks[:, 66:74], 1)
    scales = _f16(blocks[:, :2]) * (1 + 2 * _four_bit_scales(blocks[:, 106:]))
    values = _grid("IQ3_S")[indices].reshape(-1, 32, 8) * _signs(blocks[:, 74:106])
    return _scaled(scales, values)


def iq1_s(blocks: Bytes) -> Floats:
    """f16 scale, 32 low bytes of indices, 8 words: 4 × 3 upper bits of them, 3 bits of scale, and
    whether the delta is negative.
    """
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    upper = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    indices = blocks[:, 2:34] | (upper.reshape(-1, 32) << 8)
    scales = _f16(blocks[:, :2]) * (2 * ((words >> 12) & 7) + 1).astype(np.float32)
    delta = np.where(words & 0x8000, -_DELTA, _DELTA)
    values = _grid("IQ1_S")[indices].reshape(-1, 8, 32) + delta[:, :, None]
    return _scaled(scales, values)


def iq1_m(blocks: Bytes) -> Floats:
    """32 low bytes of indices, 16 bytes of nibbles (3 upper bits of one, and whether its delta is
    negative), 4 words of 4 × 3 bits of scale whose upper 4 bits make up an f16 scale.
    """
    words = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
    half = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
    scale = np.bitwise_or.reduce(half, axis=1, keepdims=True).view("<f2").astype(np.float32)
    steps = ((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7).reshape(-1, 16)
    nibbles = _split(blocks[:, 32:48], 4)
    indices = blocks[:, :32] | ((nibbles & 7).astype(np.uint16) << 8)
    delta = np.where(nibbles & 8, -_DELTA, _DELTA)
    values = _grid("IQ1_S")[indices] + delta[:, :, None]
    return _scaled(scale * (2 * steps + 1).astype(np.float32), values)


def _scaled(scales: Floats, values: Floats) -> Floats:
    """Return ``values`` of every block, in equal parts multiplied by its scales."""
    parts = values.reshape(*scales.shape, -1)
    return (scales[:, :, None] * parts).reshape(-1, 256)


def _words(stored: Bytes) -> NDArray[np.uint32]:
    return np.ascontiguousarray(stored).view("<u4")


def _split(packed: Bytes, num_bits: int) -> Bytes:
    """Return the fields of every byte, lowest first."""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)
    fields = (packed[:, :, None] >> shifts) & np.uint8((1 << num_bits) - 1)
    return fields.reshape(len(packed), -1)


def _four_bit_scales(packed: Bytes) -> Floats:
    return _split(packed, 4).astype(np.float32)


def _with_upper_bits(low: Bytes, packed: Bytes, num_bits: int) -> Integers:
    return low | (_split(packed, num_bits).astype(np.uint16) << 8)


def _seven_bit_signs(words: NDArray[np.uint32]) -> Bytes:
    """Return the four bytes of signs of every word."""
    return _completed((words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127)


def _completed(seven: Integers) -> Bytes:
    """Return seven bits and an eighth one that makes the number of ones even."""
    bits = seven.astype(np.uint8)
    parity = bits ^ (bits >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return (bits | ((parity & 1) << 7)).astype(np.uint8)


def _signs(packed: Bytes) -> Floats:
    """Return -1 where a bit is set and 1 elsewhere: eight per byte, lowest first."""
    bits = (packed[..., None] >> np.arange(8, dtype=np.uint8)) & 1
    return np.float32(1) - 2 * bits.astype(np.float32)


@cache
def _grid(name: str) -> Floats:
    """Return the grid ``[entries, values per entry]``."""
    table = json.loads(resources.files(__package__).joinpath("codebooks.json").read_bytes())
    grid = table["grids"][name]
    values = np.array(grid["values"], np.float32)
    packed = np.frombuffer(bytes.fromhex("".join(grid["indices"])), np.uint8)[None]
    indices = _split(packed, 2 if len(values) <= 4 else 4)
    return values[indices].reshape(-1, grid["length"])


def dequantize(data: memoryview, tensor_format: TensorFormat, num_columns: int) -> Floats:
    """Return stored rows as float32 ``[num_rows, num_columns]``, which owns its memory."""
    row_bytes = tensor_format.row_bytes(num_columns)
    stored = np.frombuffer(data, dtype=np.uint8)
    num_rows, rest = divmod(stored.size, row_bytes)
    if rest:
        raise ValueError(f"{stored.size} bytes are not whole rows of {row_bytes}")
    blocks = stored.reshape(-1, tensor_format.block_bytes)
    return _DEQUANTIZERS[tensor_format](blocks).reshape(num_rows, num_columns)


# Every function below takes uint8 [num_blocks, block_bytes] and returns float32 [num_blocks,
# block_elements].


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    """Convert bf16, which is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 int8."""
    return _f16(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes of nibbles; a value is its nibble minus 8."""
    return _f16(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    """f16 scale, f16 minimum, 16 bytes of nibbles."""
    return _f16(blocks[:, :2]) * _nibbles(blocks[:, 4:]) + _f16(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> Floats:
    """f16 scale, 32 fifth bits, 16 bytes of nibbles; a value is its five bits minus 16."""
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

    Each half of the block, 128 values, has 64 bytes of nibbles and 32 of pairs. Quarters 0 and 1
    are the low nibbles of the first and last 32 bytes, 2 and 3 their high nibbles; quarter j takes
    bits 2j and 2j + 1 of the pairs. A value is its six bits minus 32; 16 values share a scale.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = _pairs(blocks[:, 128:192]).reshape(-1, 2, 4, 32)
    values = (low + 16 * high).astype(np.float32) - np.float32(32)
    scales = _f16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(scales, values)


def _q2_k(blocks: Bytes) -> Floats:
    """16 bytes of scale (low nibble) and minimum (high), 64 of bit pairs, f16 scale of scales, f16
    scale of minimums; 16 values share a scale and a minimum.
    """
    values = _pairs(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scale = _f16(blocks[:, 80:82]) * (blocks[:, :16] & 15).astype(np.float32)
    minimum = _f16(blocks[:, 82:84]) * (blocks[:, :16] >> 4).astype(np.float32)
    found: Floats = scale[:, :, None] * values - minimum[:, :, None]
    return found.reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    """32 bytes of third bits, 64 of bit pairs, 12 of scales, f16 scale of scales.

    Value i of the eighth g of the block has bit g of byte i of the third bits. A value is its three
    bits minus 4, and 16 values share a scale, which is its six bits minus 32: the low 4 bits of
    scales 0 to 7 are the low nibbles of the first 8 bytes, of 8 to 15 the high ones, and byte j of
    the last 4 has the upper 2 bits of scales j, j + 4, j + 8 and j + 12.
    """
    high = (blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    values = _pairs(blocks[:, 32:96]) + 4 * high.reshape(-1, 256)
    packed, upper = blocks[:, 96:104], blocks[:, None, 104:108]
    low = _both_nibbles(packed)
    top = (upper >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scales = (low + 16 * top.reshape(-1, 16)).astype(np.float32) - np.float32(32)
    return _scaled(_f16(blocks[:, 108:110]) * scales, values.astype(np.float32) - np.float32(4))


_IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""The values of the nibbles of IQ4_NL and IQ4_XS (``kvalues_iq4nl``)."""

_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the values of the nibbles of MXFP4, which makes them integers (``kvalues_mxfp4``)."""


def _iq4_nl(blocks: Bytes) -> Floats:
    """f16 scale, 16 bytes of nibbles that are indices into ``_IQ4_VALUES``."""
    return _f16(blocks[:, :2]) * _looked_up(_IQ4_VALUES, blocks[:, 2:])


def _iq4_xs(blocks: Bytes) -> Floats:
    """f16 scale of scales, 2 bytes of the upper 2 bits of 8 scales, 4 of their low 4 bits, then as
    IQ4_NL for each group of 32. A scale is its six bits minus 32.
    """
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    top = (np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> shifts) & 3
    scales = (_split(blocks[:, 4:8], 4) + 16 * top).astype(np.float32) - np.float32(32)
    scale = _f16(blocks[:, :2]) * scales
    values = _looked_up(_IQ4_VALUES, blocks[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
    return _scaled(scale, values)


def _mxfp4(blocks: Bytes) -> Floats:
    """Exponent e of a scale 2^(e - 128), 16 bytes of nibbles that are indices into
    ``_E2M1_DOUBLED``.

    So a value is one of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign, times 2^(e - 127).
    """
    exponent = blocks[:, :1].astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(exponent, 1)  # subnormal: 2^-128 and 2^-127
    bits = np.where(exponent < 2, small, (np.maximum(exponent, 1) - 1) << 23).astype(np.uint32)
    with np.errstate(over="ignore"):  # values with the largest exponents exceed float32
        return bits.view(np.float32) * _looked_up(_E2M1_DOUBLED, blocks[:, 1:])


_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)


def _tq1_0(blocks: Bytes) -> Floats:
    """48 bytes of 5 digits in base 3, 4 bytes of 4, f16 scale; a value is its digit minus 1.

    A byte contains its digits as a fraction of 256, so that a product with 3^i leaves the digits
    from i on, and the first of these is 3/256 of it.
    """
    parts = [(blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4)]
    digits = [
        (stored[:, None, :] * _POWERS_OF_3[:count, None]).reshape(len(blocks), -1)
        for stored, count in parts
    ]
    values = (np.concatenate(digits, axis=1).astype(np.uint16) * 3) >> 8
    return _f16(blocks[:, 52:54]) * (values.astype(np.float32) - np.float32(1))


def _tq2_0(blocks: Bytes) -> Floats:
    """64 bytes of bit pairs, f16 scale; a value is its pair minus 1."""
    values = _pairs(blocks[:, :64]).astype(np.float32) - np.float32(1)
    return _f16(blocks[:, 64:66]) * values


def _pairs(packed: Bytes) -> Bytes:
    """Return ``[num_blocks, 256]``: of each 32 bytes first the lowest bit pairs, then the next."""
    quarters = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (quarters & 3).astype(np.uint8).reshape(-1, 256)


def _looked_up(values: Floats, packed: Bytes) -> Floats:
    """Return the values of all low nibbles, then of all high nibbles."""
    found: Floats = values[_both_nibbles(packed)]
    return found


def _both_nibbles(packed: Bytes) -> Bytes:
    """Return all low nibbles, then all high nibbles."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _nibbles(packed: Bytes) -> Floats:
    return _both_nibbles(packed).astype(np.float32)


def _bits(packed: Bytes) -> Floats:
    """Return bits, starting with the lowest of the first byte."""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32)


def _k_nibbles(packed: Bytes) -> Floats:
    """Return ``[num_blocks, 8, 32]``: groups 2i and 2i + 1 are the nibbles of the i-th 32 bytes."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)


def _with_group_scales(blocks: Bytes, values: Floats) -> Floats:
    """Return ``scale * value - minimum``, both 6 bits per group of 32 times an f16 of the block.

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
    TensorFormat.Q2_K: _q2_k,
    TensorFormat.Q3_K: _q3_k,
    TensorFormat.IQ4_NL: _iq4_nl,
    TensorFormat.IQ4_XS: _iq4_xs,
    TensorFormat.MXFP4: _mxfp4,
    TensorFormat.IQ1_S: iq1_s,
    TensorFormat.IQ1_M: iq1_m,
    TensorFormat.IQ2_XXS: iq2_xxs,
    TensorFormat.IQ2_XS: iq2_xs,
    TensorFormat.IQ2_S: iq2_s,
    TensorFormat.IQ3_XXS: iq3_xxs,
    TensorFormat.IQ3_S: iq3_s,
    TensorFormat.TQ1_0: _tq1_0,
    TensorFormat.TQ2_0: _tq2_0,
}
