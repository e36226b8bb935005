"""Measure products by packed matrices on tinygrad's devices: METHODOLOGY, "Packed matrices".

    python benchmarks/tinygrad_matvec.py OUT.json [--device CPU CL] [--format q4_k …]

Each device is measured by a process of its own (this script with ``--child``), one after another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import circumstances

from potluck.engines.tinygrad.layout import BLOCKS
from potluck.types.program import Program, Shard, WeightSpec
from potluck.types.tensor import TensorFormat, TensorInfo

SCHEMA = "potluck.benchmark.tinygrad_matvec/1"
COLUMNS = 4096
PREFILL_TOKENS = 32
_BLOCK_ROWS = 256
_GRAPH_BYTES = 8 * 2**20
"""The size of matrices for kernels that tinygrad schedules itself, which are slow."""


def main() -> None:
    """Measure each device, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", nargs="+", default=["CPU", "CL"])
    labels = [format.label for format in BLOCKS]
    parser.add_argument("--format", nargs="+", default=labels)
    parser.add_argument("--weights-mb", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure_device(arguments)))
        return
    document: dict[str, Any] = {"schema": SCHEMA, **circumstances(), "devices": {}}
    for device in arguments.device:
        environ = {**os.environ, "DEV": device, "PARALLEL": "0"}
        command = [sys.executable, *sys.argv, "--child", "--device", device]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
        document["devices"][device] = json.loads(done.stdout)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


