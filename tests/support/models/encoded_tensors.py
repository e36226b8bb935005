"""Random weights in the encodings of safetensors models, with the values that they stand for.

Each is written from the papers and from what the libraries that make such files do, with torch, and
independently of ``potluck.formats.encodings``: integers are packed bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""AutoAWQ's reverse order: the nibble of a word that row ``i`` of eight is in."""


@dataclass(frozen=True, kw_only=True)
class EncodedWeight:
    """Tensors to store for a weight, by the ends of their names, and its values in float64."""

    tensors: Mapping[str, Any]
    values: np.ndarray = field(repr=False)


def fp8(
    weight: Any,
    *,
    block: tuple[int, int] | None = (128, 128),
    scale: str = "weight_scale_inv",
    per_row: bool = False,
    scale_dtype: Any = torch.float32,
) -> EncodedWeight:
    """As DeepSeek's and transformers' ``FineGrainedFP8`` quantize: the largest becomes 448."""
    rows, columns = weight.shape
    block_rows, block_columns = (1, columns) if per_row else block or (rows, columns)
    grid = -(-rows // block_rows), -(-columns // block_columns)
    scales = torch.empty(grid, dtype=torch.float64)
    for i in range(grid[0]):
        for j in range(grid[1]):
            part = weight[
                i * block_rows : (i + 1) * block_rows, j * block_columns : (j + 1) * block_columns
            ]
            scales[i, j] = part.abs().max() / 448
    scales = scales.to(scale_dtype)
    wide = scales.double().repeat_interleave(block_rows, 0)[:rows]
    wide = wide.repeat_interleave(block_columns, 1)[:, :columns]
    codes = (weight.double() / wide).to(torch.float32).to(torch.float8_e4m3fn)
    # What is computed with: the product in float32, rounded to bfloat16.
    values = (codes.to(torch.float32) * wide.to(torch.float32)).to(torch.bfloat16)
    stored = scales if per_row or block is not None else scales.reshape(())
    return EncodedWeight(tensors={"weight": codes, scale: stored}, values=values.double().numpy())


def gptq(
    rng: np.random.Generator,
    rows: int,
    columns: int,
    *,
    group: int = 128,
    symmetric: bool = True,
    num_bits: int = 4,
    zero_offset: int = 1,
    order: Sequence[int] | None = None,
) -> EncodedWeight:
    """``qweight [columns / 8, rows]``, ``qzeros [groups, rows / 8]``, ``scales [groups, rows]``."""
    integers, zeros, scales = _drawn(rng, rows, columns, group, symmetric, num_bits)
    stored_zeros = zeros.T - zero_offset
    return EncodedWeight(
        tensors={
            "qweight": _packed(integers, num_bits).T.contiguous(),
            "qzeros": _packed(stored_zeros, num_bits),
            "scales": torch.from_numpy(scales.T.copy()),
            "g_idx": torch.tensor(order or [i // group for i in range(columns)], dtype=torch.int32),
        },
        values=_values(integers, zeros, scales, group),
    )


def awq(rng: np.random.Generator, rows: int, columns: int, *, group: int = 128) -> EncodedWeight:
    """``qweight [columns, rows / 8]`` of AutoAWQ's GEMM version, always with zero points."""
    integers, zeros, scales = _drawn(rng, rows, columns, group, False, 4)
    return EncodedWeight(
        tensors={
            "qweight": _packed(integers.T, 4, order=AWQ_NIBBLES),
            "qzeros": _packed(zeros.T, 4, order=AWQ_NIBBLES),
            "scales": torch.from_numpy(scales.T.copy()),
        },
        values=_values(integers, zeros, scales, group),
    )


def pack_quantized(
    rng: np.random.Generator,
    rows: int,
    columns: int,
    *,
    group: int | None = 32,
    symmetric: bool = True,
    num_bits: int = 4,
    dtype: Any = torch.bfloat16,
) -> EncodedWeight:
    """``weight_packed [rows, columns / 8]`` of compressed-tensors."""
    width = group or columns
    integers, zeros, scales = _drawn(rng, rows, columns, width, symmetric, num_bits)
    stored = torch.from_numpy(scales).to(dtype)
    tensors = {
        "weight_packed": _packed(integers, num_bits),
        "weight_scale": stored,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = _packed(zeros.T, num_bits).T.contiguous()
    return EncodedWeight(
        tensors=tensors, values=_values(integers, zeros, stored.double().numpy(), width)
    )


def mxfp4(
    rng: np.random.Generator, *shape: int, exponents: tuple[int, int] = (118, 128)
) -> EncodedWeight:
    """``[…, columns]`` as gpt-oss stores it: ``_blocks``, and ``_scales`` drawn from a range."""
    *leading, columns = shape
    codes = rng.integers(0, 256, (*leading, columns // 32, 16), dtype=np.uint8)
    scales = rng.integers(*exponents, (*leading, columns // 32), dtype=np.uint8)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    numbers = np.empty((*leading, columns // 32, 32))
    for j in range(16):
        numbers[..., 2 * j] = table[codes[..., j] % 16]
        numbers[..., 2 * j + 1] = table[codes[..., j] // 16]
    numbers *= 2.0 ** (scales.astype(float) - 127)[..., None]
    return EncodedWeight(
        tensors={"blocks": torch.from_numpy(codes), "scales": torch.from_numpy(scales)},
        values=numbers.reshape(shape),
    )


def _drawn(
    rng: np.random.Generator, rows: int, columns: int, group: int, symmetric: bool, num_bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers ``[rows, columns]``, zero points and scales ``[rows, groups]``."""
    most = 2**num_bits
    groups = columns // group
    integers = rng.integers(0, most, (rows, columns))
    zeros = np.full((rows, groups), most // 2)
    if not symmetric:
        zeros = rng.integers(1, most, (rows, groups))
    scales = (rng.uniform(0.5, 2, (rows, groups)) * 0.02).astype(np.float16)
    return integers, zeros, scales


def _values(integers: np.ndarray, zeros: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    wide_zeros = np.repeat(zeros, group, axis=1)
    values: np.ndarray = (integers - wide_zeros) * np.repeat(
        scales.astype(np.float64), group, axis=1
    )
    return values


def _packed(integers: np.ndarray, num_bits: int, order: Sequence[int] | None = None) -> Any:
    """The last axis packed into words of 32 bits, the lowest first."""
    per_word = 32 // num_bits
    rows, count = integers.shape
    words = np.zeros((rows, -(-count // per_word)), dtype=np.uint64)
    for index in range(count):
        word, place = divmod(index, per_word)
        shift = num_bits * (order[place] if order else place)
        words[:, word] |= integers[:, index].astype(np.uint64) << np.uint64(shift)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))
