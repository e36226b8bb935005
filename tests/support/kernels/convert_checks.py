"""What is demanded of the kernels that convert weights; see ``support.kernels.checks``."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.kernels.inputs import F32, F64, U8, guarded, guarded_output, make_weights, same_bits

from potluck.kernels import Kernels
from potluck.types.tensor import TensorFormat

TARGET_FORMATS = (
    TensorFormat.Q8_0,
    TensorFormat.Q4_0,
    TensorFormat.Q5_0,
    TensorFormat.Q4_K,
    TensorFormat.Q6_K,
    TensorFormat.Q3_K,
    TensorFormat.IQ4_NL,
)


def check_widen(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    del scalar  # exact, so that all have the oracle's bits
    rng = np.random.default_rng(20)
    for count in (1, 3, 15, 16, 17, 250, 4099):
        weights = make_weights(format, 1, count, rng)
        out = guarded_output(count, dtype=np.float32)
        magnitude = kernels.widen(format.label, guarded(weights.stored[0]), out.array)
        out.assert_intact()
        assert same_bits(out.array, weights.values[0])
        assert magnitude == np.abs(weights.values).max()


def encode(kernels: Kernels, format: TensorFormat, x: F32) -> tuple[U8, bool]:
    """Blocks of one row of ``x``, and whether all scales are finite."""
    out = guarded_output(format.row_bytes(len(x)), dtype=np.uint8)
    is_finite = kernels.encode(format.label, guarded(x), out.array)
    out.assert_intact()
    return out.array, is_finite


def check_encode(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    rng = np.random.default_rng(21)
    for num_blocks in (1, 2, 3, 16):
        x = rng.standard_t(4, num_blocks * format.block_elements).astype(np.float32)
        blocks, is_finite = encode(kernels, format, x)
        assert is_finite
        if format is TensorFormat.Q6_K:
            assert_nearest(x, *q6_k_parts(blocks))
        elif format is TensorFormat.Q4_K:
            assert_nearest(x, *q4_k_parts(blocks))
        elif format is TensorFormat.Q3_K:
            assert_nearest(x, *q3_k_parts(blocks))
        elif format is TensorFormat.IQ4_NL:
            assert_nearest_entries(x, blocks)
        else:
            assert same_bits(blocks, gguf.quantize(x, gguf.GGMLQuantizationType[format.name]))
        assert same_bits(blocks, encode(scalar, format, x)[0])


def assert_nearest(
    x: F32, steps: F64, offsets: F64, values: NDArray[Any], least: int, most: int
) -> None:
    """Every value is the integer that comes nearest with the scale and the offset of its group.

    ``steps``, ``offsets`` ``[groups]`` and ``values`` ``[groups, columns]`` as they are stored.
    """
    exact = x.reshape(values.shape).astype(np.float64) - offsets[:, None]
    # Three roundings before that to an integer, of values up to 32.
    slack = 32 * 4 * 2.0**-24
    used = steps != 0
    assert used.any()
    wanted = np.clip(exact[used] / steps[used, None], least, most)
    assert (np.abs(values[used] - wanted) <= 0.5 + slack).all()


def q6_k_parts(blocks: U8) -> tuple[F64, F64, NDArray[Any], int, int]:
    """What ``assert_nearest`` takes. The integers come from gguf's values, which are exact in
    float64 up to the last rounding to float32.
    """
    rows = blocks.reshape(-1, TensorFormat.Q6_K.block_bytes)
    d = rows[:, 208:].copy().view(np.float16).astype(np.float64)
    steps = (d * rows[:, 192:208].view(np.int8)).reshape(-1)
    read_back = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q6_K).reshape(-1, 16)
    divisors = np.where(steps == 0, 1, steps)
    values = np.rint(read_back / divisors[:, None])
    return steps, np.zeros_like(steps), values, -32, 31


def q3_k_parts(blocks: U8) -> tuple[F64, F64, NDArray[Any], int, int]:
    """What ``assert_nearest`` takes, read here bit by bit."""
    rows = blocks.reshape(-1, TensorFormat.Q3_K.block_bytes).astype(np.int64)
    d = rows[:, 108:].astype(np.uint8).view(np.float16).astype(np.float64)
    i = np.arange(16)
    low = rows[:, 96 + i % 8] >> (4 * (i // 8)) & 15
    scales = (low | (rows[:, 104 + i % 4] >> (2 * (i // 4)) & 3) << 4) - 32
    k = np.arange(256)
    pairs = rows[:, 32 + k // 128 * 32 + k % 32] >> (2 * (k // 32 % 4)) & 3
    values = (pairs | (rows[:, k % 32] >> (k // 32) & 1) << 2) - 4
    steps = (d * scales).reshape(-1)
    return steps, np.zeros_like(steps), values.reshape(-1, 16), -4, 3


def assert_nearest_entries(x: F32, blocks: U8) -> None:
    """Every value is the entry of IQ4_NL's table that comes nearest with the scale of its block."""
    rows = blocks.reshape(-1, TensorFormat.IQ4_NL.block_bytes)
    d = rows[:, :2].copy().view(np.float16).astype(np.float64)
    assert (d != 0).any()
    table = np.array(gguf.quants.IQ4_NL.kvalues, np.float64)
    exact = x.reshape(-1, 32).astype(np.float64)
    read_back = gguf.dequantize(blocks, gguf.GGMLQuantizationType.IQ4_NL).reshape(-1, 32)
    nearest = np.abs(exact[:, :, None] - d[:, :, None] * table).min(axis=2)
    assert (np.abs(read_back - exact) <= nearest + np.abs(d) * 2.0**-15).all()


def q4_k_parts(blocks: U8) -> tuple[F64, F64, NDArray[Any], int, int]:
    """What ``assert_nearest`` takes."""
    rows = blocks.reshape(-1, TensorFormat.Q4_K.block_bytes)
    halves = rows[:, :4].copy().view(np.float16).astype(np.float64)
    scales, minimums = gguf.quants.Q4_K.get_scale_min(rows[:, 4:16].copy())
    steps = (halves[:, :1] * scales).reshape(-1)
    offsets = -(halves[:, 1:] * minimums).reshape(-1)
    pairs = rows[:, 16:].reshape(-1, 4, 1, 32)
    values = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 32)
    return steps, offsets, values.astype(np.int64), 0, 15
