"""Random weights, as files store them, in every format.

Quantized blocks are drawn, not converted: their bytes are random but for the scales, which are
set so that values have about the standard deviation of an untrained model's. Searching for the
best scales of random numbers would take a hundred times as long and give bytes as random.
Layouts are those of ``ggml-common.h`` (https://github.com/ggml-org/ggml).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.types.tensor import TensorFormat

SEED = 1
STANDARD_DEVIATION = 0.02
_PIECE_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scales:
    """The offsets of a block's 16-bit scale (and minimum), and statistics of what they multiply.

    Of a block of random bytes, values are ``scale`` times numbers of the standard deviation
    ``spread``, plus ``minimum`` times others; ``centre`` is the ratio of minimum to scale that
    makes their mean 0, or None where the format has no minimum.
    """

    scale_offset: int
    spread: float
    minimum_offset: int | None = None
    centre: float | None = None


_SCALES = {
    # Quants of b bits are uniform: a deviation of √((4^b − 1) / 12).
    TensorFormat.Q8_0: _Scales(scale_offset=0, spread=73.9),
    TensorFormat.Q4_0: _Scales(scale_offset=0, spread=4.61),
    TensorFormat.Q5_0: _Scales(scale_offset=0, spread=9.23),
    TensorFormat.Q4_1: _Scales(scale_offset=0, spread=4.61, minimum_offset=2, centre=-7.5),
    TensorFormat.Q5_1: _Scales(scale_offset=0, spread=9.23, minimum_offset=2, centre=-15.5),
    # Scales and minimums of 6 bits: mean square 1333, variance 341 each. A value's variance is
    # (4^b − 1) / 12 · 1333 + centre² · 2 · 341.
    TensorFormat.Q4_K: _Scales(scale_offset=0, spread=258, minimum_offset=2, centre=7.5),
    TensorFormat.Q5_K: _Scales(scale_offset=0, spread=527, minimum_offset=2, centre=15.5),
    # Scales of 8 bits with a sign: 73.9 · 18.5.
    TensorFormat.Q6_K: _Scales(scale_offset=208, spread=1365),
    # Scales and minimums of 4 bits, whose means times those of the values must cancel:
    # 77.5 · 3.5 - 11.25² + 1.5² · 21.25.
    TensorFormat.Q2_K: _Scales(scale_offset=80, spread=13.87, minimum_offset=82, centre=1.5),
    # Scales of 6 bits with a sign: 18.5 · √5.5.
    TensorFormat.Q3_K: _Scales(scale_offset=108, spread=43.3),
    # Entries of a table, whose root mean square is 67.4.
    TensorFormat.IQ4_NL: _Scales(scale_offset=0, spread=67.2),
    TensorFormat.IQ4_XS: _Scales(scale_offset=0, spread=1246),
}


def random_tensor(
    rng: np.random.Generator,
    fmt: TensorFormat,
    dimensions: tuple[int, ...],
    vector_value: float = 1.0,
) -> Iterator[NDArray[np.uint8]]:
    """Yield the stored bytes of a tensor in pieces of at most 64 MiB. All elements of a vector
    equal ``vector_value`` (1 suits the weight of a norm); everything else has random rows.
    """
    num_columns = dimensions[-1]
    if len(dimensions) == 1:
        yield _floats(np.full((1, num_columns), vector_value, np.float32), fmt)
        return
    num_rows = math.prod(dimensions[:-1])
    step = max(1, _PIECE_ELEMENTS // num_columns)
    for start in range(0, num_rows, step):
        yield random_rows(rng, fmt, min(step, num_rows - start), num_columns)


def random_rows(
    rng: np.random.Generator, fmt: TensorFormat, num_rows: int, num_columns: int
) -> NDArray[np.uint8]:
    """Return random rows of a matrix as a file stores them, ``[num_rows, row bytes]``.

    ``num_columns`` must be whole blocks of ``fmt``.
    """
    if not fmt.is_quantized:
        drawn = rng.standard_normal((num_rows, num_columns), np.float32)
        drawn *= STANDARD_DEVIATION
        return _floats(drawn, fmt)
    row_bytes = fmt.row_bytes(num_columns)
    num_bytes = num_rows * row_bytes
    words = rng.integers(0, 2**64, -(-num_bytes // 8), np.uint64)
    stored = words.view(np.uint8)[:num_bytes]
    blocks = stored.reshape(-1, fmt.block_bytes)
    if fmt is TensorFormat.MXFP4:
        _set_exponents(rng, blocks)
        return stored.reshape(num_rows, row_bytes)
    scales = _SCALES[fmt]
    _set(blocks, scales.scale_offset, STANDARD_DEVIATION / scales.spread)
    if scales.minimum_offset is not None and scales.centre is not None:
        minimum = scales.centre * STANDARD_DEVIATION / scales.spread
        _set(blocks, scales.minimum_offset, minimum)
    return stored.reshape(num_rows, row_bytes)


def _floats(rows: NDArray[np.float32], fmt: TensorFormat) -> NDArray[np.uint8]:
    if fmt is TensorFormat.F32:
        return rows.view(np.uint8)
    if fmt is TensorFormat.F16:
        return rows.astype(np.float16).view(np.uint8)
    # BF16 is the upper half of a float32, rounded towards zero.
    return np.ascontiguousarray(rows.view(np.uint16)[:, 1::2]).view(np.uint8)


def _set(blocks: NDArray[np.uint8], offset: int, value: float) -> None:
    blocks[:, offset : offset + 2] = np.array([value], "<f2").view(np.uint8)


def _set_exponents(rng: np.random.Generator, blocks: NDArray[np.uint8]) -> None:
    """Set the exponents of MXFP4: two neighboring powers of two, mixed to get the deviation right.

    The numbers that are scaled by 2^(e - 128) have a root mean square of 5.85.
    """
    wanted = STANDARD_DEVIATION / 5.85
    smaller = math.floor(math.log2(wanted))
    share = (wanted**2 / 4.0**smaller - 1) / 3
    blocks[:, 0] = 128 + smaller + (rng.random(len(blocks)) < share)
