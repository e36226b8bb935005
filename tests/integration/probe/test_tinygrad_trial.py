"""tinygrad's backends tried out: through PoCL, and through drivers that fail as GPUs do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.machines.hardware import device
from support.machines.icds import build_icd

from potluck.engines.backends import BACKENDS
from potluck.host.child import (
    ChildAnswer,
    ChildFailure,
    ChildOutcome,
    Failure,
    run_child,
)
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.measuring import measure_backend
from potluck.probe.trials.running import is_tried_on, try_backend
from potluck.types.hardware import Device, Figure, Origin, Trial
from potluck.types.unit import Interface

pytestmark = pytest.mark.timeout(900)  # compilers take minutes on a busy machine

SPECS = {spec.name: spec for spec in BACKENDS}
OPENCL = SPECS["tinygrad:CL"]
TRIAL = OPENCL.module

SECONDS = 100.0
"""Ten times what it takes where nothing else runs: tests share two cores."""
HANG_SECONDS = 8.0
"""Enough to come to what hangs, on such a machine too."""


def gpu(icd: Path) -> Device:
    interface = Interface(api="opencl", address=f"{icd}#0:0", description="a fake one")
    return replace(device("of-fb000000.gpu"), interfaces=(interface,))


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trial]:
    """By the kind of driver; ``measured``: one that computes, with memory for one layer.

    The first alone, the others at once: PoCL's cache of kernels does not bear several processes
    that fill it with the same.
    """
    folder = tmp_path_factory.mktemp("icds")
    cache = ProbeCache(folder / "probe.json")

    def tried(kind: str) -> Trial:
        return try_backend(
            OPENCL,
            replace(gpu(build_icd(kind, folder / kind)), device_id=kind),
            cache=cache,
            deadline_seconds=HANG_SECONDS if kind == "hangs" else SECONDS,
        )

    def measured() -> Trial:
        one = gpu(build_icd("pocl", folder / "pocl"))
        one = replace(one, memory=replace(one.memory, free_bytes=8 * (60 << 20)))
        trial = Trial(
            device_id=one.device_id,
            backend=OPENCL.name,
            works=True,
            variants=("opencl",),
            interface=one.interfaces[0],
        )
        return measure_backend(OPENCL, one, trial, num_threads=2, cache=cache)

    found = {"wrong-numbers": tried("wrong-numbers")}
    kinds = ("computing-gpu", "crashes", "hangs")
    with ThreadPoolExecutor(1 + len(kinds)) as pool:
        figures = pool.submit(measured)
        found |= zip(kinds, pool.map(tried, kinds), strict=True)
        return found | {"measured": figures.result()}


def test_a_driver_that_computes_passes(trials: Mapping[str, Trial]) -> None:
    """Products are met exactly: sums are in float32, in which they are exact in any order.

    As the first to need the trials, it waits a minute or two while PoCL compiles their kernels.
    """
    trial = trials["computing-gpu"]
    assert trial.works, trial.reason
    assert (trial.reason, trial.variants) == ("", ("opencl",))
    assert trial.unit_id == "computing-gpu/tinygrad:CL"
    assert trial.interface is not None
    assert trial.interface.api == "opencl"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("wrong-numbers", "wrong numbers: the q8_0 product["),
        ("crashes", "was killed by SIGABRT"),
        ("hangs", "did not respond within "),
    ],
)
def test_a_driver_that_fails_costs_one_line(
    kind: str, reason: str, trials: Mapping[str, Trial]
) -> None:
    trial = trials[kind]
    assert not trial.works
    assert reason in trial.reason
    assert "\n" not in trial.reason


def test_the_rates_of_a_driver_that_computes(trials: Mapping[str, Trial]) -> None:
    """PoCL 3.1 has no f16, and the backend nothing in 8 bits."""
    trial = trials["measured"]
    ending = "tinygrad:CL (opencl, f32: the device does not support f16)"
    figures = trial.figures
    assert figures.f32_operations_per_second.source == f"F32 matrix product, 32 tokens, {ending}"
    assert figures.read_bytes_per_second.source.endswith(ending)
    assert figures.f16_operations_per_second == Figure()
    assert figures.int8_operations_per_second == Figure()
    for rate in (trial.rates.decode_tokens_per_second, trial.rates.prefill_tokens_per_second):
        assert rate.origin is Origin.MEASURED
        assert rate.source.startswith(
            "2 layers of 2048 in Q8_0, extrapolated from 1 for lack of memory"
        )
        assert rate.value is not None
        assert 0.01 < rate.value < 1e5


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> ChildOutcome:
    return run_child(
        TRIAL,
        arguments,
        deadline_seconds=SECONDS,
        max_resident_bytes=1 << 30,
        environment=environment,
    )


def test_the_variants_are_told_without_tinygrad(tmp_path: Path) -> None:
    (tmp_path / "tinygrad.py").write_text("raise RuntimeError('imported')")
    outcomes = [
        run("variants", "x", interface, environment={"PYTHONPATH": str(tmp_path)})
        for interface in ("-", "opencl=a.icd#0:0", "cuda=GPU-1")
    ]
    documents = [one.document for one in outcomes if isinstance(one, ChildAnswer)]
    assert documents == [
        {"variants": ["clang"]},
        {"variants": ["opencl"]},
        {"variants": ["ptx", "nvrtc"]},
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("self-test", "x", "vulkan=0"), "tinygrad has no backend for vulkan"),
        (("self-test", "x", "rubbish"), "'rubbish' is not a device interface (api=address, or -"),
        (("self-test", "x", "-", "gcc"), "tinygrad:CPU has no variant gcc"),
        (("dance", "x", "-"), "unknown command: dance x -"),
        (("self-test", "x", "opencl=/no/such.icd#0:0"), "CL"),
        (("self-test", "x", "cuda="), "ptx: "),
    ],
)
def test_what_it_cannot_do_it_refuses(arguments: tuple[str, ...], reason: str) -> None:
    outcome = run(*arguments)
    assert isinstance(outcome, ChildFailure)
    assert outcome.failure is Failure.REFUSED, outcome
    assert reason in outcome.reason


def test_a_variant_that_crashes_is_told_by_the_same_signal(tmp_path: Path) -> None:
    """Each variant of CUDA has a process of its own: here one whose library kills it."""
    (tmp_path / "tinygrad.py").write_text("import os; os.kill(os.getpid(), 11)")
    outcome = run("self-test", "x", "cuda=", environment={"PYTHONPATH": str(tmp_path)})
    assert isinstance(outcome, ChildFailure)
    assert (outcome.failure, outcome.reason) == (Failure.CRASHED, "was killed by SIGSEGV")


def test_without_clang_the_cpu_is_refused(tmp_path: Path) -> None:
    outcome = run("self-test", "cpu", "-", environment={"PATH": str(tmp_path)})
    assert isinstance(outcome, ChildFailure)
    assert outcome.failure is Failure.REFUSED, outcome
    assert "clang" in outcome.reason


def test_which_devices_they_are_for(tmp_path: Path) -> None:
    plain, opencl = device("pci-0000:01:00.0"), gpu(tmp_path / "a.icd")
    assert [name for name in SPECS if is_tried_on(SPECS[name], plain)] == []
    assert [name for name in SPECS if is_tried_on(SPECS[name], opencl)] == ["tinygrad:CL"]
    cuda = replace(plain, interfaces=(Interface(api="cuda", address="GPU-1"), *opencl.interfaces))
    assert [name for name in SPECS if is_tried_on(SPECS[name], cuda)] == [
        "tinygrad:CUDA",
        "tinygrad:CL",
    ]


def test_trying_a_backend_imports_no_tinygrad_here() -> None:
    assert "tinygrad" not in sys.modules
