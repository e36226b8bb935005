"""Units that worked, tested again; the backends are those of ``support.engines.fake_backends``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines.fake_backends.behaviour import device, spec

from potluck.host.child import ChildAnswer, ChildOutcome
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.quarantine import is_quarantined, quarantine, run_unless_quarantined
from potluck.probe.trials.running import (
    Retest,
    retest,
    trial_key,
    try_backend,
)
from potluck.types.hardware import Trial
from potluck.types.unit import Fault

DEVICE = device()


@pytest.fixture(autouse=True)
def _fakes_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def passed(name: str) -> Trial:
    return Trial(device_id=DEVICE.device_id, backend=name, works=True, variants=("fast",))


def again(name: str, *, deadline_seconds: float = 20) -> Retest:
    return retest(
        spec(name),
        DEVICE,
        passed(name),
        cache=ProbeCache(None),
        deadline_seconds=deadline_seconds,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "problem"),
    [
        ("works", None, ""),
        ("lies_throughout", Fault.WRONG, "wrong numbers"),
        ("crashes", Fault.DRIVER, "SIGSEGV"),
        ("refuses", None, "libvendor.so.1 is not installed"),
        ("raises", None, "KeyError"),
    ],
)
def test_what_a_test_shows_of_a_unit(name: str, fault: Fault | None, problem: str) -> None:
    result = again(name)
    assert result.fault is fault
    assert bool(result.problem) == bool(problem)
    assert problem in result.problem


def test_one_that_hangs() -> None:
    result = again("hangs", deadline_seconds=0.3)
    assert result.fault is Fault.HUNG


@pytest.mark.slow
def test_a_quarantine_lasts_until_somebody_tries(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path / "probe.json")

    def trial(*, retry: bool = False) -> Trial:
        return try_backend(spec("works"), DEVICE, cache=cache, retry=retry)

    def condemned() -> bool:
        return is_quarantined(cache, trial_key(spec("works"), DEVICE, None))

    assert trial().works
    assert not condemned()
    quarantine(cache, trial_key(spec("works"), DEVICE, None), "hung")
    assert condemned()
    assert trial().reason == "not tried again: hung (retry with potluck probe --retry)"
    assert trial(retry=True).works
    assert not condemned()
    assert trial().works


@pytest.mark.parametrize("retry", [False, True])
def test_a_test_that_began_before_the_fault_ends_no_quarantine(
    tmp_path: Path, *, retry: bool
) -> None:
    cache = ProbeCache(tmp_path / "probe.json")

    def passes_while_the_unit_fails_in_use() -> ChildOutcome:
        quarantine(cache, "trial/works/1", "hung")
        return ChildAnswer(document={}, seconds=1)

    run_unless_quarantined(
        cache,
        "trial/works/1",
        passes_while_the_unit_fails_in_use,
        retry=retry,
        deadline_seconds=20,
    )
    assert is_quarantined(cache, "trial/works/1") == (not retry)
