"""What a node says it has left, with stages that have not taken all that was planned for them."""

from __future__ import annotations

import dataclasses
import math

import pytest
from support.machines import hardware

from potluck.cluster.agent import node_calls
from potluck.cluster.agent.hosted_stage import StageMemory
from potluck.cluster.agent.node_calls import report
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnits
from potluck.engines.backends import BACKENDS
from potluck.host.cores import WATCH_SECONDS, CoreWatch, UsableCores
from potluck.host.system import System
from potluck.types.cluster import NodeId, UnitId
from potluck.types.hardware import (
    DetectorReport,
    DeviceMemory,
    Figure,
    Figures,
    Origin,
    ProbeReport,
    Rates,
    Trial,
)
from potluck.types.memory import MemoryFacts, MemoryLimit
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.unit import Role

GIB = 2**30
SHARED = DeviceMemory(total_bytes=8 * GIB, free_bytes=None, is_shared=True, source="by hand")


def make_report(
    probed: ProbeReport,
    stages: StageMemory | None = None,
    threads: NodeThreads | None = None,
    limit: int | None = None,
) -> NodeReport:
    units = NodeUnits(lambda: probed, backends=BACKENDS)
    return report(
        NodeId("a" * 16),
        probed,
        units.all(),
        threads or NodeThreads(1),
        memory_limit_bytes=limit,
        address="",
        http_address=None,
        is_draining=False,
        stages=stages or StageMemory(),
        refused={},
    )


def eight_free(_: System) -> MemoryFacts:
    return MemoryFacts(
        total_bytes=16 * GIB,
        free_bytes=9 * GIB,
        reserve_bytes=GIB,
        usable=MemoryLimit(bytes=8 * GIB, reason=""),
    )


@pytest.mark.parametrize(
    ("limit", "planned", "untaken", "usable"),
    [
        (None, 0, 0, 8 * GIB),
        (None, 3 * GIB, 2 * GIB, 6 * GIB),
        (2 * GIB, 0, 0, 2 * GIB),
        (2 * GIB, GIB, 0, GIB),
        (2 * GIB, 3 * GIB, GIB, 0),
        (20 * GIB, GIB, GIB, 7 * GIB),
    ],
)
def test_usable_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, planned: int, untaken: int, usable: int
) -> None:
    monkeypatch.setattr(node_calls, "memory_facts", eight_free)
    node_report = make_report(
        hardware.report(),
        StageMemory(planned_bytes=planned, untaken_bytes=untaken),
        limit=limit,
    )
    assert node_report.units[0].usable_bytes == usable
    assert node_report.usable_bytes == usable
    assert node_report.untaken_bytes == untaken
    assert node_report.hardware.memory.free_bytes == 9 * GIB


def test_units_are_what_works_and_the_cpu_whatever_it_is_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_calls, "memory_facts", eight_free)
    board = DetectorReport(
        detector="mali", devices=(dataclasses.replace(hardware.device("soc"), memory=SHARED),)
    )
    cards = DetectorReport(detector="pci", devices=(hardware.device("one"), hardware.device("two")))
    trials = (
        Trial(device_id="cpu", backend="native", works=False, reason="wrong numbers"),
        Trial(device_id="soc", backend="b", works=True),
        Trial(device_id="one", backend="a", works=False, reason="it hung"),
        Trial(device_id="two", backend="b", works=True),
    )
    probed = hardware.report(board, cards, trials=trials)
    node_report = make_report(probed)
    assert [(unit.unit_id, unit.usable_bytes, unit.is_shared) for unit in node_report.units] == [
        ("soc/b", 8 * GIB, True),
        ("two/b", 6 * GIB, False),
        ("cpu/native", 8 * GIB, True),
    ]
    assert [(unit.backend, unit.role) for unit in node_report.units] == [
        ("b", Role.RESERVE),
        ("b", Role.RESERVE),
        ("native", Role.OUT),
    ]
    assert node_report.units[2].reason == "wrong numbers"


def test_stages_on_a_card_take_of_its_memory_what_was_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_calls, "memory_facts", eight_free)
    cards = DetectorReport(detector="pci", devices=(hardware.device("one"), hardware.device("two")))
    trials = tuple(Trial(device_id=name, backend="b", works=True) for name in ("one", "two"))
    stages = StageMemory(planned_bytes=GIB, device_bytes={UnitId("one/b"): 5 * GIB})
    node_report = make_report(hardware.report(cards, trials=trials), stages)
    assert {unit.unit_id: unit.usable_bytes for unit in node_report.units} == {
        "one/b": GIB,
        "two/b": 6 * GIB,
    }
    taken = StageMemory(device_bytes={UnitId("one/b"): 7 * GIB})
    (one, _) = make_report(hardware.report(cards, trials=trials), taken).units
    assert one.usable_bytes == 0


