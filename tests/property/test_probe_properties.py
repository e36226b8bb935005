"""The probe ends in time and says what it knows, whatever detectors, libraries and backends do.

Children are played, so that many combinations can be; ``test_probe.py`` has real ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines.fake_backends.behaviour import device, right_results, spec
from support.processes.waiting import done_within

from potluck.host.child import ChildAnswer, ChildFailure, ChildOutcome, Failure
from potluck.host.system import THIS_MACHINE
from potluck.probe import discovery
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.probe.trials import running as trials
from potluck.types.hardware import DetectorReport, ProbeReport

DEADLINE_SECONDS = 0.2
"""Where something hangs. Where nothing does, the probe is done at once, and has time."""

FAILURES = {
    "refuses": Failure.REFUSED,
    "exits": Failure.EXITED,
    "crashes": Failure.CRASHED,
    "babbles": Failure.MALFORMED,
    "is missing": Failure.NOT_STARTED,
}
CHILDREN = st.sampled_from(["works", "lies", "hangs", "cannot be run", *FAILURES])
FINDS = st.sampled_from(["finds", "finds nothing", "raises", "hangs", "no report", "no devices"])
QUERIES = st.sampled_from(["none", "unwanted", "misread", "merged badly", "undecided"]) | CHILDREN
DETECTORS = st.lists(st.tuples(FINDS, QUERIES), max_size=3)
BACKENDS = st.lists(CHILDREN, min_size=1, max_size=3, unique=True)


def played_child(
    module: str, arguments: tuple[str, ...] = (), *, deadline_seconds: float, **_: object
) -> ChildOutcome:
    """What ``run_child`` gives for the module ``support.engines.fake_backends.BEHAVIOUR``."""
    behaviour = module.rpartition(".")[2]
    match behaviour:
        case "works":
            return ChildAnswer(document={"results": {"only": right_results()}}, seconds=0)
        case "lies":
            return ChildAnswer(document={"results": {"only": {"q8_0": 1}}}, seconds=0)
        case "hangs":
            time.sleep(deadline_seconds)
            return ChildFailure(failure=Failure.HUNG, reason="hung", seconds=deadline_seconds)
        case "cannot be run":
            raise MemoryError
    return ChildFailure(failure=FAILURES[behaviour], reason=behaviour, seconds=0)


def a_detector(number: int, find: str, query: str, over: threading.Event) -> Detector:
    name = f"detector-{number}"

    def look(_: object) -> DetectorReport:
        match find:
            case "raises":
                raise RecursionError
            case "hangs":
                over.wait()
            case "no report":
                return cast(DetectorReport, {"devices": []})
            case "no devices":
                return DetectorReport(detector=name, devices=cast(Any, None))
            case "finds":
                return DetectorReport(detector=name, devices=(device(f"of-{number}"),))
        return DetectorReport(detector=name)

    played = "works" if query in ("misread", "merged badly") else query

    def queries(*_: object) -> tuple[VendorQuery, ...]:
        if query == "undecided":
            raise IndexError
        if query in ("none", "unwanted"):
            return ()
        return (VendorQuery(module=f"support.engines.fake_backends.{played}", merge=merge),)

    def merge(report: DetectorReport, _: ChildOutcome) -> DetectorReport:
        match query:
            case "misread":
                raise KeyError("cards")
            case "merged badly":
                return cast(DetectorReport, None)
        return dataclasses.replace(report, problems=("asked",))

    return Detector(name=name, find=look, queries=queries)


@contextmanager
def played() -> Iterator[threading.Event]:
    """Until the end ``run_child`` is played, and what waits for the event goes on waiting."""
    over = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "run_child", played_child)
        patch.setattr(discovery, "run_child", played_child)
        try:
            yield over
        finally:
            over.set()


@pytest.mark.slow
@settings(max_examples=40)
@given(detectors=DETECTORS, backends=BACKENDS)
def test_a_probe_ends_in_time_with_all_that_is_known(
    detectors: Sequence[tuple[str, str]], backends: Sequence[str]
) -> None:
    reports: list[ProbeReport] = []
    hangs = "hangs" in backends or any("hangs" in how for how in detectors)
    # Finding and trying come one after the other; only one backend hangs, on all devices at once.
    with played() as over, done_within(4):
        options = ProbeOptions(
            backends=[spec(name) for name in backends],
            num_threads=1,
            deadline_seconds=DEADLINE_SECONDS if hangs else 20.0,
            trial_seconds=DEADLINE_SECONDS if hangs else 20.0,
        )
        made = [a_detector(number, *how, over) for number, how in enumerate(detectors)]
        report = probe_node(
            THIS_MACHINE, options, ProbeCache(None), detectors=made, on_report=reports.append
        )

    assert report.is_complete
    assert report == reports[-1]
    assert report.devices[0].device_id == "cpu"
    assert [trial.unit_id for trial in report.trials[: len(backends)]] == [
        f"cpu/{name}" for name in backends
    ]
    assert [each.detector for each in report.detectors] == [
        "cpu",
        *(detector.name for detector in made),
    ]

    assert reports[0].trials[0].device_id == "cpu"
    assert not any(each.is_complete for each in reports[:-1])
    for earlier, later in itertools.pairwise(reports):
        assert set(map(id_of, earlier.devices)) <= set(map(id_of, later.devices))
        assert set(earlier.trials) <= set(later.trials)

    found = [f"of-{number}" for number, (find, _) in enumerate(detectors) if find == "finds"]
    assert list(map(id_of, report.devices)) == ["cpu", *found]
    # Each backend on each device once, and no device left out because of another's trouble.
    assert [trial.unit_id for trial in report.trials] == [
        f"{each}/{name}" for each in ("cpu", *found) for name in backends
    ]
    for trial in report.trials:
        assert trial.works is not bool(trial.reason)
        assert not trial.works or trial.backend == "works"
    if not hangs:
        assert all(trial.works is (trial.backend == "works") for trial in report.trials)
        assert not any("deadline" in line for each in report.detectors for line in each.problems)
    for (find, _), each in zip(detectors, report.detectors[1:], strict=True):
        if find in ("raises", "hangs", "no report", "no devices"):
            assert each.problems


def id_of(device: Any) -> str:
    return str(device.device_id)