def measure_device(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all formats on the device ``DEV``."""
    results = []
    for label in arguments.format:
        format = next(each for each in BLOCKS if each.label == label)
        num_rows = arguments.weights_mb * 2**20 // format.row_bytes(COLUMNS) // _BLOCK_ROWS
        result = measure_format(format, num_rows * _BLOCK_ROWS, arguments.repeats)
        print(arguments.device[0], summary(result), file=sys.stderr, flush=True)
        results.append(result)
    return results


def measure_format(format: TensorFormat, num_rows: int, repeats: int) -> dict[str, Any]:
    """Measure reading, products for one token and for several, and the other ways, in seconds."""
    from vector_source import q4_0_product

    from potluck.engines.tinygrad.adapter import Device, Tensor, TinyJit
    from potluck.engines.tinygrad.layout import MatrixLayout
    from potluck.engines.tinygrad.weights import DeviceWeights

    device = Device.DEFAULT
    info = TensorInfo(name="w", shape=(num_rows, COLUMNS), format=format)
    weights = DeviceWeights(_program(info), device, has_f16=False)
    rows = stored_rows(info)
    weights.begin(info)
    started = time.perf_counter()
    for start in range(0, num_rows, _BLOCK_ROWS):
        weights.write_rows("w", start, start + _BLOCK_ROWS, rows.data)
    loading_seconds = time.perf_counter() - started
    weights.finish("w")
    matrix = weights.matrix("w")

    def synchronized(run: Callable[[Any], Any], x: Any) -> Callable[[], None]:
        jitted = TinyJit(run)

        def call() -> None:
            jitted(x)
            Device[device].synchronize()

        return call

    one = Tensor(np.ones((1, COLUMNS), np.float32), device=device).realize()
    several = Tensor(np.ones((PREFILL_TOKENS, COLUMNS), np.float32), device=device).realize()
    calls = {
        "read": synchronized(lambda x: read_words(matrix, x).realize(), one),
        "decode": synchronized(lambda x: matrix.linear(x).realize(), one),
        "prefill": synchronized(lambda x: matrix.linear(x).realize(), several),
    }
    sizes = dict.fromkeys(calls, info.num_bytes)
    if format is TensorFormat.Q4_0:
        layout = MatrixLayout(info)
        product = q4_0_product(device, layout.num_panels, layout.num_blocks)
        out = Tensor.zeros(layout.num_panels * 16, device=device).contiguous().realize()
        planes = [plane.uop.base for plane in matrix.planes]
        calls["source"] = lambda: product(out, *map(Tensor, planes), one)
        sizes["source"] = info.num_bytes
    if format.is_quantized:
        graph_rows = _GRAPH_BYTES // info.row_bytes // _BLOCK_ROWS * _BLOCK_ROWS
        tiled = np.tile(rows, graph_rows // _BLOCK_ROWS)
        values = scheduled_by_tinygrad(tiled, format, device)
        calls["graph"] = synchronized(lambda x: (x @ values.T).contiguous().realize(), one)
        sizes["graph"] = graph_rows * info.row_bytes
    result: dict[str, Any] = {
        "format": format.label,
        "num_rows": num_rows,
        "loading_seconds": loading_seconds,
        "ways": {
            way: {"num_bytes": sizes[way], "warm_up_seconds": warm_up(call), "passes": []}
            for way, call in calls.items()
        },
    }
    for _ in range(repeats):
        for way, call in calls.items():
            result["ways"][way]["passes"].append(timed(call))
    if "source" in calls:
        expected = matrix.linear(one).numpy()[0]
        assert np.abs(out.numpy()[:num_rows] - expected).max() < 1e-3 * np.abs(expected).max()
    weights.clear()
    return result


def warm_up(call: Callable[[], None]) -> float:
    """Return the seconds of the first two calls (compiling, recording); a third is not counted."""
    seconds = timed(call)["seconds"] + timed(call)["seconds"]
    call()
    return seconds


def timed(call: Callable[[], None]) -> dict[str, float]:
    """Return the wall-clock time of one call, and its CPU time, which no other process affects."""
    start, start_of_cpu = time.perf_counter(), time.process_time()
    call()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - start_of_cpu,
    }


def read_words(matrix: Any, x: Any) -> Any:
    """Sum the words of each row as floats: a product's memory traffic without x and scales."""
    from potluck.engines.tinygrad.adapter import AxisType, KernelInfo, Ops, Tensor, UOp, dtypes
    from potluck.engines.tinygrad.weights import launch_for

    (panels, num_words, panel_rows) = matrix.planes[0].shape
    launch = launch_for(x.device)

    def kernel(out: UOp, words: UOp, x: UOp) -> UOp:
        panel = UOp.range(panels, 0, launch.panel_axis)
        row = UOp.range(panel_rows, 1, launch.row_axis)
        parts = next(size for size in (launch.num_parts, 4, 2, 1) if num_words % (4 * size) == 0)
        outer = UOp.range(num_words // (4 * parts), 2, AxisType.REDUCE)
        part = UOp.range(parts, 3, AxisType.GROUP_REDUCE) if parts > 1 else UOp.const(0)
        first = (outer * parts + part) * 4
        some = [words[panel, first + i, row].bitcast(dtypes.float32) for i in range(4)]
        total = (some[0] + some[1]) + (some[2] + some[3])
        total = total.reduce(outer, *([part] if parts > 1 else []), arg=Ops.ADD)
        total = total + x[0, 0]  # a jitted call takes something
        store = out[panel, row].store(total)
        return store.end(panel, row).sink(arg=KernelInfo(name="read", opts_to_apply=()))

    out = Tensor.empty(panels, panel_rows, dtype=dtypes.float32, device=x.device)
    return out.custom_kernel(matrix.planes[0], x, fxn=kernel)[0]


def scheduled_by_tinygrad(stored: Any, format: TensorFormat, device: str) -> Any:
    """Return the values as an expression of tinygrad's own, which it fuses with the product."""
    import gguf
    from tinygrad.llm.gguf import ggml_data_to_tensor

    from potluck.engines.tinygrad.adapter import Tensor

    num_values = stored.size // format.block_bytes * format.block_elements
    kind = gguf.GGMLQuantizationType[format.name].value
    blocks = Tensor(stored, device=device).realize()
    return ggml_data_to_tensor(blocks, num_values, kind).reshape(-1, COLUMNS)


def stored_rows(info: TensorInfo) -> Any:
    """Return some rows of random weights; two bits of each byte are fixed to avoid infinities."""
    some = np.random.default_rng(0).integers(0, 256, _BLOCK_ROWS * info.row_bytes, dtype=np.uint8)
    return some & 0xBF | 0x20


def summary(result: dict[str, Any]) -> str:
    """Return a line: bytes per second, by the clock and relative to reading per CPU second."""
    ways = result["ways"]

    def rate(way: str, clock: str) -> float:
        return float(ways[way]["num_bytes"] / min(each[clock] for each in ways[way]["passes"]))

    parts = [
        f"{way} {rate(way, 'seconds') / 1e9:5.2f} GB/s "
        f"({rate(way, 'cpu_seconds') / rate('read', 'cpu_seconds'):4.0%})"
        for way in ways
    ]
    return f"{result['format']:5} " + "  ".join(parts)


def _program(info: TensorInfo) -> Program:
    return Program(
        shard=Shard.whole(1),
        registers=(),
        ops=(),
        weights=(WeightSpec(name=info.name, shape=info.shape),),
        caches=(),
        ropes=(),
        hidden_size=1,
        vocab_size=1,
        context_tokens=1,
    )


if __name__ == "__main__":
    main()