def test_a_node_whose_cpu_fails_serves_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "memory_facts", eight_free)
    card = DetectorReport(detector="pci", devices=(hardware.device("one"),))
    measured = Figure(value=40.0, origin=Origin.MEASURED, source="by hand")
    trials = (
        Trial(device_id="cpu", backend="native", works=False, reason="wrong numbers"),
        Trial(
            device_id="one",
            backend="b",
            works=True,
            rates=Rates(decode_tokens_per_second=measured),
        ),
    )
    node_report = make_report(hardware.report(card, trials=trials))
    assert [(unit.unit_id, unit.role) for unit in node_report.units] == [
        ("one/b", Role.SERVES),
        ("cpu/native", Role.OUT),
    ]
    assert node_report.units[0].rates.decode_tokens_per_second == measured


@pytest.mark.parametrize(
    ("requested", "core_time", "share", "num_threads", "max_threads"),
    [
        (None, 8.0, 1.0, 8, 8),
        (None, 0.1, 0.1, 1, 8),  # a tenth of a core's time, one thread
        (None, 2.5, 2.5 / 3, 3, 8),
        (None, 2.0, 1.0, 2, 8),
        (4, 2.0, 1.0, 2, 4),
        (1, 2.5, 1.0, 1, 1),
    ],
)
def test_the_share_of_core_time_and_the_threads_are_reported(
    requested: int | None, core_time: float, share: float, num_threads: int, max_threads: int
) -> None:
    threads = NodeThreads(requested, CoreWatch(lambda: limited_to(core_time)))
    units = reported_units(threads)
    assert units[CPU_UNIT].usable_share == pytest.approx(share)
    assert units[CPU_UNIT].quota_period_seconds == (None if share == 1 else 0.02)
    assert (units[CPU_UNIT].num_threads, units[CPU_UNIT].max_threads) == (num_threads, max_threads)
    assert units[UnitId("gpu/tinygrad:CL")].usable_share == 1.0


def test_a_report_follows_the_quota() -> None:
    now, core_time = 0.0, 4.0
    threads = NodeThreads(None, CoreWatch(lambda: limited_to(core_time), lambda: now))

    def reported() -> tuple[int, int, float]:
        unit = reported_units(threads)[CPU_UNIT]
        return unit.num_threads, unit.max_threads, unit.usable_share

    assert reported() == (4, 8, 1.0)
    core_time = 1.0
    assert reported() == (4, 8, 1.0), "the cores are not read for every report"
    now += WATCH_SECONDS
    assert reported() == (1, 8, 0.25), "its rates were measured with four threads"
    core_time, now = 8.0, now + WATCH_SECONDS
    assert reported() == (8, 8, 1.0)


def limited_to(core_time: float) -> UsableCores:
    return UsableCores(
        num_cores=math.ceil(core_time),
        reason="by hand",
        core_seconds_per_second=core_time,
        num_affine_cores=8,
        period_seconds=0.02,
    )


def reported_units(threads: NodeThreads) -> dict[UnitId, UnitReport]:
    gpu = Trial(device_id="gpu", backend="tinygrad:CL", works=True)
    cpu = Trial(device_id="cpu", backend="native", works=True, variants=("scalar",))
    probed = hardware.report(
        DetectorReport(detector="gpu", devices=(hardware.device("gpu"),)), trials=(cpu, gpu)
    )
    return {unit.unit_id: unit for unit in make_report(probed, threads=threads).units}


def test_figures_are_those_of_the_trial_and_of_the_device_where_it_has_none() -> None:
    measured = Figure(value=50e9, origin=Origin.MEASURED, source="read")
    table = Figure(value=200e9, origin=Origin.TABLE, source="data sheet")
    fast = Figure(value=3e12, origin=Origin.MEASURED, source="bf16")
    gpu = dataclasses.replace(
        hardware.device("gpu"),
        figures=Figures(read_bytes_per_second=table, f16_operations_per_second=table),
    )
    trial = Trial(
        device_id="gpu",
        backend="tinygrad:CL",
        works=True,
        figures=Figures(read_bytes_per_second=measured, fast_bf16_operations_per_second=fast),
    )
    cpu = Trial(device_id="cpu", backend="native", works=True, variants=("scalar",))
    probed = hardware.report(DetectorReport(detector="gpu", devices=(gpu,)), trials=(cpu, trial))
    figures = {unit.unit_id: unit.figures for unit in make_report(probed).units}
    of_gpu = figures[UnitId("gpu/tinygrad:CL")]
    assert of_gpu.read_bytes_per_second == measured
    assert of_gpu.f16_operations_per_second == table
    assert of_gpu.fast_bf16_operations_per_second == fast
    assert of_gpu.int8_operations_per_second.value is None
    assert figures[CPU_UNIT].read_bytes_per_second.value is None
