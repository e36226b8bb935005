"""Steps that restore cache blocks, and those that save some, as they pass a worker's stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from support.cluster.edges import edge

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind
from potluck.cluster.wire.steps import (
    RestoreRequest,
    RestoreResult,
    StepEncoder,
    decode_failure,
    decode_restore_request,
    decode_restore_result,
    encode_restore_request,
)
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.errors import EdgeClosedError, EngineError
from potluck.grammars.step_masks import StepMasks
from potluck.types.engine import StepResult
from potluck.types.program import Shard
from potluck.types.step import HashedBlock, HashedState, Step, StepId

BLOCKS = tuple(
    HashedBlock(block=7 - i, hash=bytes([i + 1]) * 32, parent=bytes([i]) * 32) for i in range(3)
)


class Engine:
    """Notes what is done to it, as ``PlayedKeeper`` does."""

    def __init__(self, done: list[object]) -> None:
        self._done = done

    def step(self, step: Step, hidden: object, masks: object) -> StepResult:
        self._done.append("step")
        return StepResult(hidden=None, sampled=())


class PlayedKeeper:
    """Has ``count`` blocks of any sequence; none of the others. States are after ``ends``."""

    def __init__(
        self,
        done: list[object],
        count: int,
        error: EngineError | None = None,
        ends: tuple[int, ...] = (),
    ) -> None:
        self._ends = ends
        self._done = done
        self._count = count
        self._error = error

    def save(self, blocks: Sequence[HashedBlock]) -> None:
        self._done.append(("save", tuple(blocks)))

    def restore(self, blocks: Sequence[HashedBlock]) -> int:
        if self._error is not None:
            raise self._error
        self._done.append(("restore", tuple(blocks)))
        return min(self._count, len(blocks))

    def save_states(self, states: Sequence[HashedState]) -> None:
        if states:
            self._done.append(("save states", tuple(states)))

    def restore_state(self, state: int, hashes: Mapping[int, bytes]) -> Sequence[int]:
        self._done.append(("restore state", state, dict(hashes)))
        return tuple(end for end in hashes if end in self._ends)


@contextmanager
def stage(
    keeper: PlayedKeeper | None, done: list[object], *, has_head: bool
) -> Iterator[tuple[OutgoingEdge, IncomingEdge]]:
    shard = Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=True, has_head=has_head)
    with edge() as (steps, incoming), edge() as (outgoing, results):
        served = Stage(
            cast(Any, Engine(done)),
            shard,
            8,
            incoming,
            outgoing,
            StageTotals(),
            StepMasks(None),
            cast(Any, keeper),
        )

        def run() -> None:
            try:
                served.run()
            except EdgeClosedError:
                return

        thread = threading.Thread(target=run)
        thread.start()
        yield steps, results
        incoming.close()
        thread.join(20)


@pytest.mark.parametrize("count", [0, 2, 3])
def test_what_a_stage_has_goes_on_to_the_next(count: int) -> None:
    done: list[object] = []
    with stage(PlayedKeeper(done, count), done, has_head=False) as (steps, results):
        steps.send(FrameKind.RESTORE, StepId(0), encode_restore_request(RestoreRequest(BLOCKS)))
        frame = results.receive(20)
        assert (frame.kind, frame.step_id) == (FrameKind.RESTORE, 0)
        assert decode_restore_request(frame.header) == RestoreRequest(BLOCKS[:count])
    assert done == [("restore", BLOCKS)]


@pytest.mark.parametrize("count", [0, 2, 3])
def test_the_last_stage_says_how_many_all_have(count: int) -> None:
    done: list[object] = []
    with stage(PlayedKeeper(done, count), done, has_head=True) as (steps, results):
        steps.send(FrameKind.RESTORE, StepId(0), encode_restore_request(RestoreRequest(BLOCKS)))
        frame = results.receive(20)
        assert frame.kind is FrameKind.RESULT
        assert decode_restore_result(frame.header) == RestoreResult(count)


@pytest.mark.parametrize(("ends", "is_last"), [((2,), False), ((1, 2), True), ((), True)])
def test_a_state_is_put_back_after_blocks_that_are(ends: tuple[int, ...], is_last: bool) -> None:
    done: list[object] = []
    keeper = PlayedKeeper(done, 2, ends=ends)
    with stage(keeper, done, has_head=is_last) as (steps, results):
        restores = RestoreRequest(BLOCKS, 5, (1, 2, 3))
        steps.send(FrameKind.RESTORE, StepId(0), encode_restore_request(restores))
        frame = results.receive(20)
        if is_last:
            assert decode_restore_result(frame.header) == RestoreResult(2, max(ends, default=0))
        else:
            assert decode_restore_request(frame.header) == RestoreRequest(BLOCKS[:2], 5, ends)
    hashes = {1: BLOCKS[0].hash, 2: BLOCKS[1].hash}
    assert done == [("restore", BLOCKS), ("restore state", 5, hashes)]


def test_a_stage_that_keeps_nothing_has_none() -> None:
    with stage(None, [], has_head=True) as (steps, results):
        steps.send(FrameKind.RESTORE, StepId(0), encode_restore_request(RestoreRequest(BLOCKS)))
        assert decode_restore_result(results.receive(20).header) == RestoreResult(0)
        steps.send(
            FrameKind.STEP,
            StepId(1),
            StepEncoder().encode(Step(step_id=StepId(1), slices=(), saves=BLOCKS)),
        )
        assert results.receive(20).step_id == 1


def test_blocks_are_saved_before_the_step_that_may_change_them() -> None:
    done: list[object] = []
    with stage(PlayedKeeper(done, 0), done, has_head=True) as (steps, results):
        step = Step(step_id=StepId(0), slices=(), saves=BLOCKS)
        steps.send(FrameKind.STEP, step.step_id, StepEncoder().encode(step))
        assert results.receive(20).kind is FrameKind.RESULT
    assert done == [("save", BLOCKS), "step"]


def test_states_are_saved_before_the_step_that_may_change_them() -> None:
    done: list[object] = []
    states = (HashedState(state=2, hash=bytes(32)),)
    with stage(PlayedKeeper(done, 0), done, has_head=True) as (steps, results):
        step = Step(step_id=StepId(0), slices=(), state_saves=states)
        steps.send(FrameKind.STEP, step.step_id, StepEncoder().encode(step))
        assert results.receive(20).kind is FrameKind.RESULT
    assert done == [("save", ()), ("save states", states), "step"]


def test_an_engine_that_cannot_take_blocks_fails_the_step() -> None:
    keeper = PlayedKeeper([], 0, EngineError("no cache block 9"))
    with stage(keeper, [], has_head=False) as (steps, results):
        steps.send(FrameKind.RESTORE, StepId(0), encode_restore_request(RestoreRequest(BLOCKS)))
        frame = results.receive(20)
        assert frame.kind is FrameKind.FAILURE
        assert decode_failure(frame.header).message == "no cache block 9"
