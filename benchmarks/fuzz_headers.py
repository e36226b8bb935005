"""Hostile headers of model files, and what honest and costly ones take.

    PYTHONPATH=src:tests python benchmarks/fuzz_headers.py OUT.json [--cases 100000] [--seed 0]

- *Fuzz*: so many mutated safetensors headers, indexes and GGUF headers
  (``support.formats.header_mutations``; a case is the same for the same kind and seed), each read
  from memory as it is when a model is opened, then all its tensors and values. A case fails that
  raises anything but a refusal, takes a second of CPU time, holds more than 2 MiB beyond the
  file's own size at any moment (``tracemalloc``), or whose message is not one short line. The
  command then exits with 1, and the failures are in the document.
- *Parsing*: CPU seconds of opening and, in a pass of its own, the peak and what stays held: an
  index and 20 files with 1,000 tensors and a GGUF file with a vocabulary of 151,936 tokens and
  151,387 merges, both on disk, and from memory the costliest headers that are read or refused
  (``support.formats.large_headers``).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import statistics
import struct
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from circumstances import circumstances
from command_line import documented_parser
from support.formats import gguf_bytes as gb
from support.formats.header_cases import (
    ALLOWED_BYTES,
    HEADER_READERS,
    MOST_SECONDS,
    MemoryFile,
    run_case,
)
from support.formats.header_mutations import Kind, mutated
from support.formats.large_headers import LARGE_HEADERS
from support.formats.safetensors_bytes import safetensors_bytes, tensor_entry

from potluck.errors import ModelFileError
from potluck.formats.gguf import open_gguf
from potluck.formats.safetensors import open_safetensors

SCHEMA = "potluck.benchmark.fuzz_headers/1"
STUCK_SECONDS = 60
"""The wall-clock time after which the script prints its stack and exits."""

MOST_FAILURES = 20
"""The number of failures of each kind in the document."""


def fuzz(kind: Kind, num_cases: int, first_seed: int) -> dict[str, object]:
    """Run all cases of one kind."""
    refusals: Counter[str] = Counter()
    failures: list[dict[str, object]] = []
    num_read = num_failed = 0
    extra_bytes, seconds = [0, first_seed], [0.0, first_seed]
    start = time.perf_counter()
    with traced():
        for seed in range(first_seed, first_seed + num_cases):
            content = mutated(kind, seed)
            faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
            try:
                outcome = run_case(kind, content)
                problem = outcome.problem
            except Exception as error:  # noqa: BLE001 — whatever it is, it is the finding
                problem = f"{type(error).__name__}: {str(error)[:200]}"
            else:
                extra_bytes = max(extra_bytes, [outcome.extra_bytes, seed])
                seconds = max(seconds, [outcome.seconds, seed])
                if outcome.refusal is None:
                    num_read += 1
                else:
                    refusals[outcome.refusal] += 1
            if problem:
                num_failed += 1
                failures.append({"seed": seed, "problem": problem})
    faulthandler.cancel_dump_traceback_later()
    print(
        f"{kind.value:12}{num_cases:8} cases {num_failed:4} failed {num_read:7} read "
        f"{len(refusals):4} kinds of refusal; at most {extra_bytes[0] / 1024:.0f} KiB beyond "
        f"the file, {seconds[0]:.3f} s"
    )
    return {
        "num_cases": num_cases,
        "first_seed": first_seed,
        "num_failed": num_failed,
        "failures": failures[:MOST_FAILURES],
        "num_read": num_read,
        "refusals": dict(refusals.most_common(60)),
        "num_kinds_of_refusals": len(refusals),
        "most_extra_bytes": {"bytes": extra_bytes[0], "seed": extra_bytes[1]},
        "most_cpu_seconds": {"seconds": seconds[0], "seed": seconds[1]},
        "wall_seconds": time.perf_counter() - start,
    }


@contextmanager
def traced() -> Iterator[None]:
    """Trace memory within the block."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def measure(
    name: str, num_bytes: int, read: Callable[[], object], repeats: int
) -> dict[str, object]:
    """Measure the time, the peak memory and the remaining memory of a reading or its refusal."""

    def attempt() -> tuple[object, str]:
        try:
            return read(), ""
        except ModelFileError as error:
            return None, error.problem

    seconds = []
    refusal = ""
    for _ in range(repeats):
        start = time.thread_time()
        _, refusal = attempt()
        seconds.append(time.thread_time() - start)
    gc.collect()
    with traced():
        result, _ = attempt()
        held, peak = tracemalloc.get_traced_memory()
    del result
    print(
        f"{name:42}{num_bytes / 1e6:8.1f} MB {min(seconds):7.3f} s; peak {peak / 1e6:6.2f} MB, "
        f"held {held / 1e6:6.2f} MB {refusal and f'({refusal[:60]})'}"
    )
    return {
        "name": name,
        "header_bytes": num_bytes,
        "cpu_seconds": seconds,
        "median_cpu_seconds": statistics.median(seconds),
        "peak_bytes": peak,
        "held_bytes": held,
        "refusal": refusal,
    }


