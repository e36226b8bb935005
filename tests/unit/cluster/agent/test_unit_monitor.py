"""How the agent looks after units that may fail; units, workers and self-tests are the test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from support.engines.fake_backends.behaviour import device, spec
from support.processes.waiting import until

from potluck.cluster.agent import unit_monitor as module
from potluck.cluster.agent.unit_health import UnitFailure, UnitOutages
from potluck.cluster.agent.unit_monitor import UnitMonitor
from potluck.cluster.agent.units import NodeUnit
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.wire.worker_messages import Stats
from potluck.errors import PotluckError, UnitFaultError
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.running import Retest, try_backend
from potluck.types.cluster import UnitId
from potluck.types.hardware import Trial
from potluck.types.node import CPU_UNIT
from potluck.types.unit import ChosenUnit, Fault, Role

SPEC = spec("works")
DEVICE = device("of-gpu")
GPU = UnitId("of-gpu/works")
HUNG = UnitFailure(fault=Fault.HUNG, message="a step took long", is_dangerous=True)
NAN = UnitFailure(fault=Fault.NOT_FINITE, message="NaN", is_dangerous=False)
NO_MEMORY = UnitFailure(fault=Fault.OUT_OF_MEMORY, message="no memory", is_dangerous=False)
PASSES = Retest(problem="", fault=None)
WRONG = Retest(problem="off by one", fault=Fault.WRONG)
REFUSES = Retest(problem="no memory", fault=None)


class FakeWorker:
    """Answers while it ``answers``."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.busy_seconds = 0.0
        self.answers = True
        self.failures: list[PotluckError] = []

    async def stats(self) -> Stats | None:
        while not self.answers:
            await asyncio.sleep(0.01)
        return Stats(
            num_steps=self.num_steps,
            num_tokens=0,
            compute_seconds=0,
            send_seconds=0,
            num_sent_bytes=0,
            resident_bytes=0,
            busy_seconds=self.busy_seconds,
        )

    def fail(self, error: PotluckError) -> None:
        self.failures.append(error)


class Node:
    """One GPU with its workers. ``results`` are those of its tests, the last one for ever."""

    def __init__(self, cache: ProbeCache, idle_seconds: float) -> None:
        self.workers: list[FakeWorker] = []
        self.results = [PASSES]
        self.num_tests = 0
        self.seconds = 0.0
        self.role = Role.SERVES
        self.changes: list[tuple[UnitId, str]] = []
        self.outages = UnitOutages(lambda *change: self.changes.append(change))
        self.care = UnitMonitor(
            (SPEC,),
            cache,
            self.outages,
            units=self.units,
            workers_on=lambda unit_id: (
                cast("list[WorkerProcess]", self.workers) if unit_id == GPU else []
            ),
            step_seconds=0.2,
            idle_seconds=idle_seconds,
        )

    def units(self) -> tuple[NodeUnit, ...]:
        trial = Trial(device_id="of-gpu", backend="works", works=True, variants=("only",))
        role = Role.OUT if GPU in self.outages.reasons() else self.role
        chosen = ChosenUnit(unit_id=GPU, device_id="of-gpu", backend="works", role=role)
        return (NodeUnit(chosen=chosen, device=DEVICE, trial=trial),)

    def test(self, *_: object, **__: object) -> Retest:
        self.num_tests += 1
        time.sleep(self.seconds)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


@asynccontextmanager
async def a_node(
    monkeypatch: pytest.MonkeyPatch, *, cache: ProbeCache | None = None, idle_seconds: float = 0.1
) -> AsyncIterator[Node]:
    node = Node(cache or ProbeCache(None), idle_seconds)
    monkeypatch.setattr(module, "retest", node.test)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    running = asyncio.create_task(node.care.run())
    try:
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_unit_that_failed_is_out_at_once_and_back_when_its_test_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.results = [WRONG, PASSES]
            node.outages.failed(GPU, HUNG)
            assert node.outages.reasons()[GPU].startswith(
                "hung: a step took long (tested again after"
            )
            await until(lambda: "its self-test fails" in node.outages.reasons()[GPU])
            await until(lambda: not node.outages.reasons())
            assert [(unit_id, bool(reason)) for unit_id, reason in node.changes] == [
                (GPU, True),
                (GPU, False),
            ]

    monkeypatch.setattr("potluck.types.unit.PAUSES_SECONDS", (0.05, 0.2))
    asyncio.run(run())


@pytest.mark.slow
def test_while_a_test_takes_its_time_the_agent_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> float:
        async with a_node(monkeypatch) as node:
            node.seconds = 0.5
            node.outages.failed(GPU, NAN)
            started = time.process_time()
            await asyncio.sleep(0.4)
            used = time.process_time() - started
            await until(lambda: "its self-test passes" in node.outages.reasons()[GPU])
            return used

    assert asyncio.run(run()) < 0.1


def test_suspicion_is_looked_into_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.outages.failed(GPU, NAN)
            await until(lambda: "NaN, and its self-test passes" in node.outages.reasons()[GPU])
            assert node.num_tests == 1

    asyncio.run(run())


def test_a_test_that_cannot_be_run_is_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Retest:
        raise OSError("no more processes")

    async def run() -> None:
        async with a_node(monkeypatch) as node:
            monkeypatch.setattr(module, "retest", fails)
            node.outages.failed(GPU, NAN)
            await until(lambda: "fails: OSError: no more processes" in node.outages.reasons()[GPU])

    asyncio.run(run())


