"""How products by packed matrices are best distributed over a GPU: METHODOLOGY.md, "GPU".

    python benchmarks/gpu_launches.py OUT.json [--backend tinygrad:CUDA] [--variant nvrtc]

Matrices of models' shapes, for one token and for 32, with 4 to 64 threads for each row, and sums of
8 to 32 tokens in each thread. Matrices take turns, so that none is found in the device's cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import circumstances
from random_weights import SEED, random_tensor

from potluck.engines.tinygrad_environment import tinygrad_environment
from potluck.types.tensor import TensorFormat, TensorInfo

SCHEMA = "potluck.benchmark.gpu_launches/1"
SHAPES = ((2048, 2048), (4096, 14336), (14336, 4096))
FORMATS = (TensorFormat.Q8_0, TensorFormat.Q4_K, TensorFormat.BF16)
_NUM_ROUNDS = 10
_LEAST_BYTES = 150_000_000
"""More than the last-level cache of an H100, of 50 MB."""
_MOST_COPIES = 6
_PIECE_ROWS = 512


def main() -> None:
    """Measure every case, print it and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="tinygrad:CUDA")
    parser.add_argument("--variant", default="nvrtc")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 32], choices=[1, 32])
    parser.add_argument("--seconds", type=float, default=600.0, help="no case begins after these")
    arguments = parser.parse_args()
    # Without graphs of kernels, so that each can be launched by itself.
    environment = tinygrad_environment(arguments.backend, None, arguments.variant)
    os.environ.update({**environment, "JIT": "2"})
    record = {"schema": SCHEMA, **circumstances(), "variant": arguments.variant}
    record["command"] = ["python", "benchmarks/gpu_launches.py", "OUT.json"]
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + arguments.seconds
    for case in cases(arguments.tokens):
        if time.monotonic() > end:
            break
        rows.append({**case, **measured(**case)})
        print(json.dumps(rows[-1]), flush=True)
        arguments.out.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")


def cases(tokens: list[int]) -> Iterator[dict[str, Any]]:
    """Yield all measurements as arguments of ``measured``."""
    for num_tokens in tokens:
        for format in FORMATS:
            for num_rows, num_columns in SHAPES:
                for num_parts in (8, 16, 32, 64) if num_tokens == 1 else (4, 8, 16):
                    for tile in (1,) if num_tokens == 1 else (8, 16, 32):
                        yield {
                            "format": format.label,
                            "num_rows": num_rows,
                            "num_columns": num_columns,
                            "num_tokens": num_tokens,
                            "num_parts": num_parts,
                            "tokens_per_thread": tile,
                        }


def measured(
    format: str,
    num_rows: int,
    num_columns: int,
    num_tokens: int,
    num_parts: int,
    tokens_per_thread: int,
) -> dict[str, Any]:
    """Measure a kernel with the device's own timer. Return the median seconds."""
    from potluck.engines.tinygrad import compiled
    from potluck.engines.tinygrad.adapter import Device, Tensor, TinyJit
    from potluck.engines.tinygrad.formats import f16_to_float
    from potluck.engines.tinygrad.kernels import THREADS
    from potluck.engines.tinygrad.layout import MatrixLayout
    from potluck.engines.tinygrad.weights import DeviceMatrix

    stored = next(each for each in FORMATS if each.label == format)
    info = TensorInfo(name="w", shape=(num_rows, num_columns), format=stored)
    rng = np.random.default_rng(SEED)
    piece_rows = min(num_rows, _PIECE_ROWS)
    (values,) = random_tensor(rng, stored, (piece_rows, num_columns))
    piece = np.frombuffer(values.reshape(-1).data, np.uint8).reshape(piece_rows, -1)
    launch = dataclasses.replace(
        THREADS,
        num_parts=num_parts,
        num_token_parts=num_parts,
        num_tokens=tokens_per_thread,
    )
    x = rng.standard_normal((num_tokens, num_columns)).astype(np.float32)
    columns = Tensor(x, device=Device.DEFAULT).realize()
    kept = []
    for _ in range(min(_MOST_COPIES, -(-_LEAST_BYTES // info.num_bytes))):
        matrix = DeviceMatrix(Device.DEFAULT, MatrixLayout(info), launch, f16_to_float)
        for start in range(0, num_rows, piece_rows):
            matrix.append(piece[: num_rows - start])
        jit = TinyJit(lambda matrix=matrix: matrix.linear(columns).realize())
        jit.cnt = 1
        try:
            jit()
        except RuntimeError as error:
            return {"failed": str(error).splitlines()[0]}
        kept.append((matrix, jit, compiled.launches(jit.captured.linear)[-1]))
    seconds = [
        call.run(*call.buffers, global_size=call.sizes[0], local_size=call.sizes[1], wait=True)
        for _ in range(_NUM_ROUNDS)
        for _, _, call in kept
    ]
    median = statistics.median(seconds[len(seconds) // 3 :])
    return {
        "seconds": median,
        "bytes_per_second": info.num_bytes / median,
        "operations_per_second": 2 * num_rows * num_columns * num_tokens / median,
    }


if __name__ == "__main__":
    main()
