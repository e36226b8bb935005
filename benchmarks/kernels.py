"""How fast the linear kernels are, on one thread: decode and prefill, per format and instruction set.

    python benchmarks/kernels.py OUT.json [--isa avx512 …] [--format q4_k …] [--weights-mb 256]

- *Memory read*: the largest of a few sums over an array as large as the weights, in GB/s, on the same
  thread and in the same run.
- *Decode*: one token; weights in GB/s as they lie in memory, and as a fraction of the memory read. The
  weights are passed over whole each time, so with more of them than the last cache holds (``lscpu``)
  they come from memory.
- *Prefill*: 512 tokens; 2 x rows x columns x tokens operations in GOPS.

Every figure is the best of ``--repeats`` passes; all passes are in the file. Measure with nothing else
running: the load average at the start is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from potluck.kernels import Kernels, available_isas, format_info, kernels_for, panel_bytes
from potluck.types.tensor import TensorFormat

SCHEMA = "potluck.benchmark.kernels/1"
COLUMNS = 2048
PREFILL_TOKENS = 512
PREFILL_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of each pass."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)


def time_passes(run: Callable[[], object], repeats: int) -> Passes:
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return Passes(seconds=tuple(seconds))


def make_run(
    kernels: Kernels, format: TensorFormat, num_rows: int, num_tokens: int
) -> tuple[Callable[[], None], int]:
    """A call of the kernel over random weights, and the weights' bytes.

    The bytes are random, and so are the scales among them: what they are worth does not matter here,
    but infinities and subnormals would, so all f16 exponents are in the middle.
    """
    label = format.label
    rng = np.random.default_rng(0)
    num_bytes = num_rows // 16 * panel_bytes(label, COLUMNS)
    panels = np.resize(rng.integers(0, 256, 1 << 20, dtype=np.uint8) & 0xBF | 0x20, num_bytes)
    x = rng.standard_normal((num_tokens, COLUMNS)).astype(np.float32)
    out = np.empty((num_tokens, num_rows), np.float32)
    end = num_rows // 16
    if not format.is_quantized:
        return lambda: kernels.linear_float(label, panels, x, None, out, 0, end), num_bytes
    q = np.empty(x.shape, np.int8)
    scales = np.empty((num_tokens, COLUMNS // 32), np.float32)
    sums = np.empty(scales.shape, np.int32)
    kernels.quantize(x, q, scales, sums)
    return (
        lambda: kernels.linear_quantized(label, panels, q, scales, sums, None, out, 0, end),
        num_bytes,
    )


def memory_read_bytes_per_second(num_bytes: int, repeats: int) -> float:
    array = np.ones(num_bytes // 8, np.int64)
    return num_bytes / time_passes(array.sum, repeats).best


def measure(
    isa: str, format: TensorFormat, weights_bytes: int, repeats: int
) -> dict[str, object]:
    kernels = kernels_for(isa)
    row_bytes = format.row_bytes(COLUMNS)
    decode, decode_bytes = make_run(kernels, format, weights_bytes // row_bytes // 16 * 16, 1)
    decode_passes = time_passes(decode, repeats)
    memory = memory_read_bytes_per_second(decode_bytes, repeats)
    prefill, _ = make_run(kernels, format, PREFILL_ROWS, PREFILL_TOKENS)
    prefill_passes = time_passes(prefill, repeats)
    operations = 2 * PREFILL_ROWS * COLUMNS * PREFILL_TOKENS
    return {
        "isa": isa,
        "format": format.label,
        "block": format_info(format.label),
        "memory_read_bytes_per_second": memory,
        "decode_weights_bytes": decode_bytes,
        "decode_bytes_per_second": decode_bytes / decode_passes.best,
        "decode_fraction_of_memory_read": decode_bytes / decode_passes.best / memory,
        "decode_seconds": decode_passes.seconds,
        "prefill_operations_per_second": operations / prefill_passes.best,
        "prefill_seconds": prefill_passes.seconds,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--isa", nargs="+", default=available_isas(), choices=available_isas())
    labels = [format.label for format in TensorFormat]
    parser.add_argument("--format", nargs="+", default=labels, choices=labels)
    parser.add_argument("--weights-mb", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    record: dict[str, object] = {
        "schema": SCHEMA,
        "command": sys.argv,
        "machine": platform.machine(),
        "load_average": os.getloadavg(),
        "num_threads": 1,
        "columns": COLUMNS,
    }
    results = []
    for isa in arguments.isa:
        for format in TensorFormat:
            if format.label not in arguments.format:
                continue
            result = measure(isa, format, arguments.weights_mb << 20, arguments.repeats)
            results.append(result)
            print(
                f"{isa:7} {format.label:5} decode"
                f" {result['decode_bytes_per_second']:.3g} B/s"
                f" ({result['decode_fraction_of_memory_read']:.0%} of a memory read)"
                f"  prefill {result['prefill_operations_per_second']:.3g} op/s",
                flush=True,
            )
    arguments.out.write_text(json.dumps({**record, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
