"""Which units serve: machines by hand, with the roles and reasons that they must get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.machines.hardware import CPU, device, report

from potluck.errors import UsageError
from potluck.probe.choose import check_requested_unit_serves, choose_units
from potluck.types.backend import DeviceKind
from potluck.types.hardware import (
    DetectorReport,
    Device,
    Figure,
    Figures,
    Origin,
    ProbeReport,
    Rates,
    Trial,
)
from potluck.types.unit import ChosenUnit, Role

DISCRETE = device("pci-0000:01:00.0")
SECOND = device("pci-0000:02:00.0")
MALI = replace(
    device("of-fb000000.gpu"), memory=replace(device("of-fb000000.gpu").memory, is_shared=True)
)
POCL = replace(device("opencl-pocl-0", DeviceKind.CPU), kind=DeviceKind.GPU, is_software=True)

RolesByUnit = dict[str, tuple[str, str]]


def rate(value: float | None) -> Figure:
    if value is None:
        return Figure()
    return Figure(value=value, origin=Origin.MEASURED, source="told by hand")


def trial(
    of: Device,
    backend: str = "tinygrad:CL",
    decode: float | None = None,
    prefill: float | None = None,
    *,
    problem: str = "",
) -> Trial:
    return Trial(
        device_id=of.device_id,
        backend=backend,
        works=not problem,
        reason=problem,
        rates=Rates(decode_tokens_per_second=rate(decode), prefill_tokens_per_second=rate(prefill)),
    )


def native(decode: float | None = None, prefill: float | None = None) -> Trial:
    return trial(CPU, "native", decode, prefill)


def machine(*devices: Device, trials: tuple[Trial, ...]) -> ProbeReport:
    return report(DetectorReport(detector="gpus", devices=devices), trials=trials)


def roles_of(units: tuple[ChosenUnit, ...]) -> RolesByUnit:
    """Role and reason by unit."""
    assert len({unit.unit_id for unit in units}) == len(units)
    return {unit.unit_id: (unit.role.value, unit.reason) for unit in units}


def chosen(
    *devices: Device,
    trials: tuple[Trial, ...],
    requested: str | None = None,
    allow_software: bool = False,
    out: Mapping[str, str] | None = None,
) -> RolesByUnit:
    return roles_of(
        choose_units(
            machine(*devices, trials=trials),
            requested=requested,
            allow_software=allow_software,
            out=out or {},
        )
    )


def test_a_cpu_alone_serves_measured_or_not() -> None:
    assert chosen(trials=(native(40.0),)) == {"cpu/native": ("serves", "")}
    assert chosen(trials=(native(),)) == {"cpu/native": ("serves", "not measured yet")}


def test_a_cpu_whose_cache_holds_the_small_program_counts_with_what_its_memory_delivers() -> None:
    """A Xeon with a cache of 300 MiB beside an H100, as measured."""
    figures = Figures(read_bytes_per_second=rate(132e9))
    cpu = replace(native(2300.0), figures=figures)
    gpu = trial(DISCRETE, "tinygrad:CUDA", 1926.0)
    assert chosen(DISCRETE, trials=(cpu, gpu)) == {
        "pci-0000:01:00.0/tinygrad:CUDA": ("serves", ""),
        "cpu/native": (
            "reserve",
            "1410 tokens/s decode; pci-0000:01:00.0/tinygrad:CUDA reaches 1926",
        ),
    }
    from_a_table = replace(figures.read_bytes_per_second, origin=Origin.TABLE)
    unmeasured = replace(cpu, figures=Figures(read_bytes_per_second=from_a_table))
    assert chosen(DISCRETE, trials=(unmeasured, gpu))["cpu/native"] == ("serves", "")


def test_the_fastest_backend_of_a_device_serves() -> None:
    trials = (
        trial(DISCRETE, "tinygrad:CL", 12.34),
        trial(DISCRETE, "tinygrad:CUDA", 40.0),
        trial(DISCRETE, "tinygrad:NV"),
        trial(DISCRETE, "tinygrad:X", problem="wrong numbers"),
    )
    units = choose_units(
        machine(DISCRETE, trials=trials),
        requested=None,
        allow_software=False,
    )
    assert roles_of(units) == {
        "pci-0000:01:00.0/tinygrad:CUDA": ("serves", ""),
        "pci-0000:01:00.0/tinygrad:CL": (
            "idle",
            "12.3 tokens/s decode; pci-0000:01:00.0/tinygrad:CUDA reaches 40",
        ),
        "pci-0000:01:00.0/tinygrad:NV": ("idle", "not measured yet"),
        "pci-0000:01:00.0/tinygrad:X": ("out", "wrong numbers"),
    }
    assert [unit.role for unit in units] == [Role.SERVES, Role.IDLE, Role.IDLE, Role.OUT]


@pytest.mark.parametrize(
    ("gpu", "cpu", "gpu_serves"),
    [
        ((37.0, 100.0), (40.0, 300.0), False),  # within a tenth: the prefill decides
        ((37.0, 300.0), (40.0, 100.0), True),
        ((36.0, 300.0), (40.0, 100.0), False),
        ((44.1, 100.0), (40.0, 300.0), True),
        ((43.9, 100.0), (40.0, 300.0), False),
        ((40.0, None), (40.0, None), False),  # of equals the CPU
    ],
)
def test_rates_that_are_alike_leave_it_to_the_prefill(
    gpu: tuple[float, float | None], cpu: tuple[float, float | None], gpu_serves: bool
) -> None:
    for gpu_device in (MALI, DISCRETE):
        roles = chosen(gpu_device, trials=(native(*cpu), trial(gpu_device, "tinygrad:CL", *gpu)))
        serving = [unit_id for unit_id, (role, _) in roles.items() if role == "serves"]
        winner = f"{gpu_device.device_id}/tinygrad:CL" if gpu_serves else "cpu/native"
        assert serving == [winner]


def test_the_prefill_is_told_where_it_has_decided() -> None:
    roles = chosen(MALI, trials=(native(40.0, 300.0), trial(MALI, "tinygrad:CL", 38.0, 1100.4)))
    assert roles["cpu/native"] == (
        "reserve",
        "40 tokens/s decode and 300 prefill; of-fb000000.gpu/tinygrad:CL reaches 38 and 1100, "
        "which uses the same memory",
    )


def test_of_one_memory_only_the_fastest_serves() -> None:
    slower = chosen(MALI, trials=(native(12.0), trial(MALI, "tinygrad:CL", 3.1)))
    assert slower == {
        "cpu/native": ("serves", ""),
        "of-fb000000.gpu/tinygrad:CL": (
            "reserve",
            "3.1 tokens/s decode; cpu/native reaches 12, which uses the same memory",
        ),
    }
    unknown = chosen(MALI, trials=(native(12.0), trial(MALI)))
    assert unknown["of-fb000000.gpu/tinygrad:CL"] == ("reserve", "not measured yet")
    assert chosen(MALI, trials=(native(), trial(MALI))) == {
        "cpu/native": ("serves", "not measured yet"),
        "of-fb000000.gpu/tinygrad:CL": ("reserve", "not measured yet"),
    }


def test_a_faster_gpu_serves_and_the_cpu_waits() -> None:
    roles = chosen(
        DISCRETE, SECOND, trials=(native(12.0), trial(DISCRETE, decode=90.0), trial(SECOND))
    )
    assert roles == {
        "pci-0000:01:00.0/tinygrad:CL": ("serves", ""),
        "cpu/native": (
            "reserve",
            "12 tokens/s decode; pci-0000:01:00.0/tinygrad:CL reaches 90",
        ),
        "pci-0000:02:00.0/tinygrad:CL": ("reserve", "not measured yet"),
    }


def test_a_gpu_slower_than_its_cpu_is_told_to_be() -> None:
    assert chosen(DISCRETE, trials=(native(12.0), trial(DISCRETE, decode=3.1))) == {
        "cpu/native": ("serves", ""),
        "pci-0000:01:00.0/tinygrad:CL": (
            "reserve",
            "slower than the CPU: 3.1 against 12 tokens/s",
        ),
    }


def test_two_gpus_of_which_one_is_slower_than_the_cpu() -> None:
    roles = chosen(
        DISCRETE,
        SECOND,
        trials=(native(12.0), trial(DISCRETE, decode=90.0), trial(SECOND, decode=3.0)),
    )
    assert {unit_id: role for unit_id, (role, _) in roles.items()} == {
        "pci-0000:01:00.0/tinygrad:CL": "serves",
        "cpu/native": "reserve",
        "pci-0000:02:00.0/tinygrad:CL": "reserve",
    }


def test_both_of_two_gpus_serve_where_both_are_faster() -> None:
    roles = chosen(
        DISCRETE,
        SECOND,
        trials=(native(12.0), trial(DISCRETE, decode=90.0), trial(SECOND, decode=30.0)),
    )
    assert [role for role, _ in roles.values()] == ["serves", "serves", "reserve"]


def test_what_could_not_be_measured_says_why() -> None:
    failed = Figure(source="measuring failed: did not respond within 60 s")
    gpu = replace(trial(DISCRETE), rates=Rates(decode_tokens_per_second=failed))
    assert chosen(DISCRETE, trials=(native(12.0), gpu))["pci-0000:01:00.0/tinygrad:CL"] == (
        "reserve",
        "measuring failed: did not respond within 60 s",
    )


def test_a_measured_gpu_comes_before_a_cpu_that_is_not() -> None:
    for gpu in (MALI, DISCRETE):
        roles = chosen(gpu, trials=(native(), trial(gpu, decode=1.0)))
        assert roles[f"{gpu.device_id}/tinygrad:CL"] == ("serves", "")
        assert roles["cpu/native"][1] == "not measured yet"


def test_a_unit_that_is_out_makes_place_for_the_next() -> None:
    trials = (native(12.0), trial(MALI, decode=30.0), trial(MALI, "tinygrad:QCOM", 20.0))
    assert [role for role, _ in chosen(MALI, trials=trials).values()] == [
        "serves",
        "reserve",
        "idle",
    ]
    roles = chosen(MALI, trials=trials, out={"of-fb000000.gpu/tinygrad:CL": "hung"})
    assert roles["of-fb000000.gpu/tinygrad:CL"] == ("out", "hung")
    assert roles["of-fb000000.gpu/tinygrad:QCOM"] == ("serves", "")
    assert roles["cpu/native"][0] == "reserve"


def test_what_was_asked_for_serves_however_slow() -> None:
    trials = (native(12.0), trial(DISCRETE, decode=3.1), trial(DISCRETE, "tinygrad:CUDA", 50.0))
    for requested in ("tinygrad:CL", "pci-0000:01:00.0/tinygrad:CL"):
        assert chosen(DISCRETE, trials=trials, requested=requested) == {
            "pci-0000:01:00.0/tinygrad:CL": ("serves", ""),
            "cpu/native": ("idle", f"{requested} was requested"),
            "pci-0000:01:00.0/tinygrad:CUDA": ("idle", f"{requested} was requested"),
        }
    both = (native(12.0), trial(DISCRETE), trial(SECOND, decode=3.0))
    roles = chosen(DISCRETE, SECOND, trials=both, requested="tinygrad:CL")
    assert roles["pci-0000:01:00.0/tinygrad:CL"] == ("serves", "not measured yet")
    assert roles["pci-0000:02:00.0/tinygrad:CL"] == ("serves", "")


def test_what_was_asked_for_and_never_worked_leaves_nothing_to_serve() -> None:
    trials = (native(12.0), trial(DISCRETE, problem="libcuda.so.1 is not there"))
    units = choose_units(
        machine(DISCRETE, trials=trials), requested="tinygrad:CL", allow_software=True
    )
    assert roles_of(units) == {
        "cpu/native": ("idle", "tinygrad:CL was requested, but does not work here"),
        "pci-0000:01:00.0/tinygrad:CL": ("out", "libcuda.so.1 is not there"),
    }
    report = machine(DISCRETE, trials=trials)
    with pytest.raises(UsageError) as caught:
        check_requested_unit_serves(report, units, "tinygrad:CL")
    assert caught.value.message == (
        "tinygrad:CL does not work on any device of this machine "
        "(pci-0000:01:00.0/tinygrad:CL: libcuda.so.1 is not there)"
    )
    assert caught.value.hint == "these work here: cpu/native; potluck probe shows details"
    check_requested_unit_serves(report, units, None)
    with pytest.raises(UsageError, match="there is no device that it supports"):
        check_requested_unit_serves(report, units, "tinygrad:AMD")


def test_what_was_asked_for_and_is_not_tested_yet_is_not_said_to_fail() -> None:
    pending = replace(trial(DISCRETE, problem="it runs"), is_pending=True)
    report = machine(DISCRETE, trials=(native(12.0), pending))
    units = choose_units(report, requested="tinygrad:CL", allow_software=True)
    assert roles_of(units) == {
        "cpu/native": ("idle", "tinygrad:CL was requested, but has not been tested yet"),
        "pci-0000:01:00.0/tinygrad:CL": ("pending", "it runs"),
    }
    with pytest.raises(UsageError) as caught:
        check_requested_unit_serves(report, units, "tinygrad:CL")
    assert caught.value.message == (
        "tinygrad:CL has not been tested on this machine yet "
        "(pci-0000:01:00.0/tinygrad:CL: it runs)"
    )
    assert "potluck probe --wait" in (caught.value.hint or "")


def test_what_was_asked_for_may_be_on_a_device_that_is_not_found_yet() -> None:
    found = machine(trials=(native(12.0),))
    late = DetectorReport(detector="opencl", problems=("has not answered yet",), is_pending=True)
    report = replace(found, detectors=(*found.detectors, late))
    units = choose_units(report, requested="tinygrad:CL", allow_software=True)
    with pytest.raises(UsageError) as caught:
        check_requested_unit_serves(report, units, "tinygrad:CL")
    assert caught.value.message == (
        "tinygrad:CL has not been tested on this machine yet (opencl: has not answered yet)"
    )


def test_what_is_not_tested_yet_leaves_the_cpu_to_serve() -> None:
    pending = replace(trial(DISCRETE, problem="it runs"), is_pending=True)
    assert chosen(DISCRETE, trials=(native(12.0), pending)) == {
        "cpu/native": ("serves", ""),
        "pci-0000:01:00.0/tinygrad:CL": ("pending", "it runs"),
    }


@pytest.mark.parametrize("problem", ["", "not tried again: hung"])
def test_the_cpu_takes_over_from_what_was_asked_for_and_failed(problem: str) -> None:
    """Also where it was tried again since, in vain."""
    requested_trial = trial(DISCRETE, decode=90.0, problem=problem)
    trials = (native(12.0), requested_trial, trial(DISCRETE, "tinygrad:CUDA", 50.0))
    roles = chosen(
        DISCRETE,
        trials=trials,
        requested="tinygrad:CL",
        out={"pci-0000:01:00.0/tinygrad:CL": "driver error"},
    )
    assert roles == {
        "cpu/native": ("serves", "replaces tinygrad:CL, which failed"),
        "pci-0000:01:00.0/tinygrad:CUDA": ("idle", "tinygrad:CL was requested"),
        "pci-0000:01:00.0/tinygrad:CL": ("out", "driver error"),
    }


def test_software_is_used_where_it_is_allowed() -> None:
    trials = (native(12.0), trial(POCL, decode=50.0))
    idle = ("idle", "software emulation on the CPU; enable with --allow-software")
    assert chosen(POCL, trials=trials)["opencl-pocl-0/tinygrad:CL"] == idle
    requested = chosen(POCL, trials=trials, requested="tinygrad:CL")
    assert requested["opencl-pocl-0/tinygrad:CL"] == idle
    assert requested["cpu/native"][0] == "idle"
    for how in (
        chosen(POCL, trials=trials, requested="opencl-pocl-0/tinygrad:CL"),
        chosen(POCL, trials=trials, requested="tinygrad:CL", allow_software=True),
        chosen(POCL, trials=trials, allow_software=True),
    ):
        # Its memory is the machine's, whatever it says, so that the CPU does not serve beside it.
        assert [role for role, _ in how.values()] == ["serves", "idle"]
        assert how["opencl-pocl-0/tinygrad:CL"] == ("serves", "")
