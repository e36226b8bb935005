"""Worker processes that outlive their edges: what they keep, drop, refuse, and never leak."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from support.cluster.hosted_stages import (
    COORDINATOR,
    DEPLOYMENT,
    NODE,
    Node,
    Pipeline,
    epoch,
    node,
    stage_specs,
)
from support.process_facts import has_ended
from support.processes.waiting import until

from potluck.cluster.wire.calls import ConnectStage, ReleaseStages, StageScope
from potluck.cluster.wire.worker_messages import Connect, Peer, Stats
from potluck.errors import EdgeError, EngineError
from potluck.types.step import SamplingParams

PROMPT = tuple(range(100, 140))
SAMPLED = SamplingParams(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.4, seed=5)
NUM_NEW = 12

Test = Callable[[Node], Awaitable[None]]


def on_a_node(folder: Path, test: Test, seconds: float = 60.0) -> None:
    async def run() -> None:
        async with asyncio.timeout(seconds), node(folder) as ours:
            await test(ours)

    asyncio.run(run())


async def stats_of(ours: Node, number: int) -> dict[int, Stats]:
    scope = StageScope(deployment=DEPLOYMENT, epoch=epoch(number))
    return (await ours.host.hosted.stats(scope)).stages


def test_tokens_are_the_same_after_a_reconnect_also_in_another_order_of_stages(
    tmp_path: Path,
) -> None:
    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([5, 9], epoch(1))) as pipeline:
            expected = pipeline.generate(PROMPT, NUM_NEW, SAMPLED)
            pids = [worker.pid for worker in ours.workers]
            # Sequence 1 stays open, with blocks that are used again.
            pipeline.generate(PROMPT[3:], 5, SAMPLED, sequence=1)
        with await ours.serve(stage_specs([5, 9], epoch(2))) as pipeline:
            pipeline.next_step = 40
            assert pipeline.generate(PROMPT, NUM_NEW, SAMPLED, sequence=1) == expected
            assert pipeline.generate(PROMPT, NUM_NEW, SAMPLED) == expected
            # The first and the last stage are kept; two others take the middle.
        with await ours.serve(stage_specs([5, 7, 9], epoch(3))) as pipeline:
            assert pipeline.generate(PROMPT, NUM_NEW, SAMPLED) == expected
            kept = [worker.pid for worker in ours.workers]
            assert kept[:3] == pids
            assert len(kept) == 5
            keep = tuple(each for each in ours.host.hosted.memory.held if each.epoch == epoch(3))
            await ours.host.release(ReleaseStages(deployment=DEPLOYMENT, epoch=epoch(3), keep=keep))
            assert [worker.pid for worker in ours.workers] == [pids[0], *kept[2:]]
            assert pipeline.generate(PROMPT, 3, SAMPLED, sequence=1) == expected[:3]
        assert all(not psutil.pid_exists(pid) for pid in pids[1:2])

    on_a_node(tmp_path, test)


@pytest.mark.timing
def test_fifty_reconnects_leave_nothing_behind(tmp_path: Path) -> None:
    def held_by(pid: int) -> tuple[int, int, int, int]:
        process = psutil.Process(pid)
        return (
            process.num_fds(),
            process.num_threads(),
            process.memory_info().rss,
            len(process.children()),
        )

    async def test(ours: Node) -> None:
        seconds = []
        before: list[tuple[int, int, int, int]] = []
        pids: list[int] = []
        own_fds = 0
        last: Pipeline | None = None
        for number in range(1, 61):
            specs = stage_specs([6], epoch(number))
            started = time.perf_counter()
            pipeline = await ours.serve(specs)
            seconds.append(time.perf_counter() - started)
            if last is not None:
                last.close()
            last = pipeline
            pipeline.generate(PROMPT, 2, SAMPLED)
            if number % 2:
                pipeline.close()  # else the next epoch cuts it
            if number == 10:
                pids = [worker.pid for worker in ours.workers]
                before = [held_by(pid) for pid in pids]
                own_fds = psutil.Process().num_fds()
        assert last is not None
        last.close()
        assert [worker.pid for worker in ours.workers] == pids
        now = [held_by(pid) for pid in pids]
        for then, later in zip(before, now, strict=True):
            assert later[0] <= then[0] + 1  # the edges' own, as they come and go
            assert later[1] <= then[1] + 1
            assert later[2] < then[2] + 3 * 2**20
            assert later[3] == 0
        assert psutil.Process().num_fds() <= own_fds + 2
        assert sorted(seconds)[len(seconds) // 2] < 0.5

    on_a_node(tmp_path, test)


def test_what_an_epoch_that_is_over_sends_is_refused(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        old = stage_specs([6], epoch(1))
        for spec in old:
            await ours.start(spec)
        new = stage_specs([6], epoch(2))
        later = [await ours.start(spec) for spec in new]
        with await ours.connect(new, later) as pipeline:
            peer = Peer(node_id=COORDINATOR, host="127.0.0.1", port=1)
            late = Connect(epoch=epoch(1), index=0, preceding=peer, following=peer)
            with pytest.raises(EngineError, match="is over"):
                await ours.host.connect(ConnectStage(deployment=DEPLOYMENT, connect=late))
            with pytest.raises(EngineError, match="is over"):
                await ours.start(old[0])
            # Also by the worker itself, which trusts no agent with it.
            with pytest.raises(EngineError, match="epoch 1 is over: epoch 2 was seen"):
                await ours.workers[0].connect(late)
            again = msgspec.structs.replace(late, epoch=epoch(2))
            with pytest.raises(EngineError, match="epoch 2 is over: epoch 2 was seen"):
                await ours.workers[0].connect(again)
            assert len(pipeline.generate(PROMPT, 2, SAMPLED)) == 2

    on_a_node(tmp_path, test)


def test_frames_that_come_twice_or_late_are_dropped_and_counted(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([6], epoch(1))) as pipeline:
            expected = pipeline.generate(PROMPT, 4, SAMPLED)
            step = pipeline.step([expected[-1]], len(PROMPT) + 3)
            pipeline.send(step)
            pipeline.send(step)
            first = pipeline.step([1], 3)
            pipeline.send(first)
            assert len(pipeline.sampled()) == 1
            assert pipeline.receive().step_id == first.step_id
            stats = await stats_of(ours, 1)
            assert [stats[index].num_dropped_frames for index in (0, 1)] == [1, 0]
            # A frame that is missing is no late one: caches lack its tokens.
            pipeline.next_step += 1
            pipeline.send(pipeline.step([1], 3))
            with pytest.raises(EdgeError):
                pipeline.receive()
        late = "it sent step 7 instead of 6"
        await until(lambda: any(late in each.message for each in ours.lost))
        assert all(each.is_held for each in ours.lost)

    on_a_node(tmp_path, test)


def test_the_running_epoch_goes_on_while_the_next_is_started(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([6], epoch(1))) as pipeline:
            expected = pipeline.generate(PROMPT, NUM_NEW, SAMPLED)
            specs = stage_specs([6], epoch(2))
            addresses = [await ours.start(spec) for spec in specs]
            assert pipeline.generate(PROMPT, NUM_NEW, SAMPLED, sequence=1) == expected
            with await ours.connect(specs, addresses) as later:
                assert later.generate(PROMPT, NUM_NEW, SAMPLED) == expected
            with pytest.raises(EdgeError):
                pipeline.receive()
        assert all(each.epoch == epoch(2) for each in ours.lost)

    on_a_node(tmp_path, test)


def test_an_epoch_that_ends_closes_edges_and_keeps_what_is_loaded(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([6], epoch(1))) as pipeline:
            expected = pipeline.generate(PROMPT, 4, SAMPLED)
            ends = await ours.host.end(StageScope(deployment=DEPLOYMENT, epoch=epoch(1)))
            assert ends.crashes == ()
            with pytest.raises(EdgeError):
                pipeline.receive()
        assert ours.lost == []
        assert len(ours.host.hosted.memory.held) == 2
        with await ours.serve(stage_specs([6], epoch(2))) as pipeline:
            assert pipeline.generate(PROMPT, 4, SAMPLED) == expected

    on_a_node(tmp_path, test)


def test_a_worker_that_crashes_is_told_to_who_ends_the_epoch(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([6], epoch(1))):
            pid = ours.workers[1].pid
            os.kill(pid, signal.SIGSEGV)
            # A crash stops all threads at once. A signal from outside does not: until one of them
            # takes it, another may still answer that its edges are closed.
            await until(lambda: has_ended(pid))
            ends = await ours.host.end(StageScope(deployment=DEPLOYMENT, epoch=epoch(1)))
            assert ends.crashes == (f"stage 1 on node {NODE}: the worker was killed by SIGSEGV",)
        assert len(ours.host.hosted.memory.held) == 1

    on_a_node(tmp_path, test)


def test_mapped_weights_stay_mapped(tmp_path: Path) -> None:
    async def test(ours: Node) -> None:
        specs = stage_specs([6], epoch(1), is_mapped=True)
        with await ours.serve(specs) as pipeline:
            expected = pipeline.generate(PROMPT, 4, SAMPLED)
        later = stage_specs([6], epoch(2), is_mapped=True)
        loaded = [await ours.start(spec) for spec in later]
        assert all(each.is_kept and each.mapped_file is not None for each in loaded)
        with await ours.connect(later, loaded) as pipeline:
            assert pipeline.generate(PROMPT, 4, SAMPLED) == expected

    on_a_node(tmp_path, test)


def test_a_stopped_worker_is_given_up_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cluster.agent.worker_process._ANSWER_SECONDS", 0.5)

    async def test(ours: Node) -> None:
        with await ours.serve(stage_specs([], epoch(1))):
            pid = ours.workers[0].pid
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(EngineError, match="its worker has not answered for 500 ms"):
                await ours.start(stage_specs([], epoch(2))[0])
        await until(lambda: not psutil.pid_exists(pid))
        with await ours.serve(stage_specs([], epoch(3))) as pipeline:
            assert len(pipeline.generate(PROMPT, 2, SAMPLED)) == 2

    on_a_node(tmp_path, test)
