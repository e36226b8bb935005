"""Backends that work, lie, hang and crash, tried out through real child processes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines.fake_backends.behaviour import CALLS, device, spec
from support.processes.waiting import done_within

from potluck.host.child import ChildOutcome, run_child
from potluck.probe.cache import ProbeCache
from potluck.probe.trials import running
from potluck.probe.trials.measuring import measure_backend
from potluck.probe.trials.running import is_tried_on, try_backend
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.hardware import Device, Trial
from potluck.types.unit import Interface

TESTS = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path) -> ProbeCache:
    return ProbeCache(tmp_path / "probe.json")


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What the fakes were asked so far: the command and what follows device and interface."""
    path = tmp_path / "calls"
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent / 'src'}:{TESTS}")
    monkeypatch.setenv(CALLS, str(path))

    def read() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [" ".join([words[0], *words[3:]]) for words in map(str.split, lines)]

    return read


def trial_of(
    name: str,
    cache: ProbeCache,
    *,
    on: Device | None = None,
    retry: bool = False,
    deadline_seconds: float = 20.0,
) -> Trial:
    return try_backend(
        spec(name),
        on or device(),
        cache=cache,
        retry=retry,
        deadline_seconds=deadline_seconds,
    )


def test_a_backend_that_works(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    trial = trial_of("works", cache)
    assert trial == Trial(
        device_id="pci-0000:01:00.0", backend="works", works=True, variants=("slow", "fast")
    )
    assert trial.unit_id == "pci-0000:01:00.0/works"
    assert trial_of("works", cache) == trial
    assert calls() == ["self-test"]


@pytest.mark.slow
def test_what_makes_a_result_old(
    cache: ProbeCache, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial_of("works", cache)
    system, name, _, *rest = os.uname()
    with monkeypatch.context() as patched:
        patched.setattr(os, "uname", lambda: os.uname_result((system, name, "another", *rest)))
        trial_of("works", cache)
    trial_of("works", cache, on=device(driver_version="560"))
    trial_of("works", cache, on=device("pci-0000:02:00.0"))
    trial_of("works", cache, retry=True)
    assert len(calls()) == 5
    trial_of("works", cache)
    assert len(calls()) == 5


def test_a_liar_is_caught(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    trial = trial_of("lies_throughout", cache)
    assert not trial.works
    assert trial.variants == ()
    assert trial.reason.startswith("zeros: wrong numbers: the q8_0 product[0][0] is 0, but ")
    assert trial_of("lies_throughout", cache) == trial
    assert len(calls()) == 1


@pytest.mark.slow
def test_variants_that_lie_are_named_and_the_others_stay(cache: ProbeCache) -> None:
    trial = trial_of("lies", cache)
    assert trial.works
    assert trial.variants == ("b",)
    assert "a: wrong numbers: the q4_0 product[10][40] is " in trial.reason
    assert "c: wrong numbers: the softmax[20][0] is 0.03125, but " in trial.reason


@pytest.mark.slow
def test_a_backend_that_hangs(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    with done_within(5):
        trial = trial_of("hangs", cache, deadline_seconds=1)
        again = trial_of("hangs", cache, deadline_seconds=1)
    assert not trial.works
    assert trial.reason == "did not respond within 1 s"
    assert again.reason == (
        "not tried again: did not respond within 1 s (retry with potluck probe --retry)"
    )
    assert len(calls()) == 1


@pytest.mark.slow
def test_a_backend_that_had_little_time_is_tried_again_with_more(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    for seconds, num_calls in ((2.0, 1), (3.6, 1), (4.4, 2), (2.0, 2)):
        assert not trial_of("hangs", cache, deadline_seconds=seconds).works
        assert len(calls()) == num_calls


@pytest.mark.slow
def test_variants_share_the_time_that_a_crash_has_left(
    cache: ProbeCache, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []

    def noted(*arguments: Any, deadline_seconds: float, **how: Any) -> ChildOutcome:
        deadlines.append(deadline_seconds)
        return run_child(*arguments, deadline_seconds=deadline_seconds, **how)

    monkeypatch.setattr(running, "run_child", noted)
    trial = trial_of("hangs_after_a_crash", cache, deadline_seconds=6.0)
    assert sum(deadlines[2:]) < 6.0
    assert not trial.works
    assert trial.reason == "was killed by SIGILL"
    assert calls() == ["self-test", "variants", *(f"self-test {name}" for name in ("a", "b", "c"))]


@pytest.mark.slow
def test_a_backend_that_crashes(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    assert trial_of("crashes", cache).reason == "was killed by SIGSEGV"
    assert calls() == ["self-test", "variants"]  # and it does not live to say its variants
    for _ in range(2):
        trial = trial_of("crashes", cache)
        assert trial.reason == (
            "not tried again: was killed by SIGSEGV (retry with potluck probe --retry)"
        )
    assert len(calls()) == 2
    assert trial_of("crashes", cache, retry=True).reason == "was killed by SIGSEGV"
    assert len(calls()) == 4
    assert trial_of("crashes", cache, on=device(driver_version="560")).reason == (
        "was killed by SIGSEGV"
    )


@pytest.mark.slow
def test_one_variant_that_crashes_does_not_take_the_others_with_it(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    trial = trial_of("crashes_in_one_variant", cache)
    assert trial.works
    assert trial.variants == ("plain", "good")
    assert trial.reason == "bad: was killed by SIGILL"
    assert calls() == [
        "self-test",
        "variants",
        "self-test plain",
        "self-test bad",
        "self-test good",
    ]
    assert trial_of("crashes_in_one_variant", cache) == trial
    assert len(calls()) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refuses", "libvendor.so.1 is not installed"),
        ("raises", "exited with code 1: KeyError: 'device'"),
    ],
)
def test_what_may_be_cured_is_tried_every_time(
    name: str, reason: str, cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    for _ in range(2):
        trial = trial_of(name, cache)
        assert not trial.works
        assert trial.reason == reason
    assert len(calls()) == 2


@pytest.mark.slow
def test_a_failure_ends_what_was_known(cache: ProbeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial_of("moody", cache).works
    monkeypatch.setenv("FAKE_BACKEND_MOOD", "bad")
    assert trial_of("moody", cache).works  # not asked
    assert not trial_of("moody", cache, retry=True).works
    assert not trial_of("moody", cache).works
    monkeypatch.delenv("FAKE_BACKEND_MOOD")
    assert trial_of("moody", cache).works


def test_a_device_with_a_problem_is_not_touched(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    trial = trial_of("works", cache, on=device(problem="no permission for /dev/nvidia0"))
    assert not trial.works
    assert trial.reason == "no permission for /dev/nvidia0"
    assert calls() == []


@pytest.mark.slow
def test_a_backend_whose_package_is_not_installed_costs_no_process(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    """And as soon as it is there the backend is tried."""
    packages = ("pytest", "no-such-package")
    lacking = replace(spec("works"), packages=packages, extra="gpu")
    trial = try_backend(lacking, device(), cache=cache)
    assert not trial.works
    assert trial.reason == "no-such-package is not installed: pip install 'potluck[gpu]'"
    assert calls() == []
    there = replace(lacking, packages=("pytest",))
    assert try_backend(there, device(), cache=cache).works


@pytest.mark.slow
def test_without_a_cache(calls: Callable[[], list[str]]) -> None:
    cache = ProbeCache(None)
    assert trial_of("works", cache).works
    assert trial_of("works", cache).works
    assert len(calls()) == 2


@pytest.mark.slow
def test_a_cache_that_was_tampered_with_proves_nothing(
    tmp_path: Path, cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    trial_of("lies_throughout", cache)
    path = tmp_path / "probe.json"
    path.write_text(path.read_text().replace('"works": false', '"works": true'))
    assert not trial_of("lies_throughout", cache).works
    assert len(calls()) == 2


def test_which_devices_a_backend_is_for() -> None:
    def for_(kind: DeviceKind, *makes: str) -> BackendSpec:
        return BackendSpec(name="x", module="x", kinds=frozenset({kind}), makes=frozenset(makes))

    assert is_tried_on(for_(DeviceKind.GPU), device())
    assert is_tried_on(for_(DeviceKind.GPU, "AMD", "NVIDIA"), device())
    assert not is_tried_on(for_(DeviceKind.GPU, "AMD"), device())
    assert not is_tried_on(for_(DeviceKind.CPU), device())


def test_a_backend_needs_its_interface_and_leave_to_use_software() -> None:
    cuda = Interface(api="cuda", address="")
    for_cuda = spec("x", api="cuda")
    assert is_tried_on(for_cuda, device(interfaces=(cuda,)))
    assert not is_tried_on(for_cuda, device())
    played = device(interfaces=(cuda,), is_software=True)
    for backend, on in ((for_cuda, played), (spec("x", is_software=True), device())):
        assert not is_tried_on(backend, on)
        assert is_tried_on(backend, on, allow_software=True)
        assert is_tried_on(backend, on, requested_backend="x")
        assert not is_tried_on(backend, on, requested_backend="y")
    assert not is_tried_on(for_cuda, device(), allow_software=True, requested_backend="x")


BAD, GOOD, GOOD_TOO = (
    Interface(api="fake", address=address, description="driver 1")
    for address in ("bad", "good", "good too")
)


def through(cache: ProbeCache, *interfaces: Interface) -> Trial:
    return try_backend(
        spec("works_through_good", api="fake"),
        device(interfaces=interfaces),
        cache=cache,
        deadline_seconds=20.0,
    )


@pytest.mark.slow
def test_each_interface_is_tried_until_one_works(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    trial = through(cache, BAD, GOOD, GOOD_TOO)
    assert trial.works
    assert trial.interface == GOOD
    assert trial.reason == "through bad: was killed by SIGSEGV"
    assert calls() == ["self-test", "variants", "self-test"]
    again = through(cache, BAD, GOOD, GOOD_TOO)
    assert (again.interface, again.variants) == (GOOD, ("only",))
    assert len(calls()) == 3
    measured = measure_backend(
        spec("works_through_good", api="fake"),
        device(),
        trial,
        num_threads=1,
        cache=cache,
    )
    assert measured.figures.read_bytes_per_second.source == "good"
    assert measured.interface == GOOD


@pytest.mark.slow
def test_no_interface_works(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    trial = through(cache, BAD, GOOD_TOO)
    assert not trial.works
    assert trial.interface == BAD
    reason = "was killed by SIGSEGV"
    assert trial.reason == f"through bad: {reason}; through good too: {reason}"
    assert through(cache, BAD).reason.startswith("not tried again: ")
    newer = dataclasses.replace(BAD, description="driver 2")
    assert through(cache, newer).reason == reason
    assert through(cache).reason == "the device has no fake interface"
    assert len(calls()) == 6
