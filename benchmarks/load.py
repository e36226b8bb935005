"""Measure the speed and the memory of loading weights: ``METHODOLOGY.md``, "Load".

    python benchmarks/load.py OUT.json [--directory build/benchmarks] [--tinygrad PYTHON]

Makes the files that are missing (some 3.5 GB). The caches of the files are emptied through
``posix_fadvise``, which needs no privileges.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from circumstances import circumstances
from model_shapes import SHAPES
from processes import UNEVICTABLE, memory_bytes
from random_gguf import write_gguf
from random_hugging_face import write_hugging_face
from shapes import made

from potluck.types.quantities import format_bytes
from potluck.weights.load import BUFFER_BYTES

SCHEMA = "potluck.benchmark.load/1"
SHAPE = dataclasses.replace(SHAPES["1B"], num_layers=6)
QUANTIZATIONS = ("q8_0", "q6_k", "q4_k", "q4_0")
PEERS = ("safetensors_numpy", "transformers", "tinygrad")
_FLOATS = ("f32", "bf16", "f16")
_SAMPLE_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load in a child. Memory is RssAnon + RssShmem of the whole process."""

    seconds: float
    cpu_seconds: float
    before_bytes: int
    peak_bytes: int
    final_bytes: int


class ChildFailedError(Exception):
    """A loader cannot run here, or not with this file."""


def model_file(directory: Path, name: str) -> Path:
    """Return the path of the file of this name; create the file if it is missing."""
    if name in _FLOATS:
        folder = made(directory / name, lambda each: write_hugging_face(SHAPE, each, name.upper()))
        return folder / "model.safetensors"
    return made(directory / f"{name}.gguf", lambda each: write_gguf(SHAPE, each, name.upper()))


def prepare(path: Path, cache: str) -> None:
    """Empty or fill the page cache of a file."""
    with path.open("rb", buffering=0) as file:
        if cache == "warm":
            buffer = bytearray(BUFFER_BYTES)
            while file.readinto(buffer):
                pass
        else:
            os.fsync(file.fileno())  # dirty pages would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path: Path) -> dict[str, float]:
    """Read as ``dd`` does, into one buffer, and release pages as the loader does."""
    view = memoryview(bytearray(b"\1" * BUFFER_BYTES))  # its pages are there
    offset = 0
    cpu, started = _cpu_seconds(), time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := os.preadv(file.fileno(), [view], offset):
            os.posix_fadvise(file.fileno(), offset, count, os.POSIX_FADV_DONTNEED)
            offset += count
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": _cpu_seconds() - cpu,
    }


