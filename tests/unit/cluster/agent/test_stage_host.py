"""Which workers a node runs, as coordinators come, go, and change their minds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from support.cluster.calls import a_plan
from support.cluster.hosted_stages import stage_host
from support.machines import hardware
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent import stages
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.listener import RoutedConnections
from potluck.cluster.wire.calls import (
    AbandonStage,
    ConnectStage,
    ReleaseStages,
    StageCheck,
    StageEnds,
    StageLost,
    StageScope,
)
from potluck.cluster.wire.worker_messages import (
    Connect,
    Load,
    Loaded,
    Peer,
    Progress,
    StageSpec,
    Stats,
)
from potluck.engines.backends import BACKENDS
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.hardware import DetectorReport, Trial
from potluck.types.program import Shard
from potluck.types.unit import Fault, Interface, UnitAddress

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
    shard=Shard.whole(1),
    context_tokens=64,
    num_blocks=4,
    max_step_tokens=64,
    max_step_sequences=8,
    quantization=Quantization.NONE,
    is_mapped=False,
    num_bytes=1000,
    device_bytes=0,
    arithmetic=Arithmetic.EXACT,
)


def layer(index: int) -> Shard:
    return Shard(start_layer=index, end_layer=index + 1, num_layers=6, has_embedding=index == 0)


LOADED = Loaded(host="h", port=1, memory=a_plan(), read_bytes=1, seconds=0.5, mapped_file=None)


CARD_SPEC = BackendSpec(
    name="b", module="m", engine="engine.of.b", kinds=frozenset({DeviceKind.GPU})
)
THERE = Interface(api="opencl", address="some.icd#0:1")
PROBED = hardware.report(
    DetectorReport(detector="pci", devices=(hardware.device("one"), hardware.device("two"))),
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

    def __init__(
        self,
        on_end: Callable[[FakeWorker, PotluckError], None],
        on_disconnected: Callable[[FakeWorker, Epoch, str], None],
    ) -> None:
        self.on_disconnected = on_disconnected
        self.calls: list[str] = []
        self.refuses = ""
        self.pid = 2**22 + len(FakeWorker.made)  # above the kernel's largest
        self.on_end = on_end
        self.is_killed = False
        self.is_ending = False
        self.was_killed = False
        self.has_crashed = False
        self.status: int | None = 1
        self.failure: PotluckError | None = None
        self.may_load = asyncio.Event()
        FakeWorker.made.append(self)

    @classmethod
    async def start(
        cls,
        on_end: Callable[[FakeWorker, PotluckError], None],
        on_disconnected: Callable[[FakeWorker, Epoch, str], None],
        *,
        transfer: socket.socket | None = None,
        route: RoutedConnections | None = None,
    ) -> FakeWorker:
        assert route is None
        assert transfer is None  # no stage here is of files that are known by their content
        await cls.starting.wait()
        return cls(on_end, on_disconnected)

    async def load(
        self, message: Load, *, stall_seconds: float
    ) -> AsyncGenerator[Progress | Loaded, None]:
        FakeWorker.loads.append(message)
        yield Progress(done_bytes=0, total_bytes=1)
        await self.may_load.wait()
        yield LOADED

    async def listen(self, epoch: Epoch) -> EdgeAddress:
        self.calls.append(f"listen {epoch.number}")
        return EdgeAddress(host="new", port=len(self.calls))

    async def connect(self, message: Connect) -> None:
        self.calls.append(f"connect {message.epoch.number} as {message.index}")
        if self.refuses:
            self.on_disconnected(self, message.epoch, self.refuses)
            raise EngineError(self.refuses)

    def disconnect(self, epoch: Epoch) -> None:
        self.calls.append(f"disconnect {epoch.number}")

    async def wait_disconnected(self) -> None:
        self.calls.append("wait")

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
) -> Callable[..., tuple[StageHost, list[StageLost]]]:
    monkeypatch.setattr(stages, "WorkerProcess", FakeWorker)
    failed.clear()

    def make(orphan_seconds: float = 60.0) -> tuple[StageHost, list[StageLost]]:
        FakeWorker.made = []
        FakeWorker.loads = []
        FakeWorker.starting = asyncio.Event()
        FakeWorker.starting.set()
        lost: list[StageLost] = []

        async def report_lost(stage: StageLost) -> None:
            lost.append(stage)

        host = stage_host(
            tmp_path,
            NodeUnits(lambda: PROBED, backends=(*BACKENDS, CARD_SPEC), out=lambda: OUT),
            orphan_seconds=orphan_seconds,
            unit_failed=lambda unit_id, failure: failed.append((unit_id, failure.fault)),
            report_lost=report_lost,
        )
        return host, lost

    return make


MakeHost = Callable[..., tuple[StageHost, list[StageLost]]]


async def start(host: StageHost, spec: StageSpec) -> None:
    async for _ in host.start(spec):
        FakeWorker.made[-1].may_load.set()


def alive() -> list[int]:
    return [number for number, each in enumerate(FakeWorker.made) if not each.is_killed]


def connecting(spec: StageSpec) -> ConnectStage:
    peer = Peer(node_id=B)
    return ConnectStage(
        deployment=spec.deployment,
        connect=Connect(epoch=spec.epoch, index=spec.index, preceding=peer, following=peer),
    )


async def loaded_by(host: StageHost, spec: StageSpec) -> Loaded:
    async for event in host.start(spec):
        if isinstance(event, Loaded):
            return event
        FakeWorker.made[-1].may_load.set()
    raise AssertionError("the last event is Loaded")


def test_a_worker_is_kept_for_the_same_stage_of_a_higher_epoch(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        assert await loaded_by(host, at(1)) == LOADED
        await host.connect(connecting(at(1)))
        # Counted otherwise, in another place, and yet the same.
        moved = msgspec.structs.replace(at(2), num_bytes=7, device_bytes=7)
        kept = await loaded_by(host, moved)
        assert (kept.host, kept.is_kept, kept.read_bytes, kept.seconds) == ("new", True, 0, 0.0)
        assert kept.memory == LOADED.memory
        worker = FakeWorker.made[0]
        assert worker.calls == ["connect 1 as 0", "listen 2"]  # epoch 1 goes on
        assert [each.epoch.number for each in host.hosted.memory.held] == [1]
        await host.connect(connecting(at(2)))
        assert worker.calls[2:] == ["connect 2 as 0"]
        assert [each.epoch.number for each in host.hosted.memory.held] == [2]
        assert host.hosted.memory.planned_bytes == 1000
        assert alive() == [0]
        assert lost == []

    run_in_virtual_time(run())


MIDDLE = msgspec.structs.replace(SPEC, index=1, num_stages=4, shard=layer(1))


@pytest.mark.parametrize(
    ("changes", "is_kept"),
    [
        ({"index": 2}, True),
        ({"num_stages": 3}, True),
        ({"index": 0, "shard": replace(MIDDLE.shard, has_embedding=True)}, False),
        ({"index": 3, "shard": replace(MIDDLE.shard, has_head=True)}, False),
        ({"shard": replace(MIDDLE.shard, end_layer=3)}, False),
        ({"num_blocks": 5}, False),
        ({"quantization": Quantization.Q8_0}, False),
        ({"is_mapped": True}, False),
        ({"max_step_tokens": 65}, False),
    ],
)
def test_what_is_the_same_stage(
    make_host: MakeHost, changes: dict[str, object], is_kept: bool
) -> None:
    async def run() -> None:
        host, _ = make_host()
        await start(host, MIDDLE)
        later = msgspec.structs.replace(MIDDLE, epoch=at(2).epoch, **changes)
        assert (await loaded_by(host, later)).is_kept is is_kept
        assert alive() == ([0] if is_kept else [0, 1])

    run_in_virtual_time(run())


def test_the_highest_epoch_that_was_connected_is_obeyed(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        other = msgspec.structs.replace(at(2), shard=Shard.whole(2))
        await start(host, at(1))
        await host.connect(connecting(at(1)))
        await start(host, other)  # nothing is connected at 2 yet
        await start(
            host, msgspec.structs.replace(at(1), shard=Shard.whole(3), index=1, num_stages=2)
        )
        await host.connect(connecting(other))
        first, second, _ = FakeWorker.made
        assert first.calls[-1] == "disconnect 1"
        assert second.calls == ["connect 2 as 0"]
        for refused in (start(host, at(1)), host.connect(connecting(at(1)))):
            with pytest.raises(EngineError, match="epoch 1 of d is over"):
                await refused
        with pytest.raises(EngineError, match="already here"):
            await start(host, other)
        with pytest.raises(EngineError, match="is not loaded here"):
            await host.connect(connecting(at(3)))
        assert alive() == [0, 1, 2]

    run_in_virtual_time(run())


def test_a_lower_epoch_does_not_get_what_a_higher_one_has_asked_for(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        await start(host, at(1))
        await start(host, at(3))
        with pytest.raises(EngineError, match="epoch 2 of d is over: epoch 3 has asked"):
            await start(host, at(2))

    run_in_virtual_time(run())


def test_a_record_of_a_higher_epoch_cuts_edges_and_ends_what_loads(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        await host.connect(connecting(at(1)))
        loading = host.start(msgspec.structs.replace(at(1), index=1, num_stages=2))
        await anext(loading)
        await host.supersede(D, Epoch(number=2, coordinator=B))
        assert FakeWorker.made[0].calls[-1] == "disconnect 1"
        assert alive() == [0]
        with pytest.raises(EngineError, match="is over"):
            await start(host, at(1))
        FakeWorker.made[0].on_disconnected(FakeWorker.made[0], at(1).epoch, "cut")
        await asyncio.sleep(0)
        assert lost == []  # it is this node that has cut it
        assert (await loaded_by(host, at(2, B))).is_kept
        await loading.aclose()

    run_in_virtual_time(run())


def test_edges_that_end_by_themselves_are_reported_and_the_stage_is_held(
    make_host: MakeHost,
) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        await host.connect(connecting(at(1)))
        worker = FakeWorker.made[0]
        for _ in range(2):
            worker.on_disconnected(worker, at(1).epoch, "closed by the peer")
        await asyncio.sleep(0)
        assert [(each.message, each.is_held) for each in lost] == [("closed by the peer", True)]
        assert alive() == [0]
        assert (await loaded_by(host, at(2))).is_kept
        worker.refuses = "no route"
        with pytest.raises(EngineError, match="no route"):
            await host.connect(connecting(at(2)))
        worker.refuses = ""
        assert (await loaded_by(host, at(3))).is_kept
        await host.connect(connecting(at(3)))

    run_in_virtual_time(run())


def test_an_epoch_that_ends_leaves_what_is_loaded(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        scope = StageScope(deployment=D, epoch=at(1).epoch)
        await start(host, at(1))
        await host.connect(connecting(at(1)))
        loading = host.start(msgspec.structs.replace(at(1), index=1, num_stages=2))
        await anext(loading)
        assert await host.end(scope) == StageEnds(out={UnitId("two/b"): "it hung"})
        assert FakeWorker.made[0].calls[1:] == ["disconnect 1", "wait"]
        assert alive() == [0]
        for refused in (start(host, at(1)), host.connect(connecting(at(1)))):
            with pytest.raises(EngineError, match="epoch 1 of d is over"):
                await refused
        assert (await loaded_by(host, at(2))).is_kept
        await loading.aclose()

    run_in_virtual_time(run())


def test_what_the_new_plan_does_not_use_is_released(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        stages = [
            msgspec.structs.replace(at(1), index=index, num_stages=3, shard=layer(index))
            for index in range(3)
        ]
        for stage in stages:
            await start(host, stage)
        later = msgspec.structs.replace(at(3), shard=layer(5))
        await start(host, later)
        held = host.hosted.memory.held
        assert [each.shard.start_layer for each in held] == [0, 1, 2, 5]
        keep = tuple(msgspec.structs.replace(each, num_bytes=1) for each in held[1:2])
        await host.release(ReleaseStages(deployment=D, epoch=at(2).epoch, keep=keep))
        # Of a higher epoch it is not for this one to say.
        assert [each.shard.start_layer for each in host.hosted.memory.held] == [1, 5]
        assert host.hosted.memory.planned_bytes == 2000
        await host.connect(connecting(later))
        await host.release(ReleaseStages(deployment=D, epoch=at(2).epoch))
        assert [each.shard.start_layer for each in host.hosted.memory.held] == [1, 5]
        await host.release(ReleaseStages(deployment=D, epoch=at(3).epoch))
        assert host.hosted.memory.held == ()
        assert lost == []

    run_in_virtual_time(run())


def test_one_of_two_that_hold_the_same_is_released(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        spare = msgspec.structs.replace(MIDDLE, index=2)
        await start(host, MIDDLE)
        await start(host, spare)
        await host.connect(connecting(spare))
        await host.release(
            ReleaseStages(deployment=D, epoch=at(1).epoch, keep=host.hosted.memory.held[:1])
        )
        assert alive() == [1]  # the one in use

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


def test_stages_of_a_coordinator_that_is_gone_are_held_for_a_while(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host(orphan_seconds=0.05)
        other = msgspec.structs.replace(at(1, B), deployment=DeploymentId("e"))
        wanted = msgspec.structs.replace(at(1, A), deployment=DeploymentId("f"))
        for spec in (at(1, A), other, wanted):
            await start(host, spec)
        used = msgspec.structs.replace(at(1, A), deployment=DeploymentId("g"))
        await start(host, used)
        await host.connect(connecting(used))
        loading = host.start(msgspec.structs.replace(at(1), index=1, num_stages=2))
        await anext(loading)
        await host.coordinator_left(A)
        assert alive() == [0, 1, 2, 3]  # nobody listens to the one that loads
        later = msgspec.structs.replace(wanted, epoch=at(2, B).epoch)
        assert (await loaded_by(host, later)).is_kept
        await asyncio.sleep(0.2)
        assert alive() == [1, 2, 3]
        # One whose edges stand serves somebody whom this node does not see.
        worker = FakeWorker.made[3]
        worker.on_disconnected(worker, used.epoch, "closed")
        await asyncio.sleep(0.2)
        assert alive() == [1, 2]
        await host.coordinator_left(B)
        await asyncio.sleep(0.2)
        assert alive() == []
        assert len(lost) == 1
        await loading.aclose()

    run_in_virtual_time(run())


def test_news_of_a_successor_prolongs_the_time(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host(orphan_seconds=0.3)
        await start(host, at(1))
        await host.coordinator_left(A)
        await asyncio.sleep(0.2)
        await host.supersede(D, Epoch(number=2, coordinator=B))
        await asyncio.sleep(0.2)
        assert alive() == [0]
        await asyncio.sleep(0.3)  # it may be lost as well
        assert alive() == []

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


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
            engine="potluck.engines.native.backend",
            variant="avx2",
        )
        assert cpu.device_free_bytes is None
        assert first.unit == UnitAddress(
            unit_id="one/b", backend="b", engine="engine.of.b", interface=THERE, variant="fast"
        )
        # Of the 6 GiB that are free there, the first stage has one.
        assert (first.device_free_bytes, second.device_free_bytes) == (6 * GIB, 5 * GIB)
        assert host.hosted.memory.planned_bytes == 1000 + 2 * 10
        assert host.hosted.memory.device_bytes == {"cpu/native": 0, "one/b": 2 * GIB}

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


FAULT = UnitFaultError(Fault.DRIVER.value, "the context is lost")


def test_a_unit_that_failed_is_out_before_anybody_hears_of_the_stage(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        worker = FakeWorker.made[0]
        assert [each.pid for each in host.hosted.workers_on(UnitId("cpu/native"))] == [worker.pid]
        worker.on_end(worker, FAULT)
        assert failed == [(UnitId("cpu/native"), Fault.DRIVER)]
        assert lost == []
        await asyncio.sleep(0)
        assert [each.fault for each in lost] == ["driver error"]
        assert host.hosted.workers_on(UnitId("cpu/native")) == []

    run_in_virtual_time(run())


def test_a_fault_counts_while_its_stage_is_stopped_and_an_end_by_this_agent_does_not(
    make_host: MakeHost,
) -> None:
    async def run() -> None:
        host, lost = make_host()
        await start(host, at(1))
        await host.stop(StageScope(deployment=D, epoch=at(1).epoch))
        await start(host, at(2))
        first, second = FakeWorker.made
        first.on_end(first, FAULT)
        assert failed == [(UnitId("cpu/native"), Fault.DRIVER)]
        await host.stop_all()
        second.was_killed, second.status = True, -9
        second.on_end(second, UnitFaultError(Fault.KILLED.value, "killed"))
        await asyncio.sleep(0)
        assert len(failed) == 1
        assert lost == []

    run_in_virtual_time(run())


def test_only_units_that_may_hang_have_a_limit(make_host: MakeHost) -> None:
    async def run() -> None:
        host, _ = make_host()
        assert host._load(at(1)).step_seconds is None

    run_in_virtual_time(run())


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
        assert (await host.stop(StageScope(deployment=D, epoch=at(2).epoch))).crashes == ()

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


def test_what_is_asked_of_one_epoch_concerns_no_other(make_host: MakeHost) -> None:
    async def run() -> None:
        host, lost = make_host()
        for spec in (
            at(2),
            msgspec.structs.replace(at(2), index=1, shard=layer(1)),
            msgspec.structs.replace(at(2), deployment=DeploymentId("e")),
            msgspec.structs.replace(at(2), index=2, shard=layer(2)),
        ):
            await start(host, spec)
            if spec.index < 2:  # the last one is held, and not connected
                await host.connect(connecting(spec))
        scope = StageScope(deployment=D, epoch=at(2).epoch)
        well = StageCheck(answers=True, is_stopped=False, has_progress=True)
        assert (await host.hosted.check(scope)).stages == {0: well, 1: well}
        assert (await host.hosted.check(StageScope(deployment=D, epoch=at(1).epoch))).stages == {}
        abandon = AbandonStage(deployment=D, epoch=at(1).epoch, index=1, message="it was stopped")
        await host.hosted.abandon(abandon)
        await host.hosted.abandon(msgspec.structs.replace(abandon, epoch=at(2).epoch, index=5))
        assert not any(each.failure for each in FakeWorker.made)
        await host.hosted.abandon(msgspec.structs.replace(abandon, epoch=at(2).epoch))
        assert [each.failure is not None for each in FakeWorker.made] == [False, True, False, False]
        worker = FakeWorker.made[1]
        assert isinstance(worker.failure, StalledError)
        assert worker.failure.message == "it was stopped"
        assert (await host.hosted.check(scope)).stages == {0: well}
        worker.on_end(worker, worker.failure)
        await asyncio.sleep(0)
        assert [(each.index, each.has_stalled) for each in lost] == [(1, True)]

    run_in_virtual_time(run())
