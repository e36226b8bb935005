"""The native backend on this machine's CPU, tried and measured as a node does it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from potluck.engines.backends import BACKENDS
from potluck.engines.native.engine import available_isas
from potluck.host.child import ChildAnswer, ChildFailure, Failure, run_child
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.measuring import cached_measurement, measure_backend
from potluck.probe.trials.running import is_tried_on, try_backend
from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device, DeviceMemory, Origin

NATIVE = BACKENDS[0]
CPU = Device(
    device_id="cpu",
    kind=DeviceKind.CPU,
    make="",
    name="a CPU",
    reported_name="a CPU",
    chip="cpu",
    driver="",
    device_files=(),
    memory=DeviceMemory(total_bytes=4 << 30, free_bytes=2 << 30, is_shared=True, source="a test"),
)


@pytest.fixture
def cache(tmp_path: Path) -> ProbeCache:
    return ProbeCache(tmp_path / "probe.json")


def test_every_instruction_set_of_this_cpu_passes(cache: ProbeCache) -> None:
    assert is_tried_on(NATIVE, CPU)
    trial = try_backend(NATIVE, CPU, cache=cache)
    assert trial.works
    assert trial.reason == ""
    assert trial.variants == available_isas()
    assert trial.unit_id == "cpu/native"


def test_one_instruction_set_alone() -> None:
    outcome = run_child(
        NATIVE.module,
        ("self-test", "cpu", "-", "scalar"),
        deadline_seconds=30,
        max_resident_bytes=1 << 30,
    )
    assert isinstance(outcome, ChildAnswer)
    assert list(outcome.document) == ["results"]
    assert list(outcome.document["results"]) == ["scalar"]  # type: ignore[call-overload]


def test_the_variants_are_told() -> None:
    outcome = run_child(
        NATIVE.module, ("variants", "cpu", "-"), deadline_seconds=30, max_resident_bytes=1 << 30
    )
    assert isinstance(outcome, ChildAnswer)
    assert outcome.document == {"variants": list(available_isas())}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("self-test", "cpu", "-", "sparc"), "the instruction set 'sparc' is not available here"),
        (("dance", "cpu"), "unknown command: dance cpu"),
        (("measure", "cpu", "-", "scalar", "0", "1"), "threads"),
    ],
)
def test_what_it_cannot_do_it_refuses(arguments: tuple[str, ...], reason: str) -> None:
    outcome = run_child(NATIVE.module, arguments, deadline_seconds=30, max_resident_bytes=1 << 30)
    assert isinstance(outcome, ChildFailure)
    assert outcome.failure is Failure.REFUSED
    assert reason in outcome.reason


@pytest.mark.timing
def test_measuring_this_cpu(cache: ProbeCache) -> None:
    trial = try_backend(NATIVE, CPU, cache=cache)
    seen: list[float] = []
    started = time.monotonic()
    measured = measure_backend(
        NATIVE,
        CPU,
        trial,
        num_threads=2,
        cache=cache,
        on_progress=seen.append,
    )
    seconds = time.monotonic() - started
    # Under 2 s on a machine that has nothing else to do, which tests cannot ask for.
    assert seconds < 8
    figures = measured.figures
    isa = trial.variants[-1]
    for figure, source in (
        (figures.f32_operations_per_second, f"F32 matrix product, 128 tokens, 2 threads, {isa}"),
        (figures.f16_operations_per_second, f"BF16 matrix product, 128 tokens, 2 threads, {isa}"),
        (figures.int8_operations_per_second, f"Q8_0 matrix product, 128 tokens, 2 threads, {isa}"),
    ):
        assert figure.origin is Origin.MEASURED
        assert figure.source == source
        # From a tenth of a slow core without vectors to what no CPU of two threads does.
        assert figure.value is not None
        assert 1e8 < figure.value < 1e14
    read = figures.read_bytes_per_second
    assert read.source.startswith("Q8_0 matrix product, 1 token, ")
    assert "last-level cache" in read.source
    assert read.value is not None
    assert 1e8 < read.value < 1e12
    for rate, tokens in (
        (measured.rates.decode_tokens_per_second, "1 token"),
        (measured.rates.prefill_tokens_per_second, "32 tokens"),
    ):
        assert rate.origin is Origin.MEASURED
        assert rate.source == (
            f"2 layers of 2048 in Q8_0 (89.3 MiB), {tokens} at a time, 2 threads, {isa}"
        )
        # 89 M multiply-adds a token: at least what the slowest figure of above allows.
        assert rate.value is not None
        assert 1 < rate.value < 1e5
    assert seen == sorted(seen)
    assert len(seen) > 5
    assert max(b - a for a, b in itertools.pairwise([0.0, *seen])) < 0.5
    known = cached_measurement(NATIVE, CPU, trial, num_threads=2, cache=cache)
    assert known == measured


def test_little_memory_is_not_exceeded(cache: ProbeCache) -> None:
    """With 16 MiB for weights one matrix of 17 MiB is read, and one layer computes.

    The sources say so.
    """
    outcome = run_child(
        NATIVE.module,
        ("measure", "cpu", "-", available_isas()[-1], "1", str(16 << 20)),
        deadline_seconds=60,
        max_resident_bytes=256 << 20,
    )
    assert isinstance(outcome, ChildAnswer), outcome
    figures = outcome.document["figures"]
    assert isinstance(figures, dict)
    assert "17 MiB of weights" in figures["read_bytes_per_second"]["source"]
    assert "1 thread," in figures["read_bytes_per_second"]["source"]
    rates = outcome.document["rates"]
    assert isinstance(rates, dict)
    assert (
        ", extrapolated from 1 for lack of memory (44.6 MiB), "
        in (rates["decode_tokens_per_second"]["source"])
    )
