"""Decode the words of a block, as tinygrad expressions.

Block layouts are those of llama.cpp's ``ggml-common.h``, as in ``engines/dequantize``; ``layout``
defines where the words are. A block is processed in *units*, each the few values in a word or in
two numbers, by one or more loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from potluck.engines.tinygrad.adapter import UOp, dtypes
from potluck.types.tensor import TensorFormat

Read = Callable[[UOp | int], UOp]
"""A number of the block by its index: a uint32 word, or a uint16."""

ToFloat = Callable[[UOp], UOp]
"""The bits of an f16, uint16 or uint32, as float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values of a unit that share a scale: each is ``scale * number + minimum``."""

    numbers: tuple[UOp, ...]
    """Float32."""
    places: tuple[UOp | int, ...]
    """The position of each in the block."""
    scale: UOp | None = None
    """Float32, and constant throughout the last loop; None means 1. The same for ``minimum``; None
    means 0."""
    minimum: UOp | None = None


_TWO_TO_23_BITS = 0x4B000000
"""The bits of the float32 2^23, whose last bit has the value 1."""

Unit = Callable[[Read, Read, ToFloat, tuple[UOp, ...]], tuple[Values, ...]]
"""Reads words and halves, and returns the values of the unit at these loop indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How to iterate over a block: ``loops`` are sizes, outermost first."""

    loops: tuple[int, ...]
    unit: Unit


def f16_bits_to_float(bits: UOp) -> UOp:
    """Convert by integer arithmetic, for devices without f16; exact for every f16.

    Subnormals become floats by conversion, because a device may treat float32 subnormals as zeros.
    """
    bits = bits.cast(dtypes.uint32)
    exponent, mantissa = (bits >> 10) & 31, bits & 1023
    small = mantissa.cast(dtypes.int32).cast(dtypes.float32) * 2.0**-24
    # The exponent's bias is 15 in f16 and 127 in f32; that of infinities and NaNs is 31 and 255.
    shifted = ((bits & 0x7FFF) << 13) + (112 << 23)
    shifted = exponent.eq(31).where(shifted + (112 << 23), shifted)
    magnitude = exponent.eq(0).where(small, shifted.bitcast(dtypes.float32))
    return (bits & 0x8000).ne(0).where(-magnitude, magnitude)


def f16_to_float(bits: UOp) -> UOp:
    """Convert on a device that has f16."""
    return bits.cast(dtypes.uint16).bitcast(dtypes.float16).cast(dtypes.float32)


def _f32(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    numbers = tuple(word(i).bitcast(dtypes.float32) for i in range(4))
    return (Values(numbers=numbers, places=tuple(range(4))),)


def _f16(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    words = [word(i) for i in range(4)]
    numbers = tuple(to_float(bits) for w in words for bits in (w & 0xFFFF, w >> 16))
    return (Values(numbers=numbers, places=tuple(range(8))),)


def _bf16(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    words = [word(i) for i in range(4)]
    numbers = tuple(
        bits.bitcast(dtypes.float32) for w in words for bits in (w << 16, w & 0xFFFF0000)
    )
    return (Values(numbers=numbers, places=tuple(range(8))),)


def _q8_0(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    """Two's complement with the upper bit flipped (see ``layout``), which adds 128."""
    (j,) = at
    w = word(j)
    numbers = tuple(_number((w >> 8 * i) & 255, 128) for i in range(4))
    return (Values(numbers=numbers, places=_four(4 * j), scale=to_float(half(0))),)


