"""Which workers a node runs, as coordinators come, go, and change their minds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from support import hardware
from support.cluster_calls import a_plan
from support.edges import credentials

from potluck.cluster.agent import stages
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.units import NodeUnits, UnitChoice
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.calls import AbandonStage, StageCheck, StageLost, StageScope
from potluck.cluster.worker.messages import Load, Loaded, Progress, StageSpec, Stats
from potluck.engines.backends import BACKENDS
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.hardware import BackendSpec, DeviceKind, Interface, LayerReport, Trial
from potluck.types.quantization import Quantization
from potluck.types.unit import Fault, UnitAddress

GIB = 2**30
D = DeploymentId("d")
A, B = NodeId("a" * 16), NodeId("b" * 16)
SPEC = StageSpec(
    deployment=D,
    epoch=Epoch(number=1, coordinator=A),
    index=0,
    num_stages=1,
    unit_id=UnitId("cpu/native"),
    model="demo",
    start_layer=0,
    end_layer=1,
    context_tokens=64,
    num_blocks=4,
    max_step_tokens=64,
    max_step_sequences=8,
    quantization=Quantization.NONE,
    is_mapped=False,
    num_bytes=1000,
)
LOADED = Loaded(host="h", port=1, memory=a_plan(), read_bytes=1, seconds=0.5, mapped_file=None)


CARD_SPEC = BackendSpec(
    name="b", module="m", engine="engine.of.b", kinds=frozenset({DeviceKind.GPU})
)
THERE = Interface(api="opencl", address="some.icd#0:1")
PROBED = hardware.report(
    LayerReport(layer="pci", devices=(hardware.device("one"), hardware.device("two"))),
    trials=(
        Trial(device_id="cpu", backend="native", works=True, variants=("scalar", "avx2")),
        Trial(device_id="one", backend="b", works=True, variants=("slow", "fast"), interface=THERE),
        Trial(device_id="one", backend="a", works=False, reason="wrong numbers"),
        Trial(device_id="two", backend="b", works=True),
    ),
)
OUT = {"two/b": "it hung"}


def at(number: int, coordinator: NodeId = A) -> StageSpec:
    return msgspec.structs.replace(SPEC, epoch=Epoch(number=number, coordinator=coordinator))


failed: list[tuple[UnitId, Fault]] = []
"""What the host has told of units."""


class FakeWorker:
    """Loads when it is let."""

    made: ClassVar[list[FakeWorker]] = []
    loads: ClassVar[list[Load]] = []
    starting: asyncio.Event

    def __init__(self, on_end: Callable[[FakeWorker, PotluckError], None]) -> None:
        self.pid = 2**22 + len(FakeWorker.made)  # above the kernel's largest
        self.on_end = on_end
        self.is_killed = False
        self.was_killed = False
        self.has_crashed = False
        self.status: int | None = 1
        self.failure: PotluckError | None = None
        self.may_load = asyncio.Event()
        FakeWorker.made.append(self)

    @classmethod
    async def start(cls, on_end: Callable[[FakeWorker, PotluckError], None]) -> FakeWorker:
        await cls.starting.wait()
        return cls(on_end)

    async def load(
        self, message: Load, *, stall_seconds: float
    ) -> AsyncGenerator[Progress | Loaded, None]:
        FakeWorker.loads.append(message)
        yield Progress(done_bytes=0, total_bytes=1)
        await self.may_load.wait()
        yield LOADED

    async def stats(self) -> Stats | None:
        if self.failure is not None:
            raise self.failure
        return None

    def fail(self, error: PotluckError) -> None:
        self.failure = error

    def kill(self) -> None:
        self.is_killed = True

    async def wait(self) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def make_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[StageHost, list[StageLost]]]:
    monkeypatch.setattr(stages, "WorkerProcess", FakeWorker)
    failed.clear()

    def make() -> tuple[StageHost, list[StageLost]]:
        FakeWorker.made = []
        FakeWorker.loads = []
        FakeWorker.starting = asyncio.Event()
        FakeWorker.starting.set()
        lost: list[StageLost] = []

        async def report_lost(stage: StageLost) -> None:
            lost.append(stage)

        notes = WorkerNotes(tmp_path)
        host = StageHost(
            credentials(A),
            notes,
            NodeUnits(lambda: PROBED, UnitChoice(backends=(*BACKENDS, CARD_SPEC)), lambda: OUT),
            listen_host="127.0.0.1",
            num_threads=1,
            packed_cache_bytes=None,
            unit_step_seconds=30.0,
            stall_seconds=60.0,
            unit_failed=lambda unit_id, failure: failed.append((unit_id, failure.fault)),
            report_lost=report_lost,
        )
        return host, lost

    return make


MakeHost = Callable[[], tuple[StageHost, list[StageLost]]]


async def start(host: StageHost, spec: StageSpec) -> None:
    async for _ in host.start(spec):
        FakeWorker.made[-1].may_load.set()


def alive() -> list[int]:
    return [number for number, each in enumerate(FakeWorker.made) if not each.is_killed]


def test_the_highest_epoch_is_obeyed(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        assert host.memory.planned_bytes == 1000
        await start(host, at(2))
        assert alive() == [1]
        with pytest.raises(EngineError, match="is over"):
            await start(host, at(1))
        with pytest.raises(EngineError, match="already"):
            await start(host, at(2))
        await host.supersede(D, Epoch(number=3, coordinator=B))
        assert alive() == []
        assert host.memory.planned_bytes == 0
        with pytest.raises(EngineError, match="is over"):
            await start(host, at(2))
        assert lost == []

    asyncio.run(run())


def test_what_was_stopped_is_not_started_late(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        FakeWorker.starting.clear()
        starting = asyncio.create_task(start(host, at(1)))
        await asyncio.sleep(0)
        await host.stop(StageScope(deployment=D, epoch=at(1).epoch))
        FakeWorker.starting.set()
        with pytest.raises(EngineError, match="is over"):
            await starting
        assert alive() == []
        await start(host, at(2))
        assert alive() == [1]

    asyncio.run(run())


def test_a_caller_that_goes_away_leaves_no_worker(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        events = host.start(at(1))
        assert await anext(events) == Progress(done_bytes=0, total_bytes=1)
        await events.aclose()
        assert alive() == []
        waiting = asyncio.create_task(start_and_wait(host))
        await asyncio.sleep(0.01)
        waiting.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert FakeWorker.made[-1].is_killed
        assert lost == []

    async def start_and_wait(host: StageHost) -> None:
        async for _ in host.start(at(3)):
            continue

    asyncio.run(run())


def test_a_coordinator_that_is_gone_takes_its_stages_with_it(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        await start(host, at(1, A))
        other = msgspec.structs.replace(at(1, B), deployment=DeploymentId("e"))
        await start(host, other)
        await host.coordinator_left(A)
        assert alive() == [1]

    asyncio.run(run())


def test_a_worker_that_ends_by_itself_is_reported_once(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        first = FakeWorker.made[0]
        first.on_end(first, EngineError("killed"))
        first.on_end(first, EngineError("killed"))
        await asyncio.sleep(0)
        assert [each.message for each in lost] == ["killed"]
        assert lost[0].epoch == at(1).epoch
        await start(host, at(2))
        await host.stop_all()
        second = FakeWorker.made[1]
        second.on_end(second, EngineError("signal 9"))
        await asyncio.sleep(0)
        assert len(lost) == 1

    asyncio.run(run())


def test_a_worker_is_told_how_to_reach_its_unit_by_its_own_node(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        await start(host, SPEC)
        card = msgspec.structs.replace(
            SPEC, unit_id=UnitId("one/b"), num_bytes=10, device_bytes=GIB
        )
        for name in ("e", "f"):
            await start(host, msgspec.structs.replace(card, deployment=DeploymentId(name)))
        cpu, first, second = FakeWorker.loads
        assert cpu.unit == UnitAddress(
            unit_id="cpu/native",
            backend="native",
            engine="potluck.engines.native_backend",
            variant="avx2",
        )
        assert cpu.device_free_bytes is None
        assert first.unit == UnitAddress(
            unit_id="one/b", backend="b", engine="engine.of.b", interface=THERE, variant="fast"
        )
        # Of the 6 GiB that are free there, the first stage has one.
        assert (first.device_free_bytes, second.device_free_bytes) == (6 * GIB, 5 * GIB)
        assert host.memory.planned_bytes == 1000 + 2 * 10
        assert host.memory.device_bytes == {"cpu/native": 0, "one/b": 2 * GIB}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("unit_id", "reason"),
    [
        ("three/b", "this node has no unit three/b"),
        ("one/a", "this node has no unit one/a"),
        ("two/b", "the unit two/b is out: it hung"),
        ("one/native", "this node has no unit one/native"),
    ],
)
def test_no_worker_is_started_for_a_unit_that_is_none(
    make_host: MakeHost, unit_id: str, reason: str
) -> None:
    async def run() -> None:
        host, _ = make_host()
        with pytest.raises(EngineError) as caught:
            await start(host, msgspec.structs.replace(SPEC, unit_id=UnitId(unit_id)))
        assert caught.value.message == reason
        assert FakeWorker.made == []

    asyncio.run(run())


FAULT = UnitFaultError(Fault.DRIVER.value, "the context is lost")


def test_a_unit_that_failed_is_out_before_anybody_hears_of_the_stage(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        worker = FakeWorker.made[0]
        assert [each.pid for each in host.workers_on(UnitId("cpu/native"))] == [worker.pid]
        worker.on_end(worker, FAULT)
        assert failed == [(UnitId("cpu/native"), Fault.DRIVER)]
        assert lost == []
        await asyncio.sleep(0)
        assert [each.fault for each in lost] == ["driver error"]
        assert host.workers_on(UnitId("cpu/native")) == []

    asyncio.run(run())


def test_a_fault_counts_while_its_stage_is_stopped_and_an_end_by_this_agent_does_not(
    make_host: MakeHost,
) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        await start(host, at(2))  # its predecessor is stopped
        first, second = FakeWorker.made
        first.on_end(first, FAULT)
        assert failed == [(UnitId("cpu/native"), Fault.DRIVER)]
        await host.stop_all()
        second.was_killed, second.status = True, -9
        second.on_end(second, UnitFaultError(Fault.KILLED.value, "killed"))
        await asyncio.sleep(0)
        assert len(failed) == 1
        assert lost == []

    asyncio.run(run())


def test_only_units_that_may_hang_have_a_limit(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        assert host._load(at(1)).step_seconds is None

    asyncio.run(run())


def test_how_stages_crashed_is_told_once_to_whoever_stops_them(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        scope = StageScope(deployment=D, epoch=at(1).epoch)
        await start(host, at(1))
        worker = FakeWorker.made[0]
        worker.has_crashed = True
        worker.on_end(worker, UnitFaultError(Fault.KILLED.value, "killed by SIGSEGV"))
        ends = await host.stop(scope)
        assert ends.crashes == (f"stage 0 on node {A}: killed by SIGSEGV",)
        assert (await host.stop(scope)).crashes == ()
        # One of an earlier epoch, of which nobody asked, says nothing of a later one.
        await start(host, at(2))
        worker = FakeWorker.made[1]
        worker.has_crashed = True
        worker.on_end(worker, EngineError("TypeError"))
        await start(host, at(3))
        assert (await host.stop(StageScope(deployment=D, epoch=at(3).epoch))).crashes == ()
        assert host._crashes == {}

    asyncio.run(run())


def test_a_crash_that_is_noticed_while_the_stage_is_stopped_is_told(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        worker = FakeWorker.made[0]

        async def wait() -> None:
            worker.has_crashed = True
            worker.on_end(worker, EngineError("the stage failed: TypeError"))

        worker.wait = wait  # type: ignore[method-assign]
        ends = await host.stop(StageScope(deployment=D, epoch=at(1).epoch))
        assert ends.crashes == (f"stage 0 on node {A}: the stage failed: TypeError",)
        assert lost == []

    asyncio.run(run())


def test_what_is_asked_of_one_epoch_concerns_no_other(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(2))
        await start(host, msgspec.structs.replace(at(2), index=1))
        await start(host, msgspec.structs.replace(at(2), deployment=DeploymentId("e")))
        scope = StageScope(deployment=D, epoch=at(2).epoch)
        well = StageCheck(answers=True, is_stopped=False, has_progress=True)
        assert (await host.check(scope)).stages == {0: well, 1: well}
        assert (await host.check(StageScope(deployment=D, epoch=at(1).epoch))).stages == {}
        abandon = AbandonStage(deployment=D, epoch=at(1).epoch, index=1, message="it was stopped")
        await host.abandon(abandon)
        await host.abandon(msgspec.structs.replace(abandon, epoch=at(2).epoch, index=5))
        assert [each.failure for each in FakeWorker.made] == [None, None, None]
        await host.abandon(msgspec.structs.replace(abandon, epoch=at(2).epoch))
        first, second, other = FakeWorker.made
        assert first.failure is None
        assert other.failure is None
        assert isinstance(second.failure, StalledError)
        assert second.failure.message == "it was stopped"
        assert (await host.check(scope)).stages == {0: well}
        second.on_end(second, second.failure)
        await asyncio.sleep(0)
        assert [(each.index, each.has_stalled) for each in lost] == [(1, True)]

    asyncio.run(run())