def load(loader: str, path: Path, cache: str, python: str, *arguments: str) -> Load:
    """Load in a child. Raises ``ChildFailedError`` with what it said last."""
    child = subprocess.Popen(
        [python, str(Path(__file__).with_name("load_child.py")), loader, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        if child.stdout.readline() != "ready\n":
            raise ChildFailedError(_last_line(child.stderr.read()))
        prepare(path, cache)
        before = memory_bytes(child.pid, *UNEVICTABLE)
        samples = [before]
        stop = threading.Event()

        def sample() -> None:
            while not stop.wait(_SAMPLE_SECONDS):
                samples.append(memory_bytes(child.pid, *UNEVICTABLE))

        sampler = threading.Thread(target=sample)
        sampler.start()
        child.stdin.write("\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        stop.set()
        sampler.join()
        if not answer:
            raise ChildFailedError(_last_line(child.stderr.read()))
        final = memory_bytes(child.pid, *UNEVICTABLE)
        child.stdin.write("\n")
        child.stdin.flush()
        return Load(
            **json.loads(answer),
            before_bytes=before,
            peak_bytes=max(*samples, final),
            final_bytes=final,
        )


def measure(
    loader: str, name: str, path: Path, cache: str, repeats: int, python: str, *arguments: str
) -> dict[str, object]:
    """Return a row: alternate a plain read, a read into memory that is kept, and the load."""
    row: dict[str, object] = {
        "loader": loader,
        "file": name,
        "file_bytes": path.stat().st_size,
        "quantization": arguments[0] if arguments else None,
        "cache": cache,
    }
    plain, kept, loads = [], [], []
    for _ in range(repeats):
        prepare(path, cache)
        plain.append(plain_read(path))
        try:
            kept.append(load("keep", path, cache, sys.executable))
            loads.append(load(loader, path, cache, python, *arguments))
        except ChildFailedError as error:
            return {**row, "failed": str(error)}
    rounds = list(zip(plain, kept, loads, strict=True))
    row |= {
        "ratio": statistics.median(each.seconds / read["seconds"] for read, _, each in rounds),
        "ratio_to_kept": statistics.median(each.seconds / k.seconds for _, k, each in rounds),
        "least_ratio": min(each.seconds for each in loads) / min(p["seconds"] for p in plain),
        "excess_bytes": max(each.peak_bytes - 1.03 * each.final_bytes for each in loads),
        "load_average": os.getloadavg()[0],
    }
    return {
        **row,
        "plain": plain,
        "kept": [asdict(each) for each in kept],
        "loads": [asdict(each) for each in loads],
    }


def line(row: dict[str, object]) -> str:
    """Return a row as a line of text."""
    what = f"{row['loader']:17} {row['file']:7} {row['quantization'] or '':5} {row['cache']:4}"
    if "failed" in row:
        return f"{what} failed: {row['failed']}"
    loads, plain, size = row["loads"], row["plain"], row["file_bytes"]
    assert isinstance(loads, list)
    assert isinstance(plain, list)
    assert isinstance(size, int)
    rate = size / statistics.median(each["seconds"] for each in loads) / 1e9
    plain_rate = size / statistics.median(each["seconds"] for each in plain) / 1e9
    cpu = statistics.median(each["cpu_seconds"] for each in loads) / size * 1e9
    peak = max(each["peak_bytes"] for each in loads)
    final = max(each["final_bytes"] for each in loads)
    return (
        f"{what} {rate:5.2f} GB/s, plain {plain_rate:5.2f}, ratio {row['ratio']:5.2f} "
        f"(of the fastest {row['least_ratio']:.2f}; to kept {row['ratio_to_kept']:.2f}), "
        f"cpu {cpu:.2f} s/GB, peak {format_bytes(peak)} of {format_bytes(final)}, "
        f"load {row['load_average']:.1f}"
    )


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no output"


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--directory", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tinygrad", help="a Python that has tinygrad and nothing of Potluck")
    return parser.parse_args()


def main() -> None:
    """Measure, print a line for each row, write the file."""
    arguments = parse_arguments()
    record = {"schema": SCHEMA, **circumstances()}
    # As given, they may name folders of this machine.
    record["command"] = ["python", "benchmarks/load.py", f"--repeats={arguments.repeats}"]
    cases = [(name, "none") for name in (*_FLOATS, "q8_0", "q4_k_m")]
    cases += [("bf16", quantization) for quantization in QUANTIZATIONS]
    rows: list[dict[str, object]] = []

    def add(row: dict[str, object]) -> None:
        rows.append(row)
        print(line(row), flush=True)
        document = {**record, "block_bytes": BUFFER_BYTES, "rows": rows}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")

    files = {name: model_file(arguments.directory, name) for name, _ in cases}
    for cache in ("cold", "warm"):
        for name, quantization in cases:
            path = files[name]
            add(
                measure(
                    "potluck", name, path, cache, arguments.repeats, sys.executable, quantization
                )
            )
    for name in _FLOATS:
        for peer in PEERS:
            python = arguments.tinygrad if peer == "tinygrad" else sys.executable
            if python:
                add(measure(peer, name, files[name], "cold", arguments.repeats, python))


if __name__ == "__main__":
    main()
