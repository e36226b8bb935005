"""What real workers take for their steps, from their compute threads to what the node answers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.hosted_stages import (
    CONTEXT_TOKENS,
    DEPLOYMENT,
    NODE,
    NUM_LAYERS,
    Node,
    Pipeline,
    epoch,
    node,
    stage_specs,
)

from potluck.catalog import describe_model
from potluck.cluster.agent.node_calls import NodeCalls
from potluck.cluster.network.membership import MethodTable
from potluck.cluster.wire.calls import AskSpeeds, StageScope, decode, encode
from potluck.cluster.wire.worker_messages import Stats
from potluck.models.shape import model_shape
from potluck.scheduling.step_times import LEAST_SAMPLES
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.node import CPU_UNIT
from potluck.types.speed import LinkSpeed, NodeSpeeds, StepTime
from potluck.types.step import SamplingParams, SequenceOpening

SERVED_SECONDS = 1.2
"""At a sample in 50 ms some twenty of decodes, and some of prompts."""

SCOPE = StageScope(deployment=DEPLOYMENT, epoch=epoch(1))
SHAPE = model_shape(describe_model("demo").config, "bf16", Arithmetic.EXACT)
LINK = LinkSpeed(
    node_id=NODE, latency_seconds=1e-4, bytes_per_second=1e9, num_samples=3, age_seconds=1.0
)


def serve(pipeline: Pipeline) -> None:
    """Prompts of 64 tokens and their continuations, for a while."""
    deadline = time.monotonic() + SERVED_SECONDS
    opening = SequenceOpening(
        sequence_id=0,  # type: ignore[arg-type]
        sampling=SamplingParams(temperature=0.0),
        prompt_tokens=tuple(range(64)),
    )
    opened: tuple[SequenceOpening, ...] = (opening,)
    while time.monotonic() < deadline:
        pipeline.send(pipeline.step(range(64), 0, opened=opened))
        pipeline.sampled()
        opened = ()
        for position in range(64, CONTEXT_TOKENS - 8):
            pipeline.send(pipeline.step((1,), position))
            pipeline.sampled()
    for _ in range(2 * LEAST_SAMPLES):  # each long enough after the last sample to be one
        time.sleep(0.06)
        pipeline.send(pipeline.step(range(64), 0))
        pipeline.sampled()


async def settled(*, within_seconds: float) -> tuple[LinkSpeed, ...]:
    return (LINK,)


async def query_speeds(ours: Node, shape: str = SHAPE, *, may_wait: bool = True) -> NodeSpeeds:
    """What the node answers to ``node.speeds``."""
    methods = MethodTable()
    unused = cast(Any, SimpleNamespace())
    membership = cast(Any, SimpleNamespace(node_id=NODE))
    coordination = cast(Any, SimpleNamespace(paths_in_use=list))

    async def settled() -> tuple[LinkSpeed, ...]:
        return (LINK,)

    links = SimpleNamespace(settled=settled, speeds=lambda: (LINK,), unreachable=tuple)
    calls = NodeCalls(
        membership,
        unused,
        unused,
        unused,
        ours.host,
        coordination,
        unused,
        ours.speeds,
        cast(Any, links),
        unused,
        memory_limit_bytes=None,
    )
    calls.register(methods)
    handler = await methods.find("node.speeds")
    async for answer in handler(
        NODE, encode(AskSpeeds(model_shapes=(shape, "unknown"), may_wait=may_wait))
    ):
        return decode(answer, NodeSpeeds)
    raise AssertionError("there is one answer")


async def measured_while_serving(ours: Node) -> tuple[NodeSpeeds, Stats]:
    """Serve with two stages; return what the node answers then, and the last stage's statistics."""
    with await ours.serve(stage_specs([4], SCOPE.epoch)) as pipeline:
        await asyncio.to_thread(serve, pipeline)
        speeds = await query_speeds(ours)
        return speeds, (await ours.host.hosted.stats(SCOPE)).stages[1]


def of_stage(speeds: NodeSpeeds, *, has_head: bool, num_tokens: int) -> StepTime:
    (found,) = [
        each
        for each in speeds.step_times[SHAPE][CPU_UNIT]
        if each.has_head == has_head and (each.num_tokens > 1) == (num_tokens > 1)
    ]
    return found


