"""Step times from workers to the state directory and back, whatever lies or is said there."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.engines.pools import cores_of
from support.machines import hardware
from support.virtual_time.run import ManualClock, reach, run_in_virtual_time

from potluck.cluster.agent import measured_speeds
from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.wire.worker_messages import Stats
from potluck.engines.backends import BACKENDS
from potluck.host.cores import CoreWatch, UsableCores
from potluck.types.groups import GroupPart
from potluck.types.hardware import Trial
from potluck.types.node import CPU_UNIT
from potluck.types.speed import StepTime

TIME = StepTime(
    num_layers=4,
    has_embedding=True,
    has_head=False,
    num_sequences=1,
    num_tokens=1,
    context_tokens=64,
    seconds=0.01,
    num_samples=9,
    age_seconds=1.0,
)


def units(isa: str | None = None) -> NodeUnits:
    trial = Trial(device_id="cpu", backend="native", works=True, variants=("scalar", "avx2"))
    report = hardware.report(trials=(trial,))
    return NodeUnits(lambda: report, backends=BACKENDS, isa=isa)


def speeds(
    folder: Path, clock: ManualClock, *, isa: str | None = None, cores: CoreWatch | None = None
) -> MeasuredSpeeds:
    threads = NodeThreads(1, cores or CoreWatch(lambda: cores_of(1)))
    return MeasuredSpeeds(folder / "step-times.json", units(isa), threads, clock=clock)


def tenth_of_a_core() -> UsableCores:
    return dataclasses.replace(cores_of(1), core_seconds_per_second=0.1)


def stage(model_shape: str = "shape", part: GroupPart | None = None) -> HostedStage:
    return HostedStage(
        worker=cast(Any, None),
        requested=cast(Any, SimpleNamespace(unit_id=CPU_UNIT, shard=SimpleNamespace(part=part))),
        loaded=cast(Any, SimpleNamespace(model_shape=model_shape)),
    )


def says(*times: StepTime) -> Stats:
    return Stats(
        num_steps=1,
        num_tokens=1,
        compute_seconds=1.0,
        send_seconds=0.0,
        num_sent_bytes=0,
        resident_bytes=0,
        step_times=times,
    )


def test_what_was_measured_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000.0)
    first = speeds(tmp_path, clock)
    first.record(stage(), says(TIME))
    assert first.of("shape") == {CPU_UNIT: (TIME,)}
    first.close()
    file = tmp_path / "step-times.json"
    assert file.stat().st_mode & 0o777 == 0o600
    clock.now += 9.0
    second = speeds(tmp_path, clock)
    assert second.of("shape") == {CPU_UNIT: (dataclasses.replace(TIME, age_seconds=10.0),)}
    assert second.of("another") == {}
    written = file.stat().st_mtime_ns
    second.close()
    assert file.stat().st_mtime_ns == written, "nothing is new"


def test_what_a_member_of_a_group_measures_says_nothing_of_the_unit(tmp_path: Path) -> None:
    known = speeds(tmp_path, ManualClock(1_800_000_000.0))
    known.record(stage(part=GroupPart(member=0, shares=(1, 1))), says(TIME))
    assert known.of("shape") == {}


def test_another_instruction_set_or_fewer_cores_are_other_conditions(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1_800_000_000.0)
    first = speeds(tmp_path, clock)
    first.record(stage(), says(TIME))
    first.close()
    assert speeds(tmp_path, clock).of("shape")
    assert not speeds(tmp_path, clock, isa="scalar").of("shape")
    assert not speeds(tmp_path, clock, cores=CoreWatch(tenth_of_a_core)).of("shape")


def test_a_measurement_is_taken_once(tmp_path: Path) -> None:
    clock, hosted, cores = ManualClock(1_800_000_000.0), stage(), cores_of(1)
    known = speeds(tmp_path, clock, cores=CoreWatch(lambda: cores, clock))
    known.record(hosted, says(TIME))
    # Without new steps its time only grows older; under other conditions it was not measured.
    cores = tenth_of_a_core()
    clock.now += 10
    known.record(hosted, says(dataclasses.replace(TIME, age_seconds=11.0)))
    assert known.of("shape") == {}
    known.record(hosted, says(dataclasses.replace(TIME, seconds=0.1, age_seconds=-0.0)))
    clock.now += 1
    known.record(hosted, says(dataclasses.replace(TIME, seconds=0.1, age_seconds=0.1)))
    assert [each.seconds for each in known.of("shape")[CPU_UNIT]] == [0.1]


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0", b'{"schema"', b"x" * 10_000_000, None], ids=range(5)
)
def test_a_file_that_makes_no_sense_costs_one_line_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    file = tmp_path / "step-times.json"
    if content is None:
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(content)
    known = speeds(tmp_path, ManualClock(1_800_000_000.0))
    assert len(caplog.records) == 1
    assert "step-times.json: " in caplog.text
    known.record(stage(), says(TIME))
    known.close()
    assert len(caplog.records) == 1
    assert speeds(tmp_path, ManualClock(1_800_000_000.0)).of("shape")


def test_a_file_that_cannot_be_written_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = speeds(tmp_path / "gone", ManualClock(1_800_000_000.0))
    known.record(stage(), says(TIME))
    known.close()
    assert len(caplog.records) == 1
    assert "cannot write " in caplog.text
    assert "No such file or directory" in caplog.text


def test_a_worker_that_says_nonsense_costs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, hosted = ManualClock(1_800_000_000.0), stage()
    known = speeds(tmp_path, clock)
    wrong = dataclasses.replace(TIME, seconds=-1.0)
    for _ in range(5):
        clock.now += 10
        known.record(hosted, says(wrong, wrong, TIME))
    assert [each.message for each in caplog.records] == [
        "ignored 2 implausible step times from the worker of cpu/native"
    ]
    assert known.of("shape") == {CPU_UNIT: (TIME,)}
    known.record(stage(""), says(TIME))
    known.record(stage("other"), says())
    assert known.of("") == known.of("other") == {}


def collect(known: MeasuredSpeeds, clock: ManualClock, passing: Sequence[float]) -> None:
    """Let ``known`` collect so often, with as many seconds passing before each answer."""
    hosted, left = stage(), list(passing)

    async def answer() -> None:
        clock.now += left.pop(0) if left else 10
        known.record(hosted, says(TIME))

    async def run() -> None:
        running = asyncio.ensure_future(known.run(answer))
        await reach(lambda: not left, what="it has collected so often")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_in_virtual_time(run())


def test_workers_are_asked_again_and_again_and_the_file_is_written_while_they_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_speeds, "COLLECT_SECONDS", 0.01)
    clock = ManualClock(1_800_000_000.0)
    collect(speeds(tmp_path, clock), clock, [10] * 5)
    assert speeds(tmp_path, clock).of("shape")


def test_the_file_is_written_again_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_speeds, "COLLECT_SECONDS", 0.01)
    clock = ManualClock(1_800_000_000.0)
    known = speeds(tmp_path, clock)
    written: list[float] = []
    monkeypatch.setattr(known, "_write", lambda document: written.append(clock.now))
    collect(known, clock, [10, 10, -1e9, 10, 10])
    assert written == [1_800_000_010.0, 800_000_020.0]
