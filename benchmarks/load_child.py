"""One load in a process of its own, for ``load.py``, which starts it and watches its memory.

    python benchmarks/load_child.py LOADER PATH [QUANTIZATION]

Prints a line when everything is imported and planned, and waits for one; loads; prints a line of
JSON with the seconds, and waits for another with all it loaded still in memory. It imports nothing
of the other loaders, so that one may run in another environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 5 * 2**20

Loaded = Callable[[], object]
"""Loads the model, and returns objects that must be kept alive."""


def potluck(path: Path, quantization: str) -> Loaded:
    """Return a function that loads the whole model into the native engine, on all cores."""
    from potluck.catalog import describe_model, open_weights, read_profile
    from potluck.engines.backends import native_unit
    from potluck.engines.loading import plan_stage
    from potluck.engines.loading.load import load_stage
    from potluck.engines.native.pool import make_pool
    from potluck.host.cores import default_num_threads
    from potluck.types.choices import Quantization
    from potluck.types.program import Shard
    from potluck.types.stage import StageSize

    description = describe_model(str(path if path.suffix == ".gguf" else path.parent))
    size = StageSize(
        context_tokens=256,
        num_blocks=16,
        max_step_tokens=16,
        num_threads=default_num_threads(),
        quantization=Quantization(quantization),
    )
    shard = Shard.whole(description.config.num_layers)
    plan = plan_stage(read_profile(description), shard, size)
    tensors = open_weights(description, [shard])
    pool = make_pool(size.num_threads)
    return lambda: load_stage(description, tensors, plan, unit=native_unit(), pool=pool)


def keep(path: Path) -> Loaded:
    """Return a function that reads the file into fresh memory, which no load can do without."""
    import mmap

    def load() -> mmap.mmap:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            memory = mmap.mmap(-1, size)
            memory.madvise(mmap.MADV_HUGEPAGE)
            done = 0
            with memoryview(memory) as view:
                while count := file.readinto(view[done : done + _BLOCK_BYTES]):
                    os.posix_fadvise(file.fileno(), done, count, os.POSIX_FADV_DONTNEED)
                    done += count
        return memory

    return load


def safetensors_numpy(path: Path) -> Loaded:
    """Return a function that loads all arrays as they are stored."""
    from safetensors.numpy import load_file

    return lambda: load_file(path)


def transformers(path: Path) -> Loaded:
    """Return a function that loads the model in the format of the file."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return lambda: AutoModelForCausalLM.from_pretrained(path.parent, dtype="auto")


def tinygrad(path: Path) -> Loaded:
    """Return a function that fills an empty tensor of every name on the CPU, using ``clang``."""
    os.environ["DEV"] = "CPU"
    from tinygrad import Tensor
    from tinygrad.nn.state import load_state_dict, safe_load

    class Module:
        tensors: dict[str, Any]

    def load() -> Module:
        stored = safe_load(path)
        module = Module()
        module.tensors = {
            name: Tensor.empty(*each.shape, dtype=each.dtype) for name, each in stored.items()
        }
        named = {f"tensors.{name}": each for name, each in stored.items()}
        load_state_dict(module, named, verbose=False)
        return module

    return load


LOADERS: dict[str, Callable[..., Loaded]] = {
    "potluck": potluck,
    "keep": keep,
    "safetensors_numpy": safetensors_numpy,
    "transformers": transformers,
    "tinygrad": tinygrad,
}


def main() -> None:
    """See the module."""
    loader, path, *rest = sys.argv[1:]
    load = LOADERS[loader](Path(path), *rest)
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, started = time.process_time(), time.perf_counter()
    kept = load()
    seconds = time.perf_counter() - started
    document = {"seconds": seconds, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(document), flush=True)
    sys.stdin.readline()
    del kept


if __name__ == "__main__":
    main()
