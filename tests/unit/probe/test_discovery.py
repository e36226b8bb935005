"""Asking a vendor's library through a child."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.engines.fake_backends.behaviour import CALLS, device

from potluck.host.child import ChildAnswer, ChildFailure, ChildOutcome, Failure
from potluck.host.system import THIS_MACHINE
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.discovery import DeviceDiscovery
from potluck.types.hardware import DetectorReport

TESTS = Path(__file__).parents[2]
REPORT = DetectorReport(detector="nvidia", devices=(device(),))


def ask(
    module: str,
    cache: ProbeCache,
    *,
    report: DetectorReport = REPORT,
    retry: bool = False,
    **more: Any,
) -> ChildOutcome:
    query = VendorQuery(
        module=f"support.engines.fake_backends.{module}", merge=lambda report, _: report, **more
    )
    return ask_vendor(query, report, cache=cache, retry=retry)


def ask_vendor(
    query: VendorQuery, report: DetectorReport, *, cache: ProbeCache, retry: bool = False
) -> ChildOutcome:
    """Return the outcome of a detector's only query."""
    outcomes: list[ChildOutcome] = []

    def merge(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
        outcomes.append(outcome)
        return report

    telling = dataclasses.replace(query, merge=merge)
    detector = Detector(name="nvidia", find=lambda _: report, queries=lambda *_: (telling,))
    discovery = DeviceDiscovery(
        system=THIS_MACHINE, cache=cache, retry=retry, end=time.monotonic() + 25
    )
    assert discovery.ask(detector, report) == report
    (outcome,) = outcomes
    return outcome


def failure(outcome: ChildOutcome) -> Failure | None:
    return outcome.failure if isinstance(outcome, ChildFailure) else None


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(CALLS, str(path))
    return path


def num_calls(calls: Path) -> int:
    return len(calls.read_text().split("\n")) - 1


@pytest.mark.slow
def test_an_answer_and_a_refusal_are_not_kept(tmp_path: Path, calls: Path) -> None:
    cache = ProbeCache(tmp_path / "c")
    for _ in range(2):
        assert isinstance(ask("lies_throughout", cache), ChildAnswer)
    for _ in range(2):
        refusal = ask("refuses", cache)
        assert isinstance(refusal, ChildFailure)
        assert refusal.failure is Failure.REFUSED
        assert refusal.reason == "libvendor.so.1 is not installed"
    assert num_calls(calls) == 4


def test_what_a_child_is_given(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "telling.py").write_text(
        "import json, os, sys\n"
        "print(json.dumps({'said': [*sys.argv[1:], os.environ['A'], os.environ['B']]}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{TESTS}")
    monkeypatch.setenv("A", "of this process")
    monkeypatch.setenv("B", "of this process")
    query = VendorQuery(
        module="telling",
        merge=lambda report, _: report,
        arguments=("x", "y"),
        environment={"B": "of the query"},
    )
    outcome = ask_vendor(query, REPORT, cache=ProbeCache(None))
    assert isinstance(outcome, ChildAnswer)
    assert outcome.document == {"said": ["x", "y", "of this process", "of the query"]}


@pytest.mark.slow
def test_a_crash_is_met_once(tmp_path: Path, calls: Path) -> None:
    cache = ProbeCache(tmp_path / "c")
    newer = DetectorReport(detector="nvidia", devices=(device(driver_version="560"),))
    assert failure(ask("crashes", cache)) is Failure.CRASHED
    again = ask("crashes", cache)
    assert isinstance(again, ChildFailure)
    assert again.failure is Failure.QUARANTINED
    assert (
        again.reason == "not tried again: was killed by SIGSEGV (retry with potluck probe --retry)"
    )
    assert failure(ask("crashes", cache, report=newer)) is Failure.CRASHED
    assert failure(ask("crashes", cache, arguments=("other",))) is Failure.CRASHED
    assert failure(ask("crashes", cache, details=("changed",))) is Failure.CRASHED
    assert failure(ask("crashes", cache, retry=True)) is Failure.CRASHED
    assert num_calls(calls) == 5


def test_a_device_that_behaves_again_is_forgiven(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``moody`` crashes while a file is there."""
    (tmp_path / "moody.py").write_text(
        "import os, pathlib\n"
        f"if pathlib.Path({str(tmp_path / 'angry')!r}).exists(): os.abort()\n"
        "print('{}')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{TESTS}")
    (tmp_path / "angry").touch()
    cache = ProbeCache(tmp_path / "c")
    query = VendorQuery(module="moody", merge=lambda report, _: report)
    failures = []
    for retry in (False, False, True, False):
        outcome = ask_vendor(query, REPORT, cache=cache, retry=retry)
        failures.append(failure(outcome))
        if len(failures) == 2:
            (tmp_path / "angry").unlink()
    assert failures == [Failure.CRASHED, Failure.QUARANTINED, None, None]