def test_step_times_flow_from_workers_to_whoever_plans_and_outlive_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), node(tmp_path) as ours:
            speeds, last_stats = await measured_while_serving(ours)
            assert speeds.node_id == NODE
            assert speeds.links == (LINK,)
            first = of_stage(speeds, has_head=False, num_tokens=1)
            last = of_stage(speeds, has_head=True, num_tokens=1)
            assert (first.num_layers, first.has_embedding) == (4, True)
            assert (last.num_layers, last.has_embedding) == (NUM_LAYERS - 4, False)
            for each in (first, last):
                assert each.num_sequences == each.num_tokens == 1
                assert 64 < each.context_tokens <= CONTEXT_TOKENS
                assert each.num_samples >= 8
                assert each.age_seconds < 60
            prompt = of_stage(speeds, has_head=True, num_tokens=64)
            assert (prompt.num_sequences, prompt.num_tokens, prompt.context_tokens) == (1, 64, 64)
            assert 0 < last.seconds < last_stats.compute_seconds
            assert 0 < prompt.seconds < last_stats.compute_seconds
            assert (await query_speeds(ours, "another")).step_times == {}
            await ours.host.stop(SCOPE)
            assert not ours.workers
            assert {each.has_head for each in ours.speeds.of(SHAPE)[CPU_UNIT]} == {False, True}
            ours.speeds.close()
        async with asyncio.timeout(120), node(tmp_path) as ours:
            again = await query_speeds(ours)
            assert of_stage(again, has_head=True, num_tokens=1).seconds == last.seconds

    asyncio.run(run())


@pytest.mark.timing
def test_step_times_are_those_of_the_steps(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), node(tmp_path) as ours:
            speeds, last_stats = await measured_while_serving(ours)
            last = of_stage(speeds, has_head=True, num_tokens=1)
            prompt = of_stage(speeds, has_head=True, num_tokens=64)
            # Most of its steps were decodes.
            mean = last_stats.compute_seconds / last_stats.num_steps
            assert 0.3 * mean < last.seconds < 3 * mean
            assert prompt.seconds > last.seconds

    asyncio.run(run())


def test_what_was_measured_last_is_asked_for_before_a_worker_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), node(tmp_path) as ours:
            with await ours.serve(stage_specs([], epoch(1))) as pipeline:
                await asyncio.to_thread(serve, pipeline)
            assert ours.speeds.of(SHAPE) == {}
            await ours.host.stop(StageScope(deployment=DEPLOYMENT, epoch=epoch(1)))
            (decode,) = [each for each in ours.speeds.of(SHAPE)[CPU_UNIT] if each.num_tokens == 1]
            assert (decode.has_embedding, decode.has_head) == (True, True)

    asyncio.run(run())


def test_stages_of_one_model_have_one_shape_those_without_layers_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), node(tmp_path) as ours:
            specs = [
                msgspec.structs.replace(spec, quantization=Quantization.Q4_K)
                for spec in stage_specs([0, 1, NUM_LAYERS], epoch(1))
            ]
            shards = [spec.shard for spec in specs]
            assert [each.start_layer == each.end_layer for each in shards] == [1, 0, 0, 1]
            loaded = await asyncio.gather(*map(ours.start, specs))
            assert {each.model_shape for each in loaded} == {
                model_shape(describe_model("demo").config, "q4_k", Arithmetic.EXACT)
            }

    asyncio.run(run())


def test_a_worker_that_is_stuck_keeps_nobody_waiting_who_may_not_wait(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), node(tmp_path) as ours:
            with await ours.serve(stage_specs([4], epoch(1))) as pipeline:
                await asyncio.to_thread(serve, pipeline)
                await ours.host.hosted.collect()
                (stuck, *_) = ours.workers
                os.kill(stuck.pid, signal.SIGSTOP)
                try:
                    async with asyncio.timeout(4):
                        speeds = await query_speeds(ours, may_wait=False)
                finally:
                    os.kill(stuck.pid, signal.SIGCONT)
                assert speeds.step_times[SHAPE][CPU_UNIT]
                assert speeds.links == (LINK,)

    asyncio.run(run())
