"""Every format against the gguf package, and against blocks written out by hand."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from potluck.engines.dequantize import dequantize
from potluck.types.tensor import TensorFormat

NUM_ROWS, NUM_COLUMNS = 5, 512


_HALVES = {
    TensorFormat.Q8_0: (0,),
    TensorFormat.Q4_0: (0,),
    TensorFormat.Q4_1: (0, 2),
    TensorFormat.Q5_0: (0,),
    TensorFormat.Q5_1: (0, 2),
    TensorFormat.Q4_K: (0, 2),
    TensorFormat.Q5_K: (0, 2),
    TensorFormat.Q6_K: (208,),
    TensorFormat.Q2_K: (80, 82),
    TensorFormat.Q3_K: (108,),
    TensorFormat.IQ4_NL: (0,),
    TensorFormat.IQ4_XS: (0,),
    TensorFormat.MXFP4: (),
    TensorFormat.IQ1_S: (0,),
    TensorFormat.IQ1_M: (),
    TensorFormat.IQ2_XXS: (0,),
    TensorFormat.IQ2_XS: (0,),
    TensorFormat.IQ2_S: (0,),
    TensorFormat.IQ3_XXS: (0,),
    TensorFormat.IQ3_S: (0,),
    TensorFormat.TQ1_0: (52,),
    TensorFormat.TQ2_0: (64,),
}
"""Where the half-precision fields of a block are."""


def random_rows(tensor_format: TensorFormat) -> NDArray[np.uint8]:
    """Any bytes, but half-precision fields that are finite: exponent bits 14 to 10 not all set."""
    generator = np.random.default_rng(3)
    shape = (NUM_ROWS, tensor_format.row_bytes(NUM_COLUMNS))
    rows = generator.integers(0, 256, shape, dtype=np.uint8)
    blocks = rows.reshape(-1, tensor_format.block_bytes)
    for offset in _HALVES[tensor_format]:
        blocks[:, offset + 1] &= 0xBF
    if tensor_format is TensorFormat.IQ1_M:
        blocks[:, 55] &= 0xBF  # the upper four bits of its scale
    if tensor_format is TensorFormat.MXFP4:
        blocks[:, 0] = np.minimum(blocks[:, 0], 250)
    return rows


@pytest.mark.parametrize(
    "tensor_format",
    [each for each in TensorFormat if each.is_quantized],
    ids=lambda each: each.name,
)
def test_as_gguf_does(tensor_format: TensorFormat) -> None:
    rows = random_rows(tensor_format)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor_format.name])
    actual = dequantize(memoryview(rows.tobytes()), tensor_format, NUM_COLUMNS)
    assert actual.dtype == np.float32
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(actual, expected)


def test_floats() -> None:
    values = [1.5, -0.375, 0.0, 1024.0]
    assert as_list(struct.pack("<4f", *values), TensorFormat.F32) == values
    assert as_list(struct.pack("<4e", *values), TensorFormat.F16) == values
    # Sign, eight bits of exponent, seven of mantissa.
    upper_halves = struct.pack("<4H", 0x3FC0, 0xBEC0, 0x0000, 0x4480)
    assert as_list(upper_halves, TensorFormat.BF16) == values


def test_q4_0_block() -> None:
    """Scale 0.5; byte i has nibbles i and 15 - i, for columns i and i + 16."""
    block = struct.pack("<e", 0.5) + bytes(i | (15 - i) << 4 for i in range(16))
    expected = [0.5 * (i - 8) for i in range(16)] + [0.5 * (7 - i) for i in range(16)]
    assert dequantize(memoryview(block), TensorFormat.Q4_0, 32)[0].tolist() == expected


def test_mxfp4_block() -> None:
    """Exponent 128 is a scale of 2; byte i has nibbles i and 15 - i, for columns i and i + 16."""
    block = bytes([128, *(i | (15 - i) << 4 for i in range(16))])
    positive = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    expected = [*positive, *(-value for value in positive)]
    expected += expected[::-1]
    assert dequantize(memoryview(block), TensorFormat.MXFP4, 32)[0].tolist() == expected


def test_mxfp4_scales_of_every_exponent() -> None:
    """1.0 times 2^(e - 127), of which 2^-127 is subnormal; 255 is no NaN, as in llama.cpp."""
    blocks = b"".join(bytes([e, *([2] * 16)]) for e in range(256))
    values = dequantize(memoryview(blocks), TensorFormat.MXFP4, 32)
    assert values[:, 0].astype(np.float64).tolist() == [
        *(2.0 ** (e - 127) for e in range(255)),
        np.inf,
    ]


def test_rows_must_be_whole() -> None:
    with pytest.raises(ValueError, match="not whole rows"):
        dequantize(memoryview(bytes(35)), TensorFormat.Q8_0, 32)
    with pytest.raises(ValueError, match="33 columns are not a multiple of the q8_0 block size"):
        dequantize(memoryview(bytes(34)), TensorFormat.Q8_0, 33)


def as_list(data: bytes, tensor_format: TensorFormat) -> list[float]:
    values: list[float] = dequantize(memoryview(data), tensor_format, 4)[0].tolist()
    return values
