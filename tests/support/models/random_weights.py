"""Random tensors in every storage format, of a size that keeps activations near 1."""

from __future__ import annotations

import math
import zlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.types.program import WeightRole
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from potluck.types.engine import Engine
    from potluck.types.program import Program

# Where the f16 fields of a block lie, and by what factor each is smaller than the standard
# deviation of the values: the quants are uniform, so that these centre and scale them
# (ggml-common.h has the layouts).
_F16_FIELDS: dict[TensorFormat, tuple[tuple[int, float], ...]] = {
    TensorFormat.Q8_0: ((0, 1 / 74),),
    TensorFormat.Q4_0: ((0, 1 / 4.6),),
    TensorFormat.Q4_1: ((0, 1 / 4.6), (2, -7.5 / 4.6)),
    TensorFormat.Q5_0: ((0, 1 / 9.2),),
    TensorFormat.Q5_1: ((0, 1 / 9.2), (2, -15.5 / 9.2)),
    TensorFormat.Q4_K: ((0, 1 / 300), (2, 7.5 / 300)),
    TensorFormat.Q5_K: ((0, 1 / 600), (2, 15.5 / 600)),
    TensorFormat.Q6_K: ((208, 1 / 1365),),
    TensorFormat.Q2_K: ((80, 1 / 13.9), (82, 1.5 / 13.9)),
    TensorFormat.Q3_K: ((108, 1 / 43.3),),
    TensorFormat.IQ4_NL: ((0, 1 / 67.2),),
    TensorFormat.IQ4_XS: ((0, 1 / 1246),),
    TensorFormat.MXFP4: (),
}


def stored_rows(
    rng: np.random.Generator,
    fmt: TensorFormat,
    rows: int,
    columns: int,
    *,
    deviation: float | None = None,
) -> NDArray[np.uint8]:
    """``[rows, row_bytes]`` whose values have about the standard deviation ``deviation``.

    By default that is ``columns ** -0.5``.
    """
    deviation = columns**-0.5 if deviation is None else deviation
    if not fmt.is_quantized:
        values = (rng.standard_normal((rows, columns)) * deviation).astype(np.float32)
        if fmt is TensorFormat.F16:
            return as_bytes(values.astype(np.float16))
        if fmt is TensorFormat.BF16:
            return as_bytes((values.view(np.uint32) >> 16).astype(np.uint16))
        return as_bytes(values)
    blocks = rng.integers(
        0, 256, (rows, columns // fmt.block_elements, fmt.block_bytes), dtype=np.uint8
    )
    # The quants of formats without a minimum are not quite centred: scales of both signs are.
    signs = rng.choice([-1.0, 1.0], blocks.shape[:2]) if len(_F16_FIELDS[fmt]) == 1 else 1.0
    if fmt is TensorFormat.MXFP4:
        blocks[:, :, 0] = 128 + round(math.log2(deviation / 5.85))
    for offset, factor in _F16_FIELDS[fmt]:
        spread = signs * rng.uniform(0.8, 1.25, blocks.shape[:2])
        field = (deviation * factor * spread).astype(np.float16)
        blocks[:, :, offset : offset + 2] = field[:, :, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """``[rows, bytes of a row]``, the same memory."""
    stored: NDArray[np.uint8] = rows.view(np.uint8)
    return stored


def load_random_weights(
    engine: Engine,
    program: Program,
    fmt: TensorFormat,
    *,
    exceptions: Mapping[str, TensorFormat] = MappingProxyType({}),
) -> None:
    """Fill ``engine``: matrices in ``fmt`` but for the ``exceptions`` by name, vectors and routers
    in F32.

    A tensor depends on its name and format alone, so that stages of one model get parts of one
    model.
    """
    sink = engine.sink()
    for spec in program.weights:
        rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
        is_matrix = len(spec.shape) > 1
        is_float = spec.role is WeightRole.ROUTER or not is_matrix
        info = TensorInfo(
            name=spec.name,
            shape=spec.shape,
            format=TensorFormat.F32 if is_float else exceptions.get(spec.name, fmt),
        )
        if is_matrix:
            data = stored_rows(rng, info.format, info.num_rows, info.num_columns)
        else:
            centre = 0.0 if spec.name.endswith("bias") else 1.0
            values = centre + 0.1 * rng.standard_normal((1, info.num_columns))
            data = as_bytes(values.astype(np.float32))
        sink.begin(info)
        # Uneven pieces, as a loader's buffer makes them.
        step = max(1, info.num_rows // 3 + 5)
        for start in range(0, info.num_rows, step):
            end = min(start + step, info.num_rows)
            sink.write_rows(spec.name, start, end, memoryview(data[start:end].tobytes()))
        sink.finish(spec.name)
