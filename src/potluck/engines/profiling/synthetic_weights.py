"""Weights for measurements: random values of realistic magnitude, generated quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from potluck.types.tensor import TensorSink

_PIECE_BYTES = 4 << 20
"""Rows are generated up to this size and then repeated: 4 MiB take 10 ms, and a layer has 50."""


def random_rows(fmt: TensorFormat, num_rows: int, num_columns: int) -> bytes:
    """Return a stored ``[num_rows, num_columns]`` matrix with the deviation of a linear layer.

    That is ``num_columns ** -0.5``. Supports F32, F16, BF16 and Q8_0.
    """
    random = np.random.default_rng(0)
    deviation = num_columns**-0.5
    if fmt is TensorFormat.Q8_0:
        # An f16 scale and 32 uniform int8, with deviation 74 (ggml-common.h).
        blocks = random.integers(0, 256, (num_rows, num_columns // 32, 34), dtype=np.uint8)
        blocks[:, :, :2] = np.array([deviation / 74], dtype="<f2").view(np.uint8)
        return blocks.tobytes()
    values = random.standard_normal((num_rows, num_columns), dtype=np.float32)
    values *= np.float32(deviation)
    if fmt is TensorFormat.BF16:  # the upper halves of float32
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    if fmt is TensorFormat.F16:
        return values.astype("<f2").tobytes()
    if fmt is TensorFormat.F32:
        return values.astype("<f4").tobytes()
    raise ValueError(f"no random rows of {fmt.name}")


def load_random(sink: TensorSink, info: TensorInfo) -> None:
    """Fill a weight: ones in a vector; in a matrix, random rows that repeat if it is large."""
    sink.begin(info)
    if len(info.shape) == 1:
        sink.write_rows(info.name, 0, 1, memoryview(np.ones(info.num_columns, "<f4").tobytes()))
    else:
        at_once = min(info.num_rows, max(1, _PIECE_BYTES // info.row_bytes))
        piece = memoryview(random_rows(info.format, at_once, info.num_columns))
        for start in range(0, info.num_rows, at_once):
            end = min(start + at_once, info.num_rows)
            sink.write_rows(info.name, start, end, piece[: (end - start) * info.row_bytes])
    sink.finish(info.name)
