"""Measure the speed and the error of quantizing weights, and those of ggml's quantizer.

    python benchmarks/quantize.py OUT.json [--ggml libggml-base.so] [--weights-mb 64]

- *Error*: RMS of (read back - original) over RMS of the original, per format and kind of weights.
  Values are read back by the ``gguf`` package. With ``--ggml`` the same for
  ``ggml_quantize_chunk`` without an importance matrix, and the ratio of the two.
- *Weighted error*: the same with squares weighted by the square of the original, so that large
  weights count more. Nothing here minimizes it; ggml's K formats weight their searches about so.
- *Speed*: bytes of BF16 rows that ``convert_rows`` takes per second on one and on two threads,
  beside a plain read (NumPy's sum) of the same bytes on one thread; ggml's from float32 on one
  thread, counted as if the rows were BF16. The fastest of ``--repeats`` passes counts; the seconds
  of all are in the file.

A library comes from llama.cpp: ``cmake --build … --target ggml-base``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gguf
import numpy as np
from circumstances import circumstances
from kernels import seconds_of_passes
from numpy.typing import NDArray

from potluck.engines.dequantize import dequantize
from potluck.engines.native.pool import ThreadPool, make_pool
from potluck.formats.safetensors import open_safetensors
from potluck.kernels import available_isas, convert_rows
from potluck.types.tensor import TensorFormat

SCHEMA = "potluck.benchmark.quantize/1"
TARGETS = (
    TensorFormat.Q8_0,
    TensorFormat.Q4_0,
    TensorFormat.Q5_0,
    TensorFormat.Q4_K,
    TensorFormat.Q6_K,
)
COLUMNS = 1024
DEMO = Path(__file__).parents[1] / "src/potluck/data/demo/model.safetensors"

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Ggml:
    """ggml's quantizer, by ctypes. Types are those of ``enum ggml_type``, as gguf has them."""

    def __init__(self, library: Path) -> None:
        self._quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        self._quantize.argtypes = [
            ctypes.c_int, pointer, pointer, integer, integer, integer, pointer
        ]  # fmt: skip
        self._quantize.restype = ctypes.c_size_t

    def quantize(self, x: F32, target: TensorFormat) -> U8:
        """Quantize the rows of ``x [rows, columns]`` to ``[rows, row bytes]``."""
        out = np.empty((len(x), target.row_bytes(x.shape[1])), np.uint8)
        type_id = gguf.GGMLQuantizationType[target.name].value
        self._quantize(type_id, x.ctypes.data, out.ctypes.data, 0, *x.shape, None)
        return out


def quantize(
    rows: U8, source: TensorFormat, target: TensorFormat, num_columns: int, pool: ThreadPool | None
) -> U8:
    """Return the quantized ``[rows, row bytes]`` of ``convert_rows``."""
    out = np.empty((len(rows), target.row_bytes(num_columns)), np.uint8)
    convert_rows(
        rows.reshape(-1),
        source.label,
        target.label,
        len(rows),
        num_columns,
        out.reshape(-1),
        pool,
    )
    return out


