"""States of a real engine, kept on disk by one stage and put back by the next."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models.canonical_weights import load_canonical_weights
from support.models.recurrent_configs import RECURRENCES, hybrid_config
from support.processes.waiting import eventually
from support.reference.engine import ReferenceEngine

from potluck.cluster.worker.block_keeper import MAX_QUEUED_STATES, BlockKeeper, open_stores
from potluck.cluster.worker.block_store import BlockStore
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import BlockFormat
from potluck.types.program import Shard
from potluck.types.step import HashedBlock, HashedState, SequenceId, SequenceSlice, Step, StepId

CONTEXT = 64
TOKENS = tuple(range(40))
HASHES = [bytes([i]) * 32 for i in range(5)]


def engine_of() -> ReferenceEngine:
    config = hybrid_config(RECURRENCES["gated_delta"])
    program = build_program(
        config,
        Shard.whole(config.num_layers),
        context_tokens=CONTEXT,
        ropes=rope_tables(config, CONTEXT),
    )
    engine = ReferenceEngine(program, num_blocks=4, num_states=3)
    load_canonical_weights(engine, program)
    return engine


def logits(engine: ReferenceEngine, start: int, end: int, slot: int) -> NDArray[np.float32]:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=TOKENS[start:end],
        start_position=start,
        block_table=(0, 1, 2),
        sample=True,
        state=slot,
    )
    return engine.logits(Step(step_id=StepId(0), slices=(part,)), None)


def keeper_of(
    engine: ReferenceEngine,
    folder: Path,
    block_format: BlockFormat | None = None,
    limit_bytes: int = 10**8,
) -> BlockKeeper:
    block_format = block_format or engine.block_format
    return open_stores(cast(Any, engine), block_format, folder, "stage", limit_bytes)


def test_another_process_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    first = engine_of()
    logits(first, 0, 32, 0)
    blocks = [HashedBlock(block=i, hash=HASHES[i + 1], parent=HASHES[i]) for i in range(2)]
    with closing(keeper_of(first, tmp_path)) as keeper:
        keeper.save(blocks)
        keeper.save_states([HashedState(state=0, hash=HASHES[2])])
    expected = logits(first, 32, 40, 0)
    after = engine_of()
    with closing(keeper_of(after, tmp_path)) as keeper:
        assert keeper.restore(blocks) == 2
        assert keeper.restore_state(1, {1: HASHES[1], 2: HASHES[2], 3: HASHES[3]}) == (2,)
        assert keeper.restore_state(2, {1: HASHES[1]}) == ()
        # A block and a state of one hash are two things.
        assert keeper.restore([HashedBlock(block=3, hash=HASHES[4], parent=HASHES[3])]) == 0
    assert np.array_equal(logits(after, 32, 40, 1), expected)


def test_the_longest_that_can_be_read_is_taken(tmp_path: Path) -> None:
    engine = engine_of()
    with closing(keeper_of(engine, tmp_path)) as keeper:
        for end in (8, 16):
            logits(engine, 0, end, 0)
            keeper.save_states([HashedState(state=0, hash=HASHES[end // 8])])
            eventually(lambda: not keeper.num_queued)
        assert keeper.restore_state(1, {1: HASHES[1], 2: HASHES[2]}) == (2,)
        path = next((tmp_path / "stage-states").glob(f"{HASHES[2].hex()}-*"))
        path.write_bytes(bytes(path.stat().st_size))
        assert keeper.restore_state(1, {1: HASHES[1], 2: HASHES[2]}) == (1,)
        assert keeper.restore_state(1, {2: HASHES[2]}) == ()


def test_a_slow_disk_keeps_few_states_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of()
    with closing(keeper_of(engine, tmp_path)) as keeper:
        may_write = threading.Event()
        monkeypatch.setattr(BlockStore, "write", lambda *_: may_write.wait(60))
        keeper.save_states([HashedState(state=0, hash=each) for each in HASHES])
        assert keeper.num_queued <= MAX_QUEUED_STATES < len(HASHES)
        may_write.set()


@pytest.mark.parametrize(("num_bytes", "state_bytes"), [(64, 0), (0, 64)])
def test_a_stage_has_all_of_what_it_does_not_have(
    num_bytes: int, state_bytes: int, tmp_path: Path
) -> None:
    """One without caches has every block, and one without state every state."""
    block_format = BlockFormat(name="x", num_bytes=num_bytes, state_bytes=state_bytes)
    with closing(keeper_of(engine_of(), tmp_path, block_format)) as keeper:
        blocks = [HashedBlock(block=0, hash=HASHES[1], parent=HASHES[0])]
        assert keeper.restore(blocks) == (0 if num_bytes else 1)
        ends = keeper.restore_state(0, {1: HASHES[1], 2: HASHES[2]})
        assert tuple(ends) == (() if state_bytes else (1, 2))


def test_both_stay_within_the_limit_and_neither_is_what_another_stage_left(tmp_path: Path) -> None:
    block_format = BlockFormat(name="x", num_bytes=100, state_bytes=300)
    for _ in range(2):
        for name, size in (("stage", 100), ("stage-states", 300)):
            with closing(keeper_of(engine_of(), tmp_path, block_format, 4000)):
                pass
            beside = {"stage": "stage-states", "stage-states": "stage"}[name]
            store = BlockStore(tmp_path, name, block_bytes=size, limit_bytes=2000, beside=beside)
            with closing(store):
                for index in range(20):
                    assert store.write(bytes([index + 1]) * 32, bytes(32), memoryview(bytes(size)))
    sizes = {
        name: [each.stat().st_size for each in (tmp_path / name).glob("*.block")]
        for name in ("stage", "stage-states")
    }
    assert {name: len(each) for name, each in sizes.items()} == {"stage": 15, "stage-states": 6}
    assert sum(map(sum, sizes.values())) <= 4000