def write_indexed_model(directory: Path) -> int:
    """Write an index and 20 files of 50 small tensors. Return the size of all headers in bytes."""
    weight_map = {}
    header_bytes = 0
    for number in range(20):
        file_name = f"model-{number + 1:05}-of-00020.safetensors"
        header = {}
        for tensor in range(50):
            layer, part = divmod(50 * number + tensor, 10)
            name = f"model.layers.{layer}.self_attn.part_{part}.weight"
            header[name] = tensor_entry("BF16", [8, 8], 128 * tensor, 128 * (tensor + 1))
            weight_map[name] = file_name
        content = safetensors_bytes(header, bytes(50 * 128))
        (directory / file_name).write_bytes(content)
        header_bytes += 8 + struct.unpack("<Q", content[:8])[0]
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=2))
    return int(header_bytes) + index.stat().st_size


def write_vocabulary(path: Path) -> int:
    """Write vocabulary metadata of the size that Qwen's files have. Return its size in bytes."""
    tokens = [f"token-{number}" for number in range(151_936)]
    merges = [f"{tokens[number]} {tokens[-number]}" for number in range(151_387)]
    entries = [
        gb.entry(f"tokenizer.ggml.{key}", 9, gb.array(8, len(texts), b"".join(map(gb.text, texts))))
        for key, texts in (("tokens", tokens), ("merges", merges))
    ]
    entries.append(
        gb.entry("tokenizer.ggml.token_type", 9, gb.array(5, 151_936, bytes(4 * 151_936)))
    )
    return path.write_bytes(gb.Gguf(entries=entries).build())


def measure_all(repeats: int) -> list[dict[str, object]]:
    """Measure files on disk, then headers in memory."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        num_bytes = write_indexed_model(directory)
        vocabulary = directory / "vocabulary.gguf"

        def read_indexed() -> object:
            with open_safetensors(directory) as source:
                return source

        def read_vocabulary() -> object:
            with open_gguf(vocabulary) as source:
                return source

        rows.append(measure("index of 1,000 tensors in 20 files", num_bytes, read_indexed, repeats))
        num_bytes = write_vocabulary(vocabulary)
        rows.append(measure("GGUF vocabulary of 151,936", num_bytes, read_vocabulary, repeats))
    for name, (kind, make) in LARGE_HEADERS.items():
        file = MemoryFile(make(1))
        rows.append(measure(name, file.size, partial(HEADER_READERS[kind], file), repeats))
    return rows


def main() -> None:
    """Measure, fuzz, and write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    document: dict[str, object] = {
        "schema": SCHEMA,
        **circumstances(),
        "allowed_extra_bytes": ALLOWED_BYTES,
        "allowed_cpu_seconds": MOST_SECONDS,
        "parsing": measure_all(arguments.repeats),
    }
    results = {kind.value: fuzz(kind, arguments.cases, arguments.seed) for kind in Kind}
    document["fuzz"] = results
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if any(result["num_failed"] for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
