"""What agents tell of their hardware: the CPU at once, the rest as it becomes known."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import threading
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.engines.fake_backends.behaviour import device, spec
from support.processes.hidden_modules import REASON, hide_core
from support.processes.waiting import eventually, until

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.coordinator.survey import gather_reports
from potluck.cluster.network.membership import Address
from potluck.cluster.network.trust.secret import generate_secret, parse_secret
from potluck.host.system import System
from potluck.host.uname import host_name
from potluck.probe.detector import Detector
from potluck.types.backend import DeviceKind
from potluck.types.cluster import UnitId
from potluck.types.hardware import DetectorReport
from potluck.types.node import NodeReport, UnitReport
from potluck.types.unit import Role

ROOT = Path(__file__).parents[2]
FIGURES_SECONDS = 30.0
"""Measuring takes two, and waits while another test's agent measures."""


def own_hardware(agent: AgentProcess) -> dict[str, Any]:
    """Through ``/cluster``: the roles of units by id, and how fast each device's units read."""
    with urllib.request.urlopen(f"{agent.url}/cluster", timeout=60) as answer:
        (node,) = json.load(answer)["nodes"]
    trials = node["hardware"]["trials"]
    return {
        "units": {unit["unit_id"]: unit["role"] for unit in node["units"]},
        "devices": [
            each["device_id"]
            for detector in node["hardware"]["detectors"]
            for each in detector["devices"]
        ],
        "rates": [trial["figures"]["read_bytes_per_second"]["value"] for trial in trials],
    }


def test_a_new_node_has_its_cpu_at_once_and_figures_later(fleet: Fleet, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    agent = fleet.start(0, environ=home).await_up()
    first = own_hardware(agent)
    assert first["units"] == {"cpu/native": "serves"}
    assert first["devices"][0] == "cpu"
    assert first["rates"][0] is None  # it is up long before it has measured

    def is_measured() -> bool:
        return own_hardware(agent)["rates"][0] is not None

    eventually(is_measured, within=FIGURES_SECONDS, what="the CPU is measured")
    rate = own_hardware(agent)["rates"][0]
    assert 1e7 < rate < 1e12
    listed = agent.command_line("ps")
    assert listed.returncode == 0
    (line,) = (line for line in listed.stdout.splitlines() if " has " in line)
    assert line.startswith(f"{host_name()} has ")
    shown = re.search(r", reads ([\d.]+) ([MG])B/s$", line)
    assert shown is not None
    assert float(shown[1]) * {"M": 1e6, "G": 1e9}[shown[2]] == pytest.approx(rate, rel=0.01)
    agent.end()
    again = fleet.start(0, environ=home).await_up()
    assert own_hardware(again)["rates"] == [rate]


def test_a_node_whose_core_cannot_be_loaded_takes_part_and_says_why(
    fleet: Fleet, tmp_path: Path
) -> None:
    sound = fleet.start(0).await_up()
    path = f"{hide_core(tmp_path / 'site')}:{ROOT / 'src'}"
    others = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    broken = fleet.start(1, join=sound, environ=others).await_up()
    fleet.await_members()
    nodes = {node["node_id"]: node for node in sound.cluster()["nodes"]}
    (unit,) = nodes[broken.node_id]["units"]
    assert (unit["unit_id"], unit["role"], unit["reason"]) == ("cpu/native", "out", REASON)
    plan = sound.command_line("plan", "demo")
    assert plan.returncode == 0, plan.stderr
    assert f"not used: {broken.node_id} cpu/native: {REASON}" in plan.stdout.splitlines()
    refused = broken.command_line("plan", "demo")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (1, f"potluck: {REASON}")
    listed = broken.command_line("ps").stdout
    assert f", unused: native: {REASON}" in listed


@asynccontextmanager
async def an_agent(
    directory: Path, *detectors: Detector, gpu_backend: str = "works"
) -> AsyncIterator[Agent]:
    native, gpu = spec("works"), spec(gpu_backend)
    config = AgentConfig(
        secret=parse_secret(generate_secret()),
        listen=Address(host="127.0.0.1", port=0),
        num_threads=1,
        backends=(
            dataclasses.replace(native, name="native", kinds=frozenset({DeviceKind.CPU})),
            dataclasses.replace(gpu, name="gpu", kinds=frozenset({DeviceKind.GPU})),
        ),
        detectors=detectors,
    )
    state = StateDirectory(directory)
    with state.locked():
        async with Agent.open(config, state) as agent:
            yield agent


async def report_of(agent: Agent) -> NodeReport:
    (report,), silent = await gather_reports(agent.membership)
    assert silent == []
    return report


def a_detector(name: str, before: Callable[[], object] = lambda: None) -> Detector:
    def find(_: System) -> DetectorReport:
        before()
        return DetectorReport(detector=name, devices=(device(f"of-{name}"),))

    return Detector(name=name, find=find)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets children find the fake backends, and keeps what they did from other tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("fakes")
def test_a_gpu_that_is_slow_to_be_found_becomes_a_unit_with_its_own_memory(tmp_path: Path) -> None:
    may_find = threading.Event()

    async def run() -> None:
        detectors = (a_detector("slow", may_find.wait), a_detector("quick"))
        async with an_agent(tmp_path / "state", *detectors) as agent:

            def found() -> list[str]:
                return [each.device_id for each in agent.hardware.report.devices]

            await until(lambda: "of-quick" in found(), what="a device is found")
            report = await report_of(agent)
            assert [each.device_id for each in report.hardware.devices] == ["cpu", "of-quick"]
            assert not report.hardware.is_complete
            may_find.set()
            await until(lambda: "of-slow" in found(), what="the slow device is found")
            # Then both are tried: OpenCL may have shown a third.
            await until(lambda: agent.hardware.report.is_complete, what="both are tried")
            report = await report_of(agent)
            assert [detector.detector for detector in report.hardware.detectors] == [
                "cpu",
                "slow",
                "quick",
            ]
            cpu, *gpus = report.units
            assert cpu.is_shared
            assert cpu.usable_bytes <= report.available_bytes
            assert gpus == [
                UnitReport(
                    unit_id=UnitId(f"of-{name}/gpu"),
                    backend="gpu",
                    description="RTX 4090",
                    usable_bytes=8 << 30,
                    is_shared=False,
                    num_threads=1,
                    max_threads=1,
                    role=Role.RESERVE,
                    reason="not measured yet",
                )
                for name in ("quick", "slow")
            ]

    try:
        asyncio.run(run())
    finally:
        may_find.set()


@pytest.mark.usefixtures("fakes")
def test_a_gpu_that_does_not_work_is_listed_and_is_no_unit(tmp_path: Path) -> None:
    async def run() -> NodeReport:
        async with an_agent(tmp_path / "state", a_detector("bad"), gpu_backend="crashes") as agent:
            await until(lambda: agent.hardware.report.is_complete, within=20)
            return await report_of(agent)

    report = asyncio.run(run())
    assert [unit.unit_id for unit in report.units] == ["cpu/native"]
    assert [each.device_id for each in report.hardware.devices] == ["cpu", "of-bad"]
    reasons = {trial.unit_id: trial.reason for trial in report.hardware.trials}
    assert reasons == {"cpu/native": "", "of-bad/gpu": "was killed by SIGSEGV"}