def _q4_0(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    (j,) = at
    numbers = _nibbles(word(j), (0, 4), 8)
    places = (*_four(4 * j), *_four(4 * j + 16))
    return (Values(numbers=numbers, places=places, scale=to_float(half(0))),)


def _q4_1(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    (j,) = at
    numbers = _nibbles(word(j + 1), (0, 4))
    scale, minimum = _pair(word(0), to_float)
    places = (*_four(4 * j), *_four(4 * j + 16))
    return (Values(numbers=numbers, places=places, scale=scale, minimum=minimum),)


def _q5_0(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    (j,) = at
    numbers = tuple(_number(q, 16) for q in _unpack_5bit(word(j + 1), word(0), j))
    places = (*_four(4 * j), *_four(4 * j + 16))
    return (Values(numbers=numbers, places=places, scale=to_float(half(0))),)


def _q5_1(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    (j,) = at
    numbers = tuple(_number(q) for q in _unpack_5bit(word(j + 2), word(1), j))
    scale, minimum = _pair(word(0), to_float)
    places = (*_four(4 * j), *_four(4 * j + 16))
    return (Values(numbers=numbers, places=places, scale=scale, minimum=minimum),)


def _q4_k(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    first, second, j = at  # halves of the block, and halves of these
    pair = first * 2 + second
    w = word(pair * 8 + j + 4)
    return tuple(
        Values(
            numbers=_nibbles(w, (4 * side,)),
            places=_four(pair * 64 + 32 * side + 4 * j),
            scale=scale,
            minimum=minimum,
        )
        for side, (scale, minimum) in enumerate(_k_scales(word, to_float, *at[:2]))
    )


def _q5_k(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    first, second, j = at  # halves of the block, and halves of these
    pair = first * 2 + second
    w = word(pair * 8 + j + 12)
    high = word(j + 4) >> (pair * 2).cast(dtypes.uint32)
    return tuple(
        Values(
            numbers=tuple(
                _number(((w >> (8 * i + 4 * side)) & 15) | (((high >> (8 * i + side)) & 1) << 4))
                for i in range(4)
            ),
            places=_four(pair * 64 + 32 * side + 4 * j),
            scale=scale,
            minimum=minimum,
        )
        for side, (scale, minimum) in enumerate(_k_scales(word, to_float, *at[:2]))
    )


def _q6_k(word: Read, half: Read, to_float: ToFloat, at: tuple[UOp, ...]) -> tuple[Values, ...]:
    """Loop over the halves of the block, the halves of their quarters, and words."""
    side, sixteen, j = at
    j = sixteen * 4 + j
    low = (word(side * 16 + j), word(side * 16 + 8 + j))
    pairs = word(side * 8 + j + 32)
    scales = [word(side * 2 + i + 48) for i in range(2)]
    values = []
    for quarter in range(4):
        w, shift = low[quarter % 2], 4 * (quarter // 2)
        numbers = tuple(
            _number(
                ((w >> (8 * i + shift)) & 15) | (((pairs >> (8 * i + 2 * quarter)) & 3) << 4), 32
            )
            for i in range(4)
        )
        byte = ((sixteen + 2 * (quarter % 2)) * 8).cast(dtypes.uint32)
        scale = _number(((scales[quarter // 2] >> byte) & 255) ^ 128, 128)  # an int8
        values.append(
            Values(
                numbers=numbers,
                places=_four(side * 128 + 32 * quarter + 4 * j),
                scale=to_float(half(0)) * scale,
            )
        )
    return tuple(values)


# The quarters of a block of 256 are two loops, because tinygrad 0.14.0 splits a loop whose index is
# used modulo 2 into two and then, if threads share it, fails to add up their results.
DECODERS: Mapping[TensorFormat, Decoder] = {
    TensorFormat.F32: Decoder(loops=(), unit=_f32),
    TensorFormat.F16: Decoder(loops=(), unit=_f16),
    TensorFormat.BF16: Decoder(loops=(), unit=_bf16),
    TensorFormat.Q8_0: Decoder(loops=(8,), unit=_q8_0),
    TensorFormat.Q4_0: Decoder(loops=(4,), unit=_q4_0),
    TensorFormat.Q4_1: Decoder(loops=(4,), unit=_q4_1),
    TensorFormat.Q5_0: Decoder(loops=(4,), unit=_q5_0),
    TensorFormat.Q5_1: Decoder(loops=(4,), unit=_q5_1),
    TensorFormat.Q4_K: Decoder(loops=(2, 2, 8), unit=_q4_k),
    TensorFormat.Q5_K: Decoder(loops=(2, 2, 8), unit=_q5_k),
    TensorFormat.Q6_K: Decoder(loops=(2, 2, 4), unit=_q6_k),
}


def _four(first: UOp) -> tuple[UOp, ...]:
    return tuple(first + i for i in range(4))


def _number(bits: UOp, offset: int = 0) -> UOp:
    """Return an integer below 2^23, minus ``offset``, as float32.

    It is computed as the low bits of the float 2^23 + integer: on some GPUs a conversion costs as
    much as eight other operations, and here the offset costs nothing.
    """
    return (bits | _TWO_TO_23_BITS).bitcast(dtypes.float32) - float(2**23 + offset)


def _nibbles(word: UOp, shifts: tuple[int, ...], offset: int = 0) -> tuple[UOp, ...]:
    """Return the low nibbles of four bytes for each shift of 0, and the high ones for 4."""
    return tuple(_number((word >> (8 * i + s)) & 15, offset) for s in shifts for i in range(4))


def _pair(word: UOp, to_float: ToFloat) -> tuple[UOp, UOp]:
    """Return two f16 numbers, the one in the low bits first."""
    return to_float(word & 0xFFFF), to_float(word >> 16)


def _unpack_5bit(w: UOp, high: UOp, j: UOp) -> list[UOp]:
    """Return eight numbers of five bits: four from low nibbles, four from high ones."""
    high = high >> (j * 4).cast(dtypes.uint32)
    return [
        ((w >> (8 * i + 4 * side)) & 15) | (((high >> (i + 16 * side)) & 1) << 4)
        for side in (0, 1)
        for i in range(4)
    ]


def _k_scales(word: Read, to_float: ToFloat, half: UOp, quarter: UOp) -> list[tuple[UOp, UOp]]:
    """Return the scale and the minimum, to be added, of the two groups in a quarter of half a
    block.

    Words 1, 2 and 3 have 12 bytes; see ``engines/dequantize._with_group_scales``.
    """
    block_scale, block_minimum = _pair(word(0), to_float)
    first, second, third = (word(i) for i in (1, 2, 3))
    is_first = half < 1
    found = []
    for side in (0, 1):
        byte = (quarter * 16 + 8 * side).cast(dtypes.uint32)
        a, b, c = first >> byte, second >> byte, third >> byte
        scale = is_first.where(a & 63, (c & 15) | (((a >> 6) & 3) << 4))
        minimum = is_first.where(b & 63, ((c >> 4) & 15) | (((b >> 6) & 3) << 4))
        found.append((block_scale * _number(scale), -block_minimum * _number(minimum)))
    return found
