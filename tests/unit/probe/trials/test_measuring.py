"""Backends measured through real child processes, and what becomes of figures that are wrong."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines.fake_backends.behaviour import CALLS, device, spec

from potluck.probe.cache import ProbeCache
from potluck.probe.trials.measuring import cached_measurement, measure_backend
from potluck.probe.trials.running import try_backend
from potluck.types.hardware import Figure, Origin, Trial

TESTS = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path) -> ProbeCache:
    return ProbeCache(tmp_path / "probe.json")


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The commands that the fakes were given so far."""
    path = tmp_path / "calls"
    monkeypatch.setenv("PYTHONPATH", f"{TESTS.parent / 'src'}:{TESTS}")
    monkeypatch.setenv(CALLS, str(path))
    return lambda: [line.split()[0] for line in path.read_text().splitlines()]


def trial_of(name: str, cache: ProbeCache) -> Trial:
    return try_backend(spec(name), device(), cache=cache)


def measured(
    name: str,
    cache: ProbeCache,
    *,
    num_threads: int = 3,
    retry: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Trial:
    return measure_backend(
        spec(name),
        device(),
        trial_of(name, cache),
        num_threads=num_threads,
        cache=cache,
        retry=retry,
        on_progress=on_progress,
    )


@pytest.mark.slow
def test_measuring(cache: ProbeCache, calls: Callable[[], list[str]]) -> None:
    seen: list[float] = []
    trial = measured("works", cache, on_progress=seen.append)
    source = f"3 threads, {1 << 30} bytes"  # an eighth of the 8 GiB that are free
    assert trial.figures.read_bytes_per_second == Figure(
        value=5e9, origin=Origin.MEASURED, source=source
    )
    assert trial.figures.int8_operations_per_second.value == 1e12
    assert trial.figures.f32_operations_per_second == Figure()
    assert trial.rates.decode_tokens_per_second == Figure(
        value=12.5, origin=Origin.MEASURED, source=source
    )
    assert trial.rates.prefill_tokens_per_second == Figure()
    assert (trial.works, trial.variants) == (True, ("slow", "fast"))
    assert seen == [0.5]
    assert measured("works", cache) == trial
    assert len(calls()) == 2
    measured("works", cache, retry=True)
    assert len(calls()) == 3
    measured("works", cache, num_threads=4)
    assert len(calls()) == 4


@pytest.mark.slow
def test_figures_that_are_known(cache: ProbeCache) -> None:
    trial = trial_of("works", cache)

    def known(num_threads: int) -> Trial | None:
        return cached_measurement(
            spec("works"),
            device(),
            trial,
            num_threads=num_threads,
            cache=cache,
        )

    assert known(3) is None
    now = measured("works", cache)
    assert known(3) == now
    assert known(2) is None


def test_what_does_not_work_is_not_measured(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    trial = measured("refuses", cache)
    assert not trial.works
    assert calls() == ["self-test"]
    assert cached_measurement(spec("refuses"), device(), trial, num_threads=3, cache=cache) is None


@pytest.mark.slow
def test_figures_that_make_no_sense_are_not_taken(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    for num_measurements in (1, 2):
        trial = measured("measures_badly", cache)
        assert trial.works
        assert trial.figures.read_bytes_per_second == Figure(
            source="measuring failed: its figures are not all positive numbers with sources"
        )
        assert trial.rates.decode_tokens_per_second == trial.figures.read_bytes_per_second
        assert len(calls()) == 1 + num_measurements


@pytest.mark.slow
def test_a_crash_while_measuring_is_met_once(
    cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    first, second = measured("crashes_in_measuring", cache), measured("crashes_in_measuring", cache)
    assert first.works
    assert second.works
    assert first.figures.f32_operations_per_second.source == (
        "measuring failed: was killed by SIGBUS"
    )
    assert second.figures.f32_operations_per_second.source == (
        "measuring failed: not tried again: was killed by SIGBUS (retry with potluck probe --retry)"
    )
    assert len(calls()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("retry", [False, True])
def test_processes_that_measure_at_once_measure_once(
    tmp_path: Path, cache: ProbeCache, calls: Callable[[], list[str]], retry: bool
) -> None:
    trial_of("works", cache)
    code = f"""
from support.engines.fake_backends.behaviour import device, spec
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.measuring import measure_backend
from potluck.probe.trials.running import try_backend
from pathlib import Path
cache = ProbeCache(Path({str(tmp_path / "probe.json")!r}))
trial = try_backend(spec("works"), device(), cache=cache)
print("ready", flush=True)
input()
trial = measure_backend(spec("works"), device(), trial, num_threads=3,
                        cache=cache, retry={retry})
print(trial.figures.read_bytes_per_second.value)
"""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.communicate()[0] for process in processes] == ["5000000000.0\n"] * 3
    assert len([call for call in calls() if call.startswith("measure")]) == 1


@pytest.mark.slow
def test_figures_that_were_kept_without_rates_are_measured_anew(
    tmp_path: Path, cache: ProbeCache, calls: Callable[[], list[str]]
) -> None:
    first = measured("works", cache)
    path = tmp_path / "probe.json"
    path.write_text(path.read_text().replace('"rates"', '"races"'))
    assert measured("works", cache) == first
    assert len(calls()) == 3