def demo_weights() -> F32:
    """Return all matrices of the built-in model, in rows of ``COLUMNS``."""
    source = open_safetensors(DEMO)
    values = []
    for name in source.names():
        info = source.info(name)
        if len(info.shape) == 2:
            stored = bytearray(info.num_bytes)
            source.read_rows(name, 0, info.num_rows, memoryview(stored))
            values.append(dequantize(memoryview(stored), info.format, info.num_columns).reshape(-1))
    source.close()
    whole = np.concatenate(values)
    return whole[: len(whole) // COLUMNS * COLUMNS].reshape(-1, COLUMNS)


def kinds_of_weights(num_rows: int) -> dict[str, F32]:
    """Return rows of each kind, ``[rows, COLUMNS]``."""
    rng = np.random.default_rng(0)
    shape = (num_rows, COLUMNS)
    kinds = {
        "gaussian": rng.standard_normal(shape),
        "laplace": rng.laplace(size=shape),
        "student_t_4": rng.standard_t(4, shape),
        "student_t_2.5": rng.standard_t(2.5, shape),
        "gaussian_small": rng.standard_normal(shape) * 1e-3,
    }
    return {name: x.astype(np.float32) for name, x in kinds.items()} | {"demo": demo_weights()}


def errors_of(x: F32, blocks: U8, target: TensorFormat) -> dict[str, float]:
    """Return the relative errors of quantized rows."""
    exact = x.astype(np.float64)
    squares = (gguf.dequantize(blocks, gguf.GGMLQuantizationType[target.name]) - exact) ** 2
    return {
        "error": float(np.sqrt(squares.sum() / (exact**2).sum())),
        "weighted_error": float(np.sqrt((squares * exact**2).sum() / (exact**4).sum())),
    }


def measure_errors(kind: str, x: F32, target: TensorFormat, ggml: Ggml | None) -> dict[str, object]:
    """Measure one row of the results."""
    stored = x.view(np.uint8)
    ours = errors_of(x, quantize(stored, TensorFormat.F32, target, COLUMNS, None), target)
    row: dict[str, object] = {"weights": kind, "format": target.label, **ours}
    if ggml is not None:
        theirs = errors_of(x, ggml.quantize(x, target), target)
        row["ggml"] = theirs
        row["ratio"] = {name: ours[name] / theirs[name] for name in ours}
    return row


def measure_speeds(num_bytes: int, repeats: int, ggml: Ggml | None) -> list[dict[str, object]]:
    """Measure the plain read, then every target with every number of threads."""
    num_rows = num_bytes // 2 // COLUMNS
    x = np.random.default_rng(1).standard_normal((num_rows, COLUMNS)).astype(np.float32)
    rows = (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    results: list[dict[str, object]] = []

    def measure(what: dict[str, object], run: Callable[[], object]) -> None:
        seconds = seconds_of_passes(run, repeats)
        rate = rows.nbytes / min(seconds)
        results.append({**what, "bf16_bytes_per_second": rate, "seconds": seconds})

    measure({"what": "plain read", "num_threads": 1}, rows.view(np.int64).sum)
    flat = rows.reshape(-1)
    for num_threads in (1, 2):
        pool = make_pool(num_threads)
        for target in TARGETS:
            out = np.empty(num_rows * target.row_bytes(COLUMNS), np.uint8)
            run = partial(convert_rows, flat, "bf16", target.label, num_rows, COLUMNS, out, pool)
            measure({"what": target.label, "num_threads": num_threads}, run)
    if ggml is not None:
        for target in TARGETS:
            what: dict[str, object] = {"what": f"{target.label} by ggml", "num_threads": 1}
            measure(what, partial(ggml.quantize, x, target))
    return results


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--ggml", type=Path, help="a libggml-base to compare with")
    parser.add_argument("--weights-mb", type=int, default=64, help="BF16 rows for the speeds")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Measure, print a line for each, write the file."""
    arguments = parse_arguments()
    ggml = Ggml(arguments.ggml) if arguments.ggml else None
    record = {"schema": SCHEMA, **circumstances(), "isa": available_isas()[-1], "columns": COLUMNS}
    errors = [
        measure_errors(kind, x, target, ggml)
        for kind, x in kinds_of_weights(2048).items()
        for target in TARGETS
    ]
    for row in errors:
        ratio = f"  ratio {json.dumps(row['ratio'])}" if ggml else ""
        print(f"{row['weights']:16} {row['format']:5} {row['error']:.5f}{ratio}")
    speeds = measure_speeds(arguments.weights_mb << 20, arguments.repeats, ggml)
    for row in speeds:
        rate = row["bf16_bytes_per_second"]
        print(f"{row['what']:16} {row['num_threads']} threads  {rate:.3g} B/s of BF16")
    document = {**record, "errors": errors, "speeds": speeds}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
