"""Measure the attention kernel on one thread: decode over a long context, and prefill.

    python benchmarks/attention.py OUT.json [--isa avx512 …] [--context 4096]

- *Decode*: one token of each of several sequences, whose keys and values lie in shuffled blocks and
  are larger together than the last cache (see ``lscpu``); bytes of these per second, and as a
  fraction of the *memory read*: NumPy's sum over an array as large, on the same thread, in
  alternation with the passes of decode.
- *Prefill*: 512 tokens at three depths, for one key-value head and in tiles as the program runner
  makes them; 4 x columns operations per token, query head and visible position.
- *Windows*, of shapes that have one: seconds of a token of decode, and of 512 tokens of prefill, at
  several depths. They should not grow with the depth.
- *Latent*, of shapes as multi-head latent attention has them: seconds of a token of decode and of
  prefill at several depths, in the absorbed form, where all heads share a key whose columns are the
  values too, and in the expanded one, where each has a key and a value of its own. The products
  that expand them are not among the seconds, but their multiply-adds are counted.

Seconds are wall-clock and thread CPU time of every pass after one that does not count; figures are
those of the fastest by CPU time, so that what else runs on the machine disturbs them little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import write_result
from numpy.typing import NDArray

from potluck.kernels import Kernels, available_isas, kernels_for

SCHEMA = "potluck.benchmark.attention/1"
BLOCK_TOKENS = 16
TILE_ROWS = 64
PREFILL_TOKENS = 512
PREFILL_STARTS = (0, 1536, 3584)
WINDOW_STARTS = (2048, 8192, 32768)
WINDOW_DECODES = 50
LATENT_STARTS = (1023, 8191, 32767)
LATENT_PREFILL_ROWS = 1024
LATENT_DECODE_HEADS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The heads of a model's attention; with a ``window``, those of its sliding-window layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Heads of a model with multi-head latent attention."""

    num_heads: int
    latent_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


SHAPES = {
    "llama-1b": HeadShape(num_heads=32, num_kv_heads=8, head_dim=64),
    "llama-8b": HeadShape(num_heads=32, num_kv_heads=8, head_dim=128),
    "qwen2-7b": HeadShape(num_heads=28, num_kv_heads=4, head_dim=128),
    "gemma3-1b": HeadShape(num_heads=4, num_kv_heads=1, head_dim=256, window=512),
    "gemma3-4b": HeadShape(num_heads=8, num_kv_heads=4, head_dim=256, window=1024),
    "gpt-oss-20b": HeadShape(num_heads=64, num_kv_heads=8, head_dim=64, window=128),
}


