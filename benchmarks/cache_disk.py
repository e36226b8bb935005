"""Measure what saving cache blocks to disk costs a stage, and how fast a long prompt is restored.

    python benchmarks/cache_disk.py [--tokens 30000] [--threads 2] [--folder DIRECTORY] > JSON

One stage of the whole 1B shape in Q8_0, with random weights:

- decode steps that save four blocks each, in turns with steps that save none;
- all blocks of a prompt, saved as fast as the disk takes them;
- the folder opened again, as after a restart, and the blocks put back eight at a time: from the
  page cache, and from the disk after the kernel was told to forget the files;
- beside them, a chunk of 512 tokens computed at the beginning of a context, which is where a token
  takes the least time: the prompt would take at least as many such chunks.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from circumstances import circumstances
from command_line import documented_parser

from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.block_store import BlockStore
from potluck.engines.native.engine import NativeEngine
from potluck.engines.native.pool import make_pool
from potluck.engines.profiling.rate_program import load_random
from potluck.models.layers import plain_config
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.scheduling.frame_limits import MAX_MOVED_BLOCKS
from potluck.types.program import Shard
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    HashedBlock,
    SequenceId,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo

_CHUNK_TOKENS = 512
_DECODE_POSITION = 1000
_ROUNDS = 20
_SAVED_PER_STEP = 4

_CONFIG = plain_config(
    family="llama",
    num_layers=16,
    hidden_size=2048,
    intermediate_size=8192,
    num_heads=32,
    num_kv_heads=8,
    head_dim=64,
    vocab_size=128_256,
    max_context_tokens=131_072,
    norm_epsilon=1e-5,
    theta=500_000.0,
    tied_head=True,
)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = documented_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    document: dict[str, object] = {**circumstances(), "num_tokens": arguments.tokens}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        engine = _engine(arguments.tokens, arguments.threads)
        blocks = _blocks(arguments.tokens)
        document["block_bytes"] = engine.block_format.num_bytes
        document["chunk_of_512_seconds"] = statistics.median(
            _seconds(lambda: _step(engine, _CHUNK_TOKENS, 0)) for _ in range(3)
        )
        keeper = _keeper(engine, Path(folder))
        document |= _decoding(engine, keeper, blocks)
        document |= _saving(keeper, blocks)
        keeper.close()
        for name, is_forgotten in (("from_page_cache", False), ("from_disk", True)):
            if is_forgotten:
                _forget(Path(folder))
            document[name] = _restoring(engine, Path(folder), blocks)
        engine.close()
    print(json.dumps(document, indent=1))


def _engine(num_tokens: int, num_threads: int | None) -> NativeEngine:
    context = num_tokens + _CHUNK_TOKENS
    program = build_program(
        _CONFIG,
        Shard.whole(_CONFIG.num_layers),
        context_tokens=context,
        ropes=rope_tables(_CONFIG, context),
    )
    engine = NativeEngine(
        program,
        num_blocks=context // KV_BLOCK_TOKENS + 1,
        max_step_tokens=_CHUNK_TOKENS,
        pool=make_pool(num_threads),
    )
    for weight in program.weights:
        is_vector = len(weight.shape) == 1
        fmt = TensorFormat.F32 if is_vector else TensorFormat.Q8_0
        load_random(engine.sink(), TensorInfo(name=weight.name, shape=weight.shape, format=fmt))
    return engine


def _keeper(engine: NativeEngine, folder: Path) -> BlockKeeper:
    store = BlockStore(
        folder, "stage", block_bytes=engine.block_format.num_bytes, limit_bytes=2**50
    )
    return BlockKeeper(engine, store)


def _blocks(num_tokens: int) -> list[HashedBlock]:
    def name(index: int) -> bytes:
        return index.to_bytes(32, "little")

    return [
        HashedBlock(block=index, hash=name(index + 1), parent=name(index))
        for index in range(num_tokens // KV_BLOCK_TOKENS)
    ]


def _step(engine: NativeEngine, num_tokens: int, start: int) -> None:
    end = start + num_tokens
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(7,) * num_tokens,
        start_position=start,
        block_table=tuple(range(-(-end // KV_BLOCK_TOKENS))),
        sample=True,
    )
    engine.logits(Step(step_id=StepId(0), slices=(part,)), None)


def _decoding(
    engine: NativeEngine, keeper: BlockKeeper, blocks: list[HashedBlock]
) -> dict[str, object]:
    """Time decoding steps with and without a save before each, alternating; return the medians."""
    plain, saving = [], []
    for turn in range(_ROUNDS + 1):
        plain.append(_seconds(lambda: _step(engine, 1, _DECODE_POSITION)))
        some = blocks[turn * _SAVED_PER_STEP : (turn + 1) * _SAVED_PER_STEP]

        def save_and_step(some: list[HashedBlock] = some) -> None:
            keeper.save(some)
            _step(engine, 1, _DECODE_POSITION)

        saving.append(_seconds(save_and_step))
    before, after = statistics.median(plain[1:]), statistics.median(saving[1:])
    return {
        "decode_seconds": before,
        "decode_and_save_4_seconds": after,
        "decode_ratio": after / before,
    }


def _saving(keeper: BlockKeeper, blocks: list[HashedBlock]) -> dict[str, object]:
    """Save all blocks, one chunk's at a time, pausing while the queue is full."""
    started = time.perf_counter()
    copying = 0.0
    at_once = _CHUNK_TOKENS // KV_BLOCK_TOKENS
    for start in range(0, len(blocks), at_once):
        for each in blocks[start : start + at_once]:
            while keeper.num_queued >= keeper.most_queued:
                time.sleep(0.001)
            copying += _seconds(lambda each=each: keeper.save((each,)))  # type: ignore[misc]
    while keeper.num_queued:
        time.sleep(0.001)
    seconds = time.perf_counter() - started
    return {"save_seconds": seconds, "save_copying_seconds": copying}


def _restoring(engine: NativeEngine, folder: Path, blocks: list[HashedBlock]) -> dict[str, object]:
    started = time.perf_counter()
    keeper = _keeper(engine, folder)
    opening = time.perf_counter() - started
    steps = []
    for start in range(0, len(blocks), MAX_MOVED_BLOCKS):
        some = blocks[start : start + MAX_MOVED_BLOCKS]
        at = time.perf_counter()
        if keeper.restore(some) != len(some):
            raise SystemExit("a block is missing")
        steps.append(time.perf_counter() - at)
    keeper.close()
    return {
        "open_seconds": opening,
        "restore_seconds": sum(steps),
        "step_seconds": {"median": statistics.median(steps), "most": max(steps)},
    }


def _forget(folder: Path) -> None:
    """Have the kernel drop the files from the page cache."""
    for path in folder.rglob("*.block"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
