"""Multiplies by packed matrices on tinygrad's device ``DEV``, for a parent that judges.

``python -m support.tinygrad.weights_child``: a line with a list of cases comes in, a line with a
list of what became of each goes out. A process of its own, as tinygrad opens one device in each.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.engines.programs import program_reading
from support.kernels.inputs import U, make_weights

from potluck.engines.tinygrad.adapter import Device, Tensor
from potluck.engines.tinygrad.kernels import LOOPS, THREADS, VECTORS, Launch, for_units
from potluck.engines.tinygrad.weights import DeviceWeights
from potluck.errors import EngineError
from potluck.types.tensor import TensorFormat, TensorInfo

_LAUNCHES = {
    "device": None,
    "threads": THREADS,
    "many threads": for_units(THREADS, 132),
    "vectors": VECTORS,
    "loops": LOOPS,
}

# f16 bits of scales: ordinary, subnormal, the largest, and zero.
_SCALES = (0x2D12, 0xAF00, 0x0001, 0x83FF, 0x0123, 0x7BFF, 0x0000, 0x8000)


def main() -> None:
    kinds: dict[str, Callable[..., Any]] = {
        "products": products,
        "all_bits": all_bits,
        "large": large,
        "refusals": refusals,
    }
    cases = json.loads(sys.stdin.readline())
    print(json.dumps([kinds[case.pop("kind")](**case) for case in cases]))


def products(
    *,
    format: str,
    num_rows: int,
    num_columns: int,
    launch: str,
    has_f16: bool,
    tokens: list[int],
    has_extreme_scales: bool = False,
) -> dict[str, float]:
    """The largest errors of products and rows, as parts of what float32 may err.

    An exact product of a row errs by at most as many roundings as it has columns, and three more
    for each value (its scale, its minimum, the product), each at most U times the magnitudes.
    """
    rng = np.random.default_rng(num_rows)
    weights = make_weights(TensorFormat[format], num_rows, num_columns, rng)
    if has_extreme_scales:
        blocks = weights.stored.reshape(num_rows, -1, weights.format.block_bytes)
        bits = np.resize(np.array(_SCALES, np.uint16), num_rows)
        offset = 208 if format == "Q6_K" else 0
        blocks[:, :, offset : offset + 2] = bits.view(np.uint8).reshape(-1, 1, 2)
    values = oracle(weights.stored, weights.format)
    magnitudes = np.abs(values) + weights.minimums * 2
    matrix = loaded(weights.stored, weights.format, num_columns, _LAUNCHES[launch], has_f16)
    errors = {}
    for num_tokens in tokens:
        x = rng.standard_normal((num_tokens, num_columns)).astype(np.float32)
        found = matrix.linear(Tensor(x)).numpy()
        bound = (num_columns + 3) * U * (np.abs(x).astype(np.float64) @ magnitudes.T) + 1e-37
        errors[f"{num_tokens}"] = worst(found - x.astype(np.float64) @ values.T, bound)
    rows = rng.permutation(num_rows)[:7].astype(np.int32)
    found = matrix.rows(Tensor(rows)).numpy()
    errors["rows"] = worst(found - values[rows], 3 * U * magnitudes[rows] + 1e-37)
    return errors


def all_bits(*, format: str, has_f16: bool) -> int:
    """How many of the numbers that 16 bits can be are not what NumPy says."""
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    if format == "F16":
        values = bits.view(np.float16).astype(np.float32)
    else:
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    matrix = loaded(bits.view(np.uint8), TensorFormat[format], 256, None, has_f16)
    found = matrix.rows(Tensor(np.arange(256, dtype=np.int32))).numpy()
    return int(np.sum(~((found == values) | (np.isnan(found) & np.isnan(values)))))


def large(*, format: str) -> list[float]:
    """Products of weights that no f16 can be, on what is said to be a device with f16."""
    row = np.array([[1e5, 1e-8, -3e38, 1e38]], np.float32)
    stored = row.view(np.uint8)
    if format == "BF16":
        stored = (row.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    matrix = loaded(stored, TensorFormat[format], 4, None, has_f16=True)
    x = np.diag([1.0, 1.0, 1e-3, 1e-3]).astype(np.float32)
    found: list[float] = matrix.linear(Tensor(x)).numpy()[:, 0].tolist()
    return found


def refusals() -> dict[str, str]:
    """What a sink says to what it cannot take, and what it holds in between."""
    sink = DeviceWeights(program_reading({"w": (20, 32), "v": (3,)}), Device.DEFAULT, False)
    good = TensorInfo(name="w", shape=(20, 32), format=TensorFormat.Q8_0)
    data = memoryview(bytes(good.num_bytes))
    half = data[: 10 * good.row_bytes]
    messages = {}

    def refuse(what: str, *calls: Any) -> None:
        try:
            for function, *arguments in calls:
                function(*arguments)
            messages[what] = ""
        except EngineError as error:
            messages[what] = error.message

    other = TensorInfo(name="x", shape=(20, 32), format=TensorFormat.F32)
    refuse("unknown", (sink.begin, other))
    wrong = TensorInfo(name="w", shape=(32, 20), format=TensorFormat.F32)
    refuse("shape", (sink.begin, wrong))
    refuse("blocks", (sink.begin, TensorInfo(name="w", shape=(20, 32), format=TensorFormat.Q4_K)))
    refuse("not begun", (sink.write_rows, "w", 0, 10, half))
    refuse("begun twice", (sink.begin, good), (sink.begin, good))
    refuse("gap", (sink.write_rows, "w", 1, 11, half))
    refuse("bytes", (sink.write_rows, "w", 0, 10, data))
    refuse("too many", (sink.write_rows, "w", 0, 10, half), (sink.write_rows, "w", 10, 21, data))
    refuse("ends early", (sink.finish, "w"))
    messages["missing"] = " ".join(sink.missing())
    refuse("good", (sink.write_rows, "w", 10, 20, half), (sink.finish, "w"))
    refuse("written twice", (sink.begin, good))
    vector = TensorInfo(name="v", shape=(3,), format=TensorFormat.BF16)
    numbers = (np.array([1.5, -2, 2.0**100], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    refuse(
        "vector",
        (sink.begin, vector),
        (sink.write_rows, "v", 0, 1, numbers.data),
        (sink.finish, "v"),
    )
    messages["missing at the end"] = " ".join(sink.missing())
    messages["vector is"] = str(sink.vector("v").numpy().tolist())
    messages["bytes held"] = str(sink.num_bytes)
    sink.clear()
    messages["missing when cleared"] = " ".join(sink.missing())
    messages["bytes held when cleared"] = str(sink.num_bytes)
    return messages


def oracle(stored: NDArray[np.uint8], format: TensorFormat) -> NDArray[np.float64]:
    """Exact values by the ``gguf`` package's reading of the blocks, computed in float64."""
    import gguf

    kind = gguf.GGMLQuantizationType[format.name]
    if format in (TensorFormat.F32, TensorFormat.F16):
        return stored.view(np.float32 if format is TensorFormat.F32 else np.float16).astype(float)
    values: NDArray[np.float64] = gguf.dequantize(stored, kind).astype(np.float64)
    return values


def loaded(
    stored: NDArray[np.uint8],
    format: TensorFormat,
    num_columns: int,
    launch: Launch | None,
    has_f16: bool,
) -> Any:
    """The matrix on the device, in uneven pieces."""
    num_rows = len(stored)
    program = program_reading({"w": (num_rows, num_columns)})
    sink = DeviceWeights(program, Device.DEFAULT, has_f16, launch=launch)
    sink.begin(TensorInfo(name="w", shape=(num_rows, num_columns), format=format))
    cuts = sorted({0, min(5, num_rows), min(21, num_rows), num_rows})
    for start, end in itertools.pairwise(cuts):
        piece = np.ascontiguousarray(stored[start:end]).reshape(-1)
        sink.write_rows("w", start, end, piece.data)
        piece[:] = 0xFF  # it is not kept
    sink.finish("w")
    return sink.matrix("w")


def worst(error: NDArray[Any], bound: NDArray[Any]) -> float:
    """The largest error in parts of its bound; infinite where a number is not one."""
    ratio = np.abs(error) / bound
    return float(np.max(ratio)) if np.isfinite(ratio).all() else float("inf")


if __name__ == "__main__":
    main()