def test_the_native_cpu_is_never_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.outages.failed(CPU_UNIT, HUNG)
            assert node.outages.reasons() == {}

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_idle_unit_is_tested_and_one_that_lies_is_out(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.workers = [FakeWorker() for _ in range(num_workers)]
            await until(lambda: node.num_tests >= 2)  # again and again
            assert node.outages.reasons() == {}
            node.results = [WRONG]
            await until(lambda: node.outages.reasons())
            assert node.outages.reasons()[GPU].startswith(
                "wrong numbers: its self-test failed while it was idle: off by one"
            )
            for worker in node.workers:
                (error,) = worker.failures
                assert isinstance(error, UnitFaultError)
                assert error.fault == "wrong numbers"

    asyncio.run(run())


@pytest.mark.slow
def test_who_has_no_memory_left_for_a_test_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            worker = FakeWorker()
            node.workers, node.results = [worker], [REFUSES]
            await until(lambda: node.num_tests >= 2)
            assert node.outages.reasons() == {}
            assert worker.failures == []
            node.workers = []
            await until(lambda: node.outages.reasons())
            assert node.outages.reasons()[GPU].startswith("driver error: its self-test")

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["steps", "one long step"])
def test_who_computes_is_not_tested(monkeypatch: pytest.MonkeyPatch, busy: str) -> None:
    async def run() -> None:
        async with a_node(monkeypatch, idle_seconds=1.0) as node:
            worker = FakeWorker()
            node.workers = [worker]
            for _ in range(30):  # for longer than the idle time
                if busy == "steps":
                    worker.num_steps += 1
                else:
                    worker.busy_seconds += 0.05
                await asyncio.sleep(0.05)
            assert node.num_tests == 0

    asyncio.run(run())


@pytest.mark.slow
def test_a_reserve_without_a_stage_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.role = Role.RESERVE
            await asyncio.sleep(0.3)
            assert node.num_tests == 0
            node.workers = [FakeWorker()]
            node.outages.failed(UnitId("of-other/works"), NO_MEMORY)  # ends the long pause
            await until(lambda: node.num_tests)

    asyncio.run(run())


def test_a_worker_that_does_not_answer_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with a_node(monkeypatch) as node:
            worker = FakeWorker()
            worker.answers = False
            node.workers = [worker]
            await until(lambda: worker.failures)
            error = worker.failures[0]
            assert isinstance(error, UnitFaultError)
            assert (error.fault, error.message) == (
                "hung",
                "its worker has said nothing for 200 ms",
            )

    asyncio.run(run())


def trial(cache: ProbeCache, *, retry: bool = False) -> Trial:
    """What an agent that starts now, or ``potluck probe --retry``, finds."""
    return try_backend(SPEC, DEVICE, cache=cache, retry=retry)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProbeCache:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3].parent / "tests"))
    return ProbeCache(tmp_path / "probe.json")


@pytest.mark.slow
def test_what_is_dangerous_is_not_met_again_by_an_agent_that_restarts(
    monkeypatch: pytest.MonkeyPatch, cache: ProbeCache
) -> None:
    async def run() -> None:
        async with a_node(monkeypatch, cache=cache) as node:
            node.outages.failed(GPU, HUNG)
            await until(lambda: not trial(cache).works)

    assert trial(cache).works
    asyncio.run(run())
    after = trial(cache)
    assert after.reason == (
        "not tried again: hung: a step took long (retry with potluck probe --retry)"
    )
    assert trial(cache, retry=True).works
    assert trial(cache).works


@pytest.mark.slow
def test_what_is_cured_by_a_restart_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, cache: ProbeCache
) -> None:
    async def run() -> None:
        async with a_node(monkeypatch, cache=cache) as node:
            node.outages.failed(GPU, NO_MEMORY)
            await asyncio.sleep(0.1)

    asyncio.run(run())
    assert trial(cache).works


@pytest.mark.slow
def test_one_that_stays_out_comes_back_when_somebody_tries_it(
    monkeypatch: pytest.MonkeyPatch, cache: ProbeCache
) -> None:
    async def run() -> None:
        async with a_node(monkeypatch, cache=cache) as node:
            for _ in range(3):
                await until(lambda: not node.outages.reasons())
                node.outages.failed(GPU, NO_MEMORY)
            assert "fault 3 within an hour" in node.outages.reasons()[GPU]
            await until(lambda: GPU in node.care._quarantined)
            assert not trial(cache).works
            assert trial(cache, retry=True).works
            await until(lambda: not node.outages.reasons())

    monkeypatch.setattr("potluck.types.unit.PAUSES_SECONDS", (0.02,))
    monkeypatch.setattr(module, "_REST_SECONDS", 0.05)
    asyncio.run(run())


def test_a_defect_in_a_look_or_in_a_test_does_not_end_the_care(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_AFTER_DEFECT_SECONDS", 0.01)
    monkeypatch.setattr("potluck.types.unit.PAUSES_SECONDS", (0.02,))
    failures = [KeyError("a look"), KeyError("a test")]

    async def look(self: UnitMonitor) -> None:
        if len(failures) == 2:
            raise failures.pop(0)

    def find(self: UnitMonitor, unit_id: UnitId) -> object:
        if failures:
            raise failures.pop(0)
        return original(self, unit_id)

    original = UnitMonitor._find
    monkeypatch.setattr(UnitMonitor, "_keep_quarantine", look)
    monkeypatch.setattr(UnitMonitor, "_find", find)

    async def run() -> None:
        async with a_node(monkeypatch) as node:
            node.outages.failed(GPU, NAN)
            await until(lambda: "fails: KeyError: 'a test'" in node.outages.reasons().get(GPU, ""))
            await until(lambda: GPU not in node.outages.reasons())

    asyncio.run(run())
    assert "could not check the units" in caplog.text
    assert f"the self-test of {GPU} failed" in caplog.text
