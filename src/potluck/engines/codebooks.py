"""Dequantize the GGUF types whose values come from codebooks to float32.

In IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, an index selects 4 or 8 values at once
from a grid. Layouts and arithmetic are those of llama.cpp's ``ggml-common.h`` and
``ggml-quants.c``; the grids are in ``codebooks.json``. Every function here takes uint8
``[num_blocks, block_bytes]`` and returns float32 ``[num_blocks, 256]``.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
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
    scales = _scale(blocks) * (np.float32(0.5) + (words[..., 1] >> 28).astype(np.float32))
    values = _grid("IQ2_XXS")[indices] * _signs(_seven_bit_signs(words[..., 1])).reshape(-1, 32, 8)
    return _scaled(scales * np.float32(0.25), values)


def iq2_xs(blocks: Bytes) -> Floats:
    """f16 scale, 32 words of 9 bits of index and 7 of signs, 16 scales of 4 bits."""
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    signs = _signs(_completed(words >> 9))
    scales = _scale(blocks) * (np.float32(0.5) + _four_bit_scales(blocks[:, 66:]))
    return _scaled(scales * np.float32(0.25), _grid("IQ2_XS")[words & 511] * signs)


def iq2_s(blocks: Bytes) -> Floats:
    """f16 scale, 32 low bytes of indices, 32 bytes of signs, 8 bytes of upper pairs of the indices'
    bits, 16 scales of 4 bits.
    """
    indices = _with_upper_bits(blocks[:, 2:34], blocks[:, 66:74], 2)
    scales = _scale(blocks) * (np.float32(0.5) + _four_bit_scales(blocks[:, 74:]))
    values = _grid("IQ2_S")[indices] * _signs(blocks[:, 34:66])
    return _scaled(scales * np.float32(0.25), values)


def iq3_xxs(blocks: Bytes) -> Floats:
    """f16 scale, 64 bytes of indices, 8 words of 4 × 7 bits of signs and 4 bits of scale."""
    words = _words(blocks[:, 66:])
    scales = _scale(blocks) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    values = _grid("IQ3_XXS")[blocks[:, 2:66]].reshape(-1, 32, 8)
    signs = _signs(_seven_bit_signs(words)).reshape(-1, 32, 8)
    return _scaled(scales * np.float32(0.5), values * signs)


def iq3_s(blocks: Bytes) -> Floats:
    """f16 scale, 64 low bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 8 scales
    of 4 bits.
    """
    indices = _with_upper_bits(blocks[:, 2:66], blocks[:, 66:74], 1)
    scales = _scale(blocks) * (1 + 2 * _four_bit_scales(blocks[:, 106:]))
    values = _grid("IQ3_S")[indices].reshape(-1, 32, 8) * _signs(blocks[:, 74:106])
    return _scaled(scales, values)


def iq1_s(blocks: Bytes) -> Floats:
    """f16 scale, 32 low bytes of indices, 8 words: 4 × 3 upper bits of them, 3 bits of scale, and
    whether the delta is negative.
    """
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    upper = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    indices = blocks[:, 2:34] | (upper.reshape(-1, 32) << 8)
    scales = _scale(blocks) * (2 * ((words >> 12) & 7) + 1).astype(np.float32)
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


def _scale(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


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
