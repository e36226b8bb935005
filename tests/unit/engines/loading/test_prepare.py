"""The one way from shards to loaded stages, on the demo model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potluck.catalog import describe_model, read_profile
from potluck.engines.backends import native_unit, open_engine
from potluck.engines.loading import PackedCache, Room, combined, plan_stage
from potluck.engines.loading.prepare import (
    LoadPlan,
    PreparedStages,
    count_stages,
    plan_stages,
    prepare_stages,
)
from potluck.errors import EngineError, InsufficientMemoryError
from potluck.local.loading import split_evenly
from potluck.types.engine import EngineCost, LoadableEngine
from potluck.types.memory import MemoryLimit
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize

DEMO = describe_model("demo")
PROFILE = read_profile(DEMO)
SHARDS = split_evenly(DEMO.config.num_layers, 2)
SIZE = StageSize(context_tokens=64, num_blocks=4, max_step_tokens=8, num_threads=1)
MAPPED = StageSize(
    context_tokens=64, num_blocks=4, max_step_tokens=8, num_threads=1, is_mapped=True
)
UNIT = native_unit()


def room_of(num_bytes: int) -> Room:
    return Room(host=MemoryLimit(bytes=num_bytes, reason="a test"))


LARGE = room_of(2**40)


class Engines:
    """Makes engines, of which the one with this index fails; notes which are closed."""

    def __init__(self, failing: int | None = None) -> None:
        self.num_made = 0
        self.closed: list[int] = []
        self._failing = failing

    def __call__(self, *arguments: Any, **options: Any) -> LoadableEngine:
        index = self.num_made
        self.num_made += 1
        engine = open_engine(*arguments, **options)
        close = engine.close

        def closed() -> None:
            self.closed.append(index)
            close()

        def fail() -> None:
            raise EngineError("it does not warm up")

        vars(engine)["close"] = closed
        if index == self._failing:
            vars(engine)["warm_up"] = fail
        return engine


def prepared(
    plan: LoadPlan,
    *,
    room: Callable[[], Room] = lambda: LARGE,
    cache: Path | None = None,
    **options: Any,
) -> PreparedStages:
    return prepare_stages(DEMO, plan, room=room, cache=PackedCache(cache), **options)


def test_stages_of_one_process_share_its_memory() -> None:
    plan = count_stages(PROFILE, SHARDS, SIZE, UNIT)
    each = [plan_stage(PROFILE, shard, SIZE) for shard in SHARDS]
    assert plan.stages == tuple(each)
    assert plan.shards == tuple(SHARDS)
    assert plan.memory == combined([stage.memory for stage in each])
    needed = plan.memory.host_bytes
    assert plan_stages(PROFILE, SHARDS, SIZE, UNIT, room_of(needed)) == plan
    with pytest.raises(InsufficientMemoryError) as caught:
        plan_stages(PROFILE, SHARDS, SIZE, UNIT, room_of(needed - 1), because="for a reason: ")
    assert caught.value.needed_bytes == needed
    assert caught.value.message.startswith("for a reason: ")
    assert "--quant q8_0 or --mmap would fit" in caught.value.hint


def test_progress_is_that_of_all_stages() -> None:
    progress: list[tuple[int, int]] = []
    warmed: list[tuple[int, int]] = []
    plan = plan_stages(PROFILE, SHARDS, SIZE, UNIT, LARGE)
    result = prepared(
        plan,
        on_progress=lambda done, total: progress.append((done, total)),
        on_warm_up=lambda done, total: warmed.append((done, total)),
    )
    first, second = result.stages
    for stage in result.stages:
        stage.engine.close()
    total = sum(stage.read_bytes for stage in plan.stages)
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == ((0, total), (total, total))
    assert warmed == [(plan.stages[0].read_bytes, total), (total, total)]
    assert first.report.read_bytes + second.report.read_bytes == total
    assert total < result.read_bytes < total + 2**20  # the header


def test_an_error_of_one_stage_closes_those_before_it() -> None:
    engines = Engines(failing=1)
    plan = plan_stages(PROFILE, SHARDS, SIZE, UNIT, LARGE)
    with pytest.raises(EngineError, match="it does not warm up"):
        prepared(plan, make_engine=engines)
    assert (engines.num_made, sorted(engines.closed)) == (2, [0, 1])


def test_weights_are_mapped_where_they_can_be_kept(tmp_path: Path) -> None:
    plan = plan_stages(PROFILE, SHARDS, MAPPED, UNIT, LARGE)
    for _ in range(2):  # made, and then found
        result = prepared(plan, cache=tmp_path / "packed")
        for stage in result.stages:
            stage.engine.close()
        assert result.plan == plan
        assert all(stage.packed is not None for stage in result.stages)
    assert len(list((tmp_path / "packed").glob("*"))) == len(SHARDS)


def larger(
    profile: ModelProfile, shard: Shard, size: StageSize, *, cost: EngineCost | None = None
) -> StagePlan:
    """As a worker counts, whose own process takes memory too."""
    return plan_stage(profile, shard, size, process_bytes=10**6, cost=cost)


def test_weights_that_cannot_be_mapped_are_loaded_if_they_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = count_stages(PROFILE, SHARDS, SIZE, UNIT, plan_one=larger)
    mapped = plan_stages(PROFILE, SHARDS, MAPPED, UNIT, LARGE, plan_one=larger)
    assert mapped.memory.weights_bytes == 0
    needed = loaded.memory.host_bytes
    with caplog.at_level(logging.WARNING, "potluck"):
        result = prepared(mapped, room=lambda: room_of(needed), plan_one=larger)
    for stage in result.stages:
        stage.engine.close()
    assert result.plan == loaded
    assert [stage.packed for stage in result.stages] == [None, None]
    assert "weights are loaded instead of memory-mapped: neither HOME" in caplog.text
    engines = Engines()
    with pytest.raises(InsufficientMemoryError) as caught:
        prepared(mapped, room=lambda: room_of(needed - 1), plan_one=larger, make_engine=engines)
    assert caught.value.needed_bytes == needed
    assert caught.value.message.startswith("weights cannot be memory-mapped (neither HOME")
    assert engines.num_made == 0
