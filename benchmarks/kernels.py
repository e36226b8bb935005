"""Measure the linear kernels on one thread: decode, batches, prefill, per format and ISA.

    python benchmarks/kernels.py OUT.json [--isa avx512 …] [--format q4_k …] [--weights-mb 256]

- *Memory read*: bytes per second of NumPy's sum over an array as large as the weights, on the same
  thread and right after the decode passes.
- *Decode*: one token; bytes of the weights per second, and as a fraction of the memory read. Every
  pass goes over all weights, so where they are larger than the last cache (see ``lscpu``) they
  come from memory.
- *Batch*: as many tokens as ``--batch`` says, of sequences that are decoded together, over the same
  weights; bytes of the weights per second. As fast as decode where it is bound by memory.
- *Exact* and *fast*: the kernels that arithmetic exact uses, with the bits of the scalar ones; and
  the products of bf16, of the formats that the instruction set has them for.
- *Prefill*: 512 tokens; 2 x rows x columns x tokens operations per second.

Each figure is that of the fastest of ``--repeats`` passes after one that does not count; the
seconds of all of them are in the file. Run it with nothing else on the machine: the file has the
load average.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from circumstances import circumstances

from potluck.kernels import available_isas, fast_formats, kernels_for, panel_bytes
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

SCHEMA = "potluck.benchmark.kernels/3"
COLUMNS = 2048
PREFILL_TOKENS = 512
PREFILL_ROWS = 512


def seconds_of_passes(run: Callable[[], object], repeats: int) -> list[float]:
    """Return the wall-clock seconds of each pass, after a warm-up pass."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def make_run(
    isa: str, format: TensorFormat, num_rows: int, num_tokens: int, *, is_fast: bool
) -> tuple[Callable[[], None], int]:
    """Return a call of the exact or fast kernel over random weights, and the weights' size in
    bytes.

    Two bits of every byte are fixed, so that no float and no scale among them, wherever it lies,
    is infinite or subnormal; what the weights are worth does not matter otherwise.
    """
    kernels, label = kernels_for(isa), format.label
    rng = np.random.default_rng(0)
    end_panel = num_rows // 16
    num_bytes = end_panel * panel_bytes(label, COLUMNS)
    panels = np.resize(rng.integers(0, 256, 1 << 20, dtype=np.uint8) & 0xBF | 0x20, num_bytes)
    x = rng.standard_normal((num_tokens, COLUMNS)).astype(np.float32)
    out = np.empty((num_tokens, num_rows), np.float32)
    if is_fast:
        rounded = np.empty(x.size, np.uint16)
        kernels.round_bf16(x.reshape(-1), rounded)
        bf16 = rounded.reshape(x.shape)
        return lambda: kernels.linear_fast(label, panels, bf16, None, out, 0, end_panel), num_bytes
    if not format.is_quantized:
        return lambda: kernels.linear_float(label, panels, x, None, out, 0, end_panel), num_bytes
    q = np.empty(x.shape, np.int8)
    scales = np.empty((num_tokens, COLUMNS // 32), np.float32)
    sums = np.empty(scales.shape, np.int32)
    kernels.quantize(x, q, scales, sums)

    def run() -> None:
        kernels.linear_quantized(label, panels, q, scales, sums, None, out, 0, end_panel)

    return run, num_bytes


def measure(
    isa: str,
    format: TensorFormat,
    weights_bytes: int,
    batches: list[int],
    repeats: int,
    *,
    is_fast: bool,
) -> dict[str, object]:
    """Measure one row of the results."""
    num_rows = weights_bytes // format.row_bytes(COLUMNS) // 16 * 16
    decode, num_bytes = make_run(isa, format, num_rows, 1, is_fast=is_fast)
    decode_seconds = seconds_of_passes(decode, repeats)
    memory_seconds = seconds_of_passes(np.ones(num_bytes // 8, np.int64).sum, repeats)
    batch_rows = []
    for num_tokens in batches:
        batch, _ = make_run(isa, format, num_rows, num_tokens, is_fast=is_fast)
        seconds = seconds_of_passes(batch, repeats)
        batch_rows.append(
            {
                "num_tokens": num_tokens,
                "bytes_per_second": num_bytes / min(seconds),
                "tokens_per_second_over_decode": num_tokens * min(decode_seconds) / min(seconds),
                "seconds": seconds,
            }
        )
    prefill, _ = make_run(isa, format, PREFILL_ROWS, PREFILL_TOKENS, is_fast=is_fast)
    prefill_seconds = seconds_of_passes(prefill, repeats)
    operations = 2 * PREFILL_ROWS * COLUMNS * PREFILL_TOKENS
    return {
        "isa": isa,
        "format": format.label,
        "is_fast": is_fast,
        "decode_weights_bytes": num_bytes,
        "decode_bytes_per_second": num_bytes / min(decode_seconds),
        "decode_fraction_of_memory_read": min(memory_seconds) / min(decode_seconds),
        "decode_seconds": decode_seconds,
        "memory_read_bytes_per_second": num_bytes / min(memory_seconds),
        "memory_read_seconds": memory_seconds,
        "batches": batch_rows,
        "prefill_operations": operations,
        "prefill_operations_per_second": operations / min(prefill_seconds),
        "prefill_seconds": prefill_seconds,
    }


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    labels = [format.label for format in COMPUTED_FORMATS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--isa", nargs="+", default=available_isas(), choices=available_isas())
    parser.add_argument("--format", nargs="+", default=labels, choices=labels)
    parser.add_argument("--weights-mb", type=int, default=256)
    parser.add_argument("--batch", nargs="+", type=int, default=[2, 4, 8, 16], metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Measure, print a line for each, write the file."""
    arguments = parse_arguments()
    record = {
        "schema": SCHEMA,
        **circumstances(),
        "num_threads": 1,
        "columns": COLUMNS,
        "prefill_tokens": PREFILL_TOKENS,
    }
    results = []
    for isa in arguments.isa:
        formats = [each for each in COMPUTED_FORMATS if each.label in arguments.format]
        kernels = [(each, False) for each in formats]
        kernels += [(each, True) for each in formats if each.label in fast_formats(isa)]
        for format, is_fast in kernels:
            row = measure(
                isa,
                format,
                arguments.weights_mb << 20,
                arguments.batch,
                arguments.repeats,
                is_fast=is_fast,
            )
            results.append(row)
            print(
                f"{isa:11} {format.label:5} {'fast' if is_fast else 'exact':5}"
                f"  decode {row['decode_bytes_per_second']:.3g} B/s,"
                f" {row['decode_fraction_of_memory_read']:.2f} of a memory read"
                f"  prefill {row['prefill_operations_per_second']:.3g} op/s",
                flush=True,
            )
    arguments.out.write_text(json.dumps({**record, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
