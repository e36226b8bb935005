"""Blocks of a real engine, kept on disk by one stage and put back by the next."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.engines.native_pipeline import Part, Pipeline, small_config
from support.processes.waiting import done_within, eventually

from potluck.cluster.worker import block_keeper as module
from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.block_store import BlockStore
from potluck.engines.native.engine import NativeEngine
from potluck.types.step import HashedBlock
from potluck.types.tensor import TensorFormat

TOKENS = list(range(70))


def pipeline(block_seed: int = 0) -> Pipeline:
    return Pipeline.make(small_config(2), TensorFormat.Q8_0, block_seed=block_seed)


def keeper_of(engine: NativeEngine, folder: Path) -> BlockKeeper:
    block_bytes = engine.block_format.num_bytes
    return BlockKeeper(
        engine, BlockStore(folder, "stage", block_bytes=block_bytes, limit_bytes=10**9)
    )


def hashed(blocks: list[int]) -> list[HashedBlock]:
    return [
        HashedBlock(block=block, hash=bytes([i + 1]) * 32, parent=bytes([i]) * 32)
        for i, block in enumerate(blocks)
    ]


def test_another_process_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    first = pipeline(1)
    first.logits([Part(sequence=0, tokens=TOKENS[:64], start=0)])
    expected = first.logits([Part(sequence=0, tokens=TOKENS[64:], start=64)])
    with closing(keeper_of(first.engines[0], tmp_path)) as keeper:
        keeper.save(hashed(first.tables[0][:4]))
    after = pipeline(2)
    after.tables[0] = [after.free_blocks.pop() for _ in range(4)]
    spare = after.free_blocks.pop()
    with closing(keeper_of(after.engines[0], tmp_path)) as keeper:
        assert keeper.restore(hashed([*after.tables[0], spare])) == 4
    np.testing.assert_array_equal(
        after.logits([Part(sequence=0, tokens=TOKENS[64:], start=64)]), expected
    )


def test_what_follows_a_missing_block_is_not_restored(tmp_path: Path) -> None:
    one = pipeline()
    one.logits([Part(sequence=0, tokens=TOKENS[:64], start=0)])
    blocks = hashed(one.tables[0])
    engine = one.engines[0]
    with closing(keeper_of(engine, tmp_path)) as keeper:
        keeper.save([blocks[0], *blocks[2:]])
    others = hashed([one.free_blocks.pop() for _ in range(4)])
    before = engine.read_blocks([each.block for each in others])
    with closing(keeper_of(engine, tmp_path)) as keeper:
        assert keeper.restore(others) == 1
        assert keeper.restore(others[1:]) == 0
    after = engine.read_blocks([each.block for each in others])
    np.testing.assert_array_equal(after[0], engine.read_blocks([blocks[0].block])[0])
    np.testing.assert_array_equal(after[1:], before[1:])


def test_a_slow_disk_delays_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks beyond the queue are dropped, and what was queued has the content of its time."""
    one = pipeline()
    one.logits([Part(sequence=0, tokens=TOKENS[:64], start=0)])
    engine = one.engines[0]
    may_write = threading.Event()
    write = BlockStore.write

    def slow(store: BlockStore, *block: bytes | memoryview) -> bool:
        assert may_write.wait(60)
        return write(store, *block)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockStore, "write", slow)
    monkeypatch.setattr(module, "MAX_QUEUED_BYTES", 3 * engine.block_format.num_bytes)
    blocks = hashed(one.tables[0])
    expected = engine.read_blocks(one.tables[0][:3])
    with closing(keeper_of(engine, tmp_path)) as keeper:
        with done_within(5):  # a write waits for 60 s
            keeper.save(blocks)
            keeper.save(blocks[:3])
        assert keeper.num_queued == len(blocks) - 1
        engine.write_blocks(one.tables[0][:3], np.zeros_like(expected))
        may_write.set()
        eventually(lambda: keeper.restore(blocks[:3]) == 3)
        np.testing.assert_array_equal(engine.read_blocks(one.tables[0][:3]), expected)
        keeper.save(blocks[3:])
        eventually(lambda: keeper.restore(blocks) == 4)


def test_an_unexpected_failure_of_a_write_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pipeline()
    one.logits([Part(sequence=0, tokens=TOKENS[:32], start=0)])
    blocks = hashed(one.tables[0])
    with closing(keeper_of(one.engines[0], tmp_path)) as keeper:
        with monkeypatch.context() as patched:
            failed = threading.Event()

            def fail(*_: object) -> bool:
                failed.set()
                raise ZeroDivisionError

            patched.setattr(BlockStore, "write", fail)
            keeper.save(blocks[:1])
            assert failed.wait(20)
        keeper.save(blocks[1:])
        eventually(lambda: keeper.restore(blocks[1:]) == 1)


def test_a_stage_without_caches_has_all_blocks() -> None:
    keeper = BlockKeeper(pipeline().engines[0], None)
    keeper.save(hashed([1, 2]))
    assert keeper.restore(hashed([1, 2, 3])) == 3
    assert "blocks" not in {each.name for each in threading.enumerate()}
    keeper.close()
