"""Asking a vendor's library through a child."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from support.fake_backends.behaviour import CALLS, device

from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildAnswer, ChildFailure, ChildOutcome, Failure
from potluck.probe.layer import VendorQuery
from potluck.probe.vendor import ask_vendor
from potluck.types.hardware import LayerReport

TESTS = Path(__file__).parents[2]
REPORT = LayerReport(layer="nvidia", devices=(device(),))


class Merge:
    """Puts what it was given into the report's problems, and remembers it."""

    def __init__(self) -> None:
        self.outcomes: list[ChildOutcome] = []

    def __call__(self, report: LayerReport, outcome: ChildOutcome) -> LayerReport:
        self.outcomes.append(outcome)
        return dataclasses.replace(report, problems=("merged",))


def ask(
    module: str,
    merge: Merge,
    cache: ProbeCache,
    *,
    report: LayerReport = REPORT,
    is_wanted: bool = True,
    retry: bool = False,
) -> LayerReport:
    return ask_vendor(
        VendorQuery(
            module=f"support.fake_backends.{module}",
            is_wanted=lambda given: is_wanted and given == report,
            merge=merge,
        ),
        report,
        kernel_release="6.1.0",
        cache=cache,
        retry=retry,
        deadline_seconds=20,
    )


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(CALLS, str(path))
    return path


def num_calls(calls: Path) -> int:
    return len(calls.read_text().split("\n")) - 1


def test_nobody_is_asked_without_need(tmp_path: Path, calls: Path) -> None:
    merge = Merge()
    assert ask("refuses", merge, ProbeCache(tmp_path / "c"), is_wanted=False) is REPORT
    assert merge.outcomes == []
    assert num_calls(calls) == 0


def test_an_answer_and_a_refusal_reach_the_layer_and_are_not_kept(
    tmp_path: Path, calls: Path
) -> None:
    merge, cache = Merge(), ProbeCache(tmp_path / "c")
    assert ask("lies_throughout", merge, cache).problems == ("merged",)
    ask("lies_throughout", merge, cache)
    assert all(isinstance(outcome, ChildAnswer) for outcome in merge.outcomes)
    ask("refuses", merge, cache)
    ask("refuses", merge, cache)
    refusals = [outcome for outcome in merge.outcomes if isinstance(outcome, ChildFailure)]
    assert [(refusal.failure, refusal.reason) for refusal in refusals] == [
        (Failure.REFUSED, "libvendor.so.1 is not installed")
    ] * 2
    assert num_calls(calls) == 4


def test_a_crash_is_met_once(tmp_path: Path, calls: Path) -> None:
    merge, cache = Merge(), ProbeCache(tmp_path / "c")
    newer = LayerReport(layer="nvidia", devices=(device(driver_version="560"),))
    ask("crashes", merge, cache)
    ask("crashes", merge, cache)
    ask("crashes", merge, cache, report=newer)
    ask("crashes", merge, cache, retry=True)
    assert [outcome.failure for outcome in merge.outcomes if isinstance(outcome, ChildFailure)] == [
        Failure.CRASHED,
        Failure.QUARANTINED,
        Failure.CRASHED,
        Failure.CRASHED,
    ]
    second = merge.outcomes[1]
    assert isinstance(second, ChildFailure)
    assert second.reason == "not tried again: was killed by SIGSEGV (potluck probe --retry tries)"
    assert num_calls(calls) == 3


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
    merge, cache = Merge(), ProbeCache(tmp_path / "c")
    query = VendorQuery(module="moody", is_wanted=lambda _: True, merge=merge)
    for retry in (False, False, True, False):
        ask_vendor(query, REPORT, kernel_release="6.1.0", cache=cache, retry=retry)
        if len(merge.outcomes) == 2:
            (tmp_path / "angry").unlink()
    failures = [
        outcome.failure if isinstance(outcome, ChildFailure) else None for outcome in merge.outcomes
    ]
    assert failures == [Failure.CRASHED, Failure.QUARANTINED, None, None]