LATENT_SHAPES = {
    "glm-4.7-flash": LatentShape(
        num_heads=20, latent_rank=512, rope_dim=64, nope_dim=192, value_dim=256
    ),
    "deepseek-v3": LatentShape(
        num_heads=128, latent_rank=512, rope_dim=64, nope_dim=128, value_dim=128
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Random keys and values as the engine keeps them."""

    keys: NDArray[np.uint16]
    values: NDArray[np.uint16]

    @classmethod
    def make(
        cls, num_blocks: int, num_kv_heads: int, head_dim: int, value_dim: int | None = None
    ) -> Cache:
        """Fill a cache by repeating one million random numbers; values are as wide as keys unless
        ``value_dim`` is given.
        """
        drawn = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
        positions = num_blocks * num_kv_heads * BLOCK_TOKENS
        width = head_dim if value_dim is None else value_dim
        keys, values = (
            np.resize(drawn, positions * each).view(np.uint16) for each in (head_dim, width)
        )
        return cls(
            keys=keys.reshape(num_blocks, num_kv_heads, head_dim, BLOCK_TOKENS),
            values=values.reshape(num_blocks, num_kv_heads, BLOCK_TOKENS, width),
        )

    @property
    def num_bytes(self) -> int:
        """The size of keys and values."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The times of one pass."""

    cpu_seconds: float
    wall_seconds: float


def time_pass(run: Callable[[], object]) -> Pass:
    """Run once."""
    wall, cpu = time.perf_counter(), time.thread_time()
    run()
    return Pass(cpu_seconds=time.thread_time() - cpu, wall_seconds=time.perf_counter() - wall)


def fastest(passes: list[Pass]) -> float:
    """Return the CPU seconds of the fastest pass."""
    return min(one.cpu_seconds for one in passes)


def measure_decode(
    kernels: Kernels, shape: HeadShape, context_tokens: int, cache_bytes: int, repeats: int
) -> dict[str, object]:
    """Measure the bytes of keys and values per second, with a memory read for comparison."""
    bytes_per_token = 4 * shape.num_kv_heads * shape.head_dim
    blocks_per_sequence = context_tokens // BLOCK_TOKENS
    num_sequences = max(1, cache_bytes // (context_tokens * bytes_per_token))
    num_blocks = num_sequences * blocks_per_sequence
    cache = Cache.make(num_blocks, shape.num_kv_heads, shape.head_dim)
    order = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
    tables = order.reshape(num_sequences, blocks_per_sequence)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, shape.num_heads, shape.head_dim)).astype(np.float32)
    out = np.empty_like(q)
    scale = float(shape.head_dim**-0.5)

    def decode() -> None:
        for table in tables:
            kernels.attention(
                q, cache.keys, cache.values, table, context_tokens - 1, None, scale, out
            )

    read = np.ones(cache.num_bytes // 8, np.int64).sum
    pairs = [(time_pass(decode), time_pass(read)) for _ in range(repeats + 1)][1:]
    decodes, reads = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "context_tokens": context_tokens,
        "cache_bytes": cache.num_bytes,
        "decode_bytes_per_second": cache.num_bytes / fastest(decodes),
        "memory_read_bytes_per_second": cache.num_bytes / fastest(reads),
        "decode_fraction_of_memory_read": fastest(reads) / fastest(decodes),
        "decode_passes": [asdict(one) for one in decodes],
        "memory_read_passes": [asdict(one) for one in reads],
    }


def measure_prefill(
    kernels: Kernels, shape: HeadShape, start: int, repeats: int, window: int | None = None
) -> dict[str, object]:
    """Measure the rate of 512 tokens from ``start`` on, for one key-value head, in operations/s."""
    group = shape.num_heads // shape.num_kv_heads
    tile_tokens = max(1, TILE_ROWS // group)
    num_blocks = -(-(start + PREFILL_TOKENS) // BLOCK_TOKENS)
    cache = Cache.make(num_blocks, 1, shape.head_dim)
    table = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((PREFILL_TOKENS, group, shape.head_dim)).astype(np.float32)
    out = np.empty_like(q)
    scale = float(shape.head_dim**-0.5)

    def prefill() -> None:
        for i in range(0, PREFILL_TOKENS, tile_tokens):
            tile = slice(i, i + tile_tokens)
            kernels.attention(
                q[tile], cache.keys, cache.values, table, start + i, window, scale, out[tile]
            )

    passes = [time_pass(prefill) for _ in range(repeats + 1)][1:]
    reach = start + PREFILL_TOKENS if window is None else window
    num_visible = sum(min(start + i + 1, reach) for i in range(PREFILL_TOKENS))
    operations = 4 * shape.head_dim * group * num_visible
    return {
        "start": start,
        "operations": operations,
        "seconds": fastest(passes),
        "operations_per_second": operations / fastest(passes),
        "passes": [asdict(one) for one in passes],
    }


def measure_window(
    kernels: Kernels, shape: HeadShape, start: int, repeats: int
) -> dict[str, object]:
    """Measure the seconds at position ``start``, with the window and, in decode, without it."""
    num_blocks = start // BLOCK_TOKENS + 1
    cache = Cache.make(num_blocks, shape.num_kv_heads, shape.head_dim)
    table = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((1, shape.num_heads, shape.head_dim)).astype(np.float32)
    out = np.empty_like(q)
    scale = float(shape.head_dim**-0.5)

    def seconds(window: int | None, num_decodes: int) -> float:
        def decode() -> None:
            for _ in range(num_decodes):
                kernels.attention(q, cache.keys, cache.values, table, start, window, scale, out)

        return fastest([time_pass(decode) for _ in range(repeats + 1)][1:]) / num_decodes

    return {
        "start": start,
        "decode_seconds": seconds(shape.window, WINDOW_DECODES),
        "decode_seconds_without_window": seconds(None, 1),
        "prefill_seconds": measure_prefill(kernels, shape, start, repeats, shape.window)["seconds"],
    }


def latent_seconds(
    kernels: Kernels,
    shape: LatentShape,
    start: int,
    num_tokens: int,
    repeats: int,
    *,
    absorbed: bool,
) -> dict[str, object]:
    """Measure ``num_tokens`` tokens from ``start`` on, in all heads; return seconds and operations.

    In the expanded form heads are all alike, and some are measured.
    """
    group = shape.num_heads if absorbed else 1
    head_dim = shape.rope_dim + (shape.latent_rank if absorbed else shape.nope_dim)
    value_dim = shape.latent_rank if absorbed else shape.value_dim
    num_blocks = (start + num_tokens - 1) // BLOCK_TOKENS + 1
    # In a decode the keys and values of neighbouring heads are read together.
    num_kv_heads = 1 if absorbed or num_tokens > 1 else min(shape.num_heads, LATENT_DECODE_HEADS)
    cache = Cache.make(num_blocks, num_kv_heads, head_dim, 0 if absorbed else value_dim)
    table = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
    rng = np.random.default_rng(2)
    heads = group * num_kv_heads
    q = rng.standard_normal((num_tokens, heads, head_dim)).astype(np.float32)
    out = np.empty((num_tokens, heads, value_dim), np.float32)
    scale = float(head_dim**-0.5)
    tile_tokens = max(1, TILE_ROWS // heads)

    def run() -> None:
        for i in range(0, num_tokens, tile_tokens):
            tile = slice(i, i + tile_tokens)
            kernels.attention(
                q[tile],
                cache.keys,
                None if absorbed else cache.values,
                table,
                start + i,
                None,
                scale,
                out[tile],
                value_start=shape.rope_dim if absorbed else 0,
            )

    passes = [time_pass(run) for _ in range(repeats + 1)][1:]
    seconds = fastest(passes) * shape.num_heads / heads
    num_visible = sum(start + i + 1 for i in range(num_tokens))
    operations = 2 * (head_dim + value_dim) * shape.num_heads * num_visible
    return {
        "num_tokens": num_tokens,
        "operations": operations,
        "seconds_per_token": seconds / num_tokens,
        "operations_per_second": operations / seconds,
        "passes": [asdict(one) for one in passes],
    }


def measure_latent(
    kernels: Kernels, shape: LatentShape, start: int, repeats: int
) -> dict[str, Any]:
    """Decode and prefill at the position ``start`` in both forms."""
    num_tokens = LATENT_PREFILL_ROWS // shape.num_heads
    row: dict[str, Any] = {"start": start}
    for form in ("absorbed", "expanded"):
        for phase, count in (("decode", 1), ("prefill", num_tokens)):
            row[f"{form}_{phase}"] = latent_seconds(
                kernels, shape, start, count, repeats, absorbed=form == "absorbed"
            )
    # Operations of the products with the matrices of all heads, per token of a prompt or per
    # position that a chunk of a prompt sees.
    width = shape.num_heads * shape.latent_rank
    row["absorbing_operations_per_token"] = 2 * width * (shape.nope_dim + shape.value_dim)
    row["expanding_operations_per_position"] = 2 * width * (shape.nope_dim + shape.value_dim)
    return row


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--isa", nargs="+", default=available_isas(), choices=available_isas())
    every = [*SHAPES, *LATENT_SHAPES]
    parser.add_argument("--shape", nargs="+", default=every, choices=every)
    parser.add_argument("--context", type=int, default=4096, help="a multiple of 16")
    parser.add_argument("--cache-mb", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def latent_result(kernels: Kernels, name: str, repeats: int) -> dict[str, object]:
    """Measure a latent shape at all depths, and print a line for each."""
    shape = LATENT_SHAPES[name]
    rows = []
    for start in LATENT_STARTS:
        row = measure_latent(kernels, shape, start, repeats)
        rows.append(row)
        texts = []
        for form in ("absorbed", "expanded"):
            for phase in ("decode", "prefill"):
                part = row[f"{form}_{phase}"]
                texts.append(
                    f"{form} {phase} {part['seconds_per_token'] * 1e3:.3g} ms,"
                    f" {part['operations_per_second']:.3g} op/s"
                )
        print(f"{kernels.isa:7} {name:13} at {start + 1}: {'; '.join(texts)}", flush=True)
    return {"isa": kernels.isa, "shape": name, **asdict(shape), "latent": rows}


def main() -> None:
    """Measure, print a line for each, write the file."""
    arguments = parse_arguments()
    results = []
    for isa in arguments.isa:
        kernels = kernels_for(isa)
        for name in arguments.shape:
            if name in LATENT_SHAPES:
                results.append(latent_result(kernels, name, arguments.repeats))
                continue
            shape = SHAPES[name]
            decode = measure_decode(
                kernels, shape, arguments.context, arguments.cache_mb << 20, arguments.repeats
            )
            prefill = [
                measure_prefill(kernels, shape, start, arguments.repeats)
                for start in PREFILL_STARTS
            ]
            windows = [
                measure_window(kernels, shape, start, arguments.repeats)
                for start in (WINDOW_STARTS if shape.window else ())
            ]
            results.append(
                {
                    "isa": isa,
                    "shape": name,
                    **asdict(shape),
                    "decode": decode,
                    "prefill": prefill,
                    "windows": windows,
                }
            )
            rates = " ".join(f"{row['operations_per_second']:.3g}" for row in prefill)
            print(
                f"{isa:7} {name:11} decode {decode['decode_bytes_per_second']:.3g} B/s,"
                f" {decode['decode_fraction_of_memory_read']:.2f} of a memory read"
                f"  prefill at {PREFILL_STARTS}: {rates} op/s",
                flush=True,
            )
            for row in windows:
                print(
                    f"{isa:7} {name:11} window of {shape.window} at {row['start']}: decode"
                    f" {row['decode_seconds']:.3g} s ({row['decode_seconds_without_window']:.3g} s"
                    f" without), prefill {row['prefill_seconds']:.3g} s",
                    flush=True,
                )
    found = {
        "num_threads": 1,
        "prefill_tokens": PREFILL_TOKENS,
        "results": results,
    }
    write_result(arguments.out, SCHEMA, found, indent=2)


if __name__ == "__main__":
    main()
