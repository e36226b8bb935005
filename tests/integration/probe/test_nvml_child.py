"""The process that asks NVML, over a fake library and the real binding, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.machines.fake_nvml import CALLS, Run, build, environment, run_all

from potluck.host.child import ChildFailure, ChildOutcome, Failure, run_child
from potluck.probe.detectors.nvidia_nvml import merge
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory, Figures, Origin
from potluck.types.unit import Interface

CODES = {
    1: "NVML error 1 (Uninitialized)",
    3: "not supported",
    4: "no permission to use the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    13: "not supported by this version of the NVIDIA driver",
    15: "the GPU is lost: it fell off the bus",
    18: "NVIDIA driver/library version mismatch: reboot, or reload the nvidia module",
    999: "NVML error 999 (Unknown)",
}
EXPECTED_ERRORS = (3, 13)
LOST = 15

_NO_MEMORY = DeviceMemory(
    total_bytes=None,
    free_bytes=None,
    is_shared=False,
    source="only NVML reports it, but it did not",
)
_VERSIONS = (("driver", "550.54.14"), ("vbios", "95.02.3c.00.01"), ("CUDA", "12.4"))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def _found(number: int) -> Device:
    """What the files tell of a card whose driver says little."""
    return Device(
        device_id=f"pci-0000:{number:02x}:00.0",
        kind=DeviceKind.GPU,
        make="NVIDIA",
        name="AD102",
        reported_name="AD102",
        chip="10de:2684",
        driver="nvidia",
        device_files=("/dev/nvidiactl", f"/dev/nvidia{number - 1}"),
        memory=_NO_MEMORY,
    )


def _complete(number: int) -> Device:
    """The same card when NVML told everything."""
    return replace(
        _found(number),
        name="GeForce RTX 4090",
        reported_name="NVIDIA GeForce RTX 4090",
        memory=DeviceMemory(
            total_bytes=24 * 1024**3, free_bytes=20 * 1024**3, is_shared=False, source="NVML"
        ),
        versions=_VERSIONS,
        interfaces=(_cuda(number),),
        compute_capability=(8, 9),
    )


def _cuda(number: int, version: str = "CUDA 12.4") -> Interface:
    return Interface(
        api="cuda",
        address=f"GPU-{number - 1:08}-0000-0000-0000-000000000000",
        description=version,
    )


def _report(*numbers: int) -> DetectorReport:
    return DetectorReport(detector="nvidia", devices=tuple(_found(number) for number in numbers))


def _run(library: Path, **settings: str) -> Run:
    return run_all(library, [settings])[0]


def _merged(report: DetectorReport, run: Run) -> DetectorReport:
    """Without figures, which have tests of their own."""
    merged = merge(report, run.outcome)
    devices = tuple(replace(device, figures=Figures()) for device in merged.devices)
    return replace(merged, devices=devices)


def test_asks_one_card(library: Path) -> None:
    report = _merged(_report(1), _run(library))
    assert report == DetectorReport(detector="nvidia", devices=(_complete(1),))


def test_asks_four_cards(library: Path) -> None:
    report = _merged(_report(1, 2, 3, 4), _run(library, cards="4"))
    assert report.devices == tuple(_complete(number) for number in (1, 2, 3, 4))


def test_makes_no_call_that_is_not_tested(library: Path) -> None:
    faults = "nvmlDeviceGetMemoryInfo_v2=13"
    calls = _run(library, mig="2", faults=faults).calls
    assert set(calls) == set(CALLS)


def test_derives_figures_from_cores_clocks_and_bus(library: Path) -> None:
    (device,) = merge(_report(1), _run(library).outcome).devices
    # 16384 cores × 2 × 2.52 GHz; 384 bits × 2 × 10.501 GHz.
    assert device.figures.f32_operations_per_second.value == pytest.approx(82.6e12, rel=0.001)
    assert device.figures.read_bytes_per_second.value == pytest.approx(1008e9, rel=0.001)
    assert device.figures.read_bytes_per_second.origin is Origin.DERIVED


def test_replaces_a_card_by_its_mig_instances(library: Path) -> None:
    report = merge(_report(1, 2), _run(library, cards="2", mig="2").outcome)
    assert [device.device_id for device in report.devices] == [
        "pci-0000:01:00.0-mig-7-0",
        "pci-0000:01:00.0-mig-8-0",
        "pci-0000:02:00.0-mig-7-0",
        "pci-0000:02:00.0-mig-8-0",
    ]
    instance = report.devices[0]
    assert instance.reported_name == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert instance.name.endswith("MIG 1g.5gb")
    assert instance.memory.total_bytes == 4864 * 1024**2
    assert [device.interfaces[0].address for device in report.devices] == [
        f"MIG-{card:08}-0000-0000-0000-{instance:012}" for card in (0, 1) for instance in (1, 2)
    ]
    # 14 multiprocessors × 64 cores × 2 × 1.41 GHz; an eighth of 5120 bits × 2 × 1.215 GHz.
    assert instance.figures.f32_operations_per_second.value == pytest.approx(2.527e12, rel=0.001)
    assert instance.figures.read_bytes_per_second.value == pytest.approx(194.4e9, rel=0.001)


def test_a_card_in_mig_mode_without_instances_cannot_be_used(library: Path) -> None:
    (device,) = merge(_report(1), _run(library, mig="0").outcome).devices
    assert device.device_id == "pci-0000:01:00.0"
    assert device.problem == "MIG mode is enabled, but there is no MIG instance"


def _without(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, version) for name, version in _VERSIONS if name not in names)


CARD_CALLS: Mapping[str, Mapping[str, object]] = {
    # The other card has its address, so this one is known all the same.
    "nvmlDeviceGetPciInfo_v3": {},
    "nvmlDeviceGetName": {"name": "AD102", "reported_name": "AD102"},
    "nvmlDeviceGetUUID": {
        "interfaces": (replace(_cuda(2), address="0000:02:00.0"),),
    },
    "nvmlDeviceGetMemoryInfo_v2": {},
    "nvmlDeviceGetNumGpuCores": {},
    "nvmlDeviceGetMaxClockInfo": {},
    "nvmlDeviceGetMemoryBusWidth": {},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability": None},
    "nvmlDeviceGetVbiosVersion": {"versions": _without("vbios")},
    "nvmlDeviceGetMigMode": {},
}
"""What of a card is not known when a call fails (besides figures)."""


def test_an_error_of_a_card_costs_one_value(library: Path) -> None:
    cases = [(call, code) for call in CARD_CALLS for code in CODES if code != LOST]
    runs = run_all(library, [{"cards": "2", "faults": f"{call}@1={code}"} for call, code in cases])
    for (call, code), run in zip(cases, runs, strict=True):
        report = _merged(_report(1, 2), run)
        harmed = replace(_complete(2), **CARD_CALLS[call])  # type: ignore[arg-type]
        assert report.devices == (_complete(1), harmed), (call, code)
        is_reported = code not in EXPECTED_ERRORS and call != "nvmlDeviceGetMemoryInfo_v2"
        assert len(report.problems) == is_reported, (call, code)
        assert all(CODES[code] in problem for problem in report.problems), (call, code)


def test_memory_that_is_not_told_is_unknown_and_says_why(library: Path) -> None:
    faults = "nvmlDeviceGetMemoryInfo_v2={0},nvmlDeviceGetMemoryInfo={0}"
    codes = [code for code in CODES if code != LOST]
    runs = run_all(library, [{"faults": faults.format(code)} for code in codes])
    for code, run in zip(codes, runs, strict=True):
        report = _merged(_report(1), run)
        memory = replace(_NO_MEMORY, source=f"NVML: {CODES[code]}")
        assert report.devices == (replace(_complete(1), memory=memory),), code
        assert report.problems == ()


def test_a_lost_card_keeps_its_device_and_the_others_go_on(library: Path) -> None:
    calls = [call for call in CARD_CALLS if call != "nvmlDeviceGetMemoryInfo_v2"]
    cases = [{"cards": "4", "faults": f"{call}@2={LOST}"} for call in calls]
    both = "nvmlDeviceGetMemoryInfo_v2@2=15,nvmlDeviceGetMemoryInfo@2=15"
    cases += [{"cards": "4", "faults": both}]
    cases += [{"cards": "4", "faults": f"nvmlDeviceGetHandleByIndex_v2@2={LOST}"}]
    for case, run in zip(cases, run_all(library, cases), strict=True):
        report = _merged(_report(1, 2, 3, 4), run)
        others = (report.devices[0], report.devices[1], report.devices[3])
        assert others == (_complete(1), _complete(2), _complete(4)), case
        assert report.devices[2].device_id == "pci-0000:03:00.0"
        assert report.devices[2].problem == CODES[LOST], case


def test_a_card_without_a_handle_cannot_be_used(library: Path) -> None:
    faults = [f"nvmlDeviceGetHandleByIndex_v2@0={code}" for code in CODES]
    runs = run_all(library, [{"cards": "2", "faults": fault} for fault in faults])
    for code, run in zip(CODES, runs, strict=True):
        report = _merged(_report(1, 2), run)
        assert report.devices[0].problem == CODES[code]
        assert report.devices[1] == _complete(2)


def test_errors_of_a_mig_instance_cost_that_instance(library: Path) -> None:
    calls = (
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetAttributes_v2",
    )
    cases = [(call, code) for call in calls for code in CODES if code != LOST]
    settings = [{"cards": "2", "mig": "1", "faults": f"{call}@1={code}"} for call, code in cases]
    for (call, code), run in zip(cases, run_all(library, settings), strict=True):
        first, second = _merged(_report(1, 2), run).devices
        assert first.device_id == "pci-0000:01:00.0-mig-7-0", (call, code)
        assert first.problem == ""
        if call == "nvmlDeviceGetAttributes_v2":
            assert second.device_id == "pci-0000:02:00.0-mig-7-0"
        else:
            assert second.problem == "MIG mode is enabled, but there is no MIG instance"


def test_a_driver_that_refuses_is_told_in_one_line(library: Path) -> None:
    runs = run_all(library, [{"faults": f"nvmlInitWithFlags={code}"} for code in CODES])
    for code, run in zip(CODES, runs, strict=True):
        report = merge(_report(1), run.outcome)
        assert report.devices == (
            replace(_found(1), problem=f"NVML cannot be initialized: {CODES[code]}"),
        )
        assert report.problems == ()


def test_errors_of_the_whole_library_cost_one_value(library: Path) -> None:
    lost: Mapping[str, tuple[Device, ...]] = {
        "nvmlSystemGetDriverVersion": (replace(_complete(1), versions=_VERSIONS[1:]),),
        "nvmlSystemGetCudaDriverVersion_v2": (
            replace(_complete(1), versions=_VERSIONS[:2], interfaces=(_cuda(1, ""),)),
        ),
        "nvmlDeviceGetCount_v2": (_found(1),),
    }
    cases = [(call, code) for call in lost for code in CODES]
    runs = run_all(library, [{"faults": f"{call}={code}"} for call, code in cases])
    for (call, code), run in zip(cases, runs, strict=True):
        report = _merged(_report(1), run)
        assert report.devices == lost[call], (call, code)
        if call == "nvmlDeviceGetCount_v2":
            assert report.problems == (f"NVML does not report the number of GPUs: {CODES[code]}",)


def test_a_crash_and_a_hang_at_every_call_cost_nothing_but_nvml(library: Path) -> None:
    # The older call for memory is made where the newer fails.
    cases = [
        {"mig": "1", "faults": f"{call}={end},nvmlDeviceGetMemoryInfo_v2=13"}
        for call in CALLS
        for end in ("crash", "hang")
    ]
    runs = run_all(library, cases)
    for case, run in zip(cases, runs, strict=True):
        assert run.returncode == (None if "hang" in case["faults"] else -6), case
        report = merge(_report(1), run.outcome)
        assert report.devices == (_found(1),)
        assert len(report.problems) == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "AD102"),
        ("\udcff\udcfe", "AD102"),
        ("\x1b[31mNVIDIA\x07 T4\n", "[31mNVIDIA T4"),
        ("NVIDIA \udcc3( T4", "( T4"),
        ("x" * 500, "x" * 95),
    ],
)
def test_no_name_of_a_card_reaches_the_terminal_as_it_is(
    library: Path, name: str, shown: str
) -> None:
    (device,) = merge(_report(1), _run(library, name=name).outcome).devices
    assert device.name == shown
    assert device.name.isprintable()
    assert device.reported_name.isprintable()


@pytest.mark.parametrize("uuid", ["", "0,1", "GPU-1,GPU-2", "GPU-" + 90 * "1", "\udcff"])
def test_what_is_no_uuid_addresses_nothing(library: Path, uuid: str) -> None:
    given = replace(_found(1), interfaces=(Interface(api="cuda", address="0000:01:00.0"),))
    report = DetectorReport(detector="nvidia", devices=(given,))
    (device,) = merge(report, _run(library, uuid=uuid).outcome).devices
    assert [interface.address for interface in device.interfaces] == ["0000:01:00.0"]
    instances = merge(report, _run(library, uuid=uuid, mig="1").outcome).devices
    assert [device.interfaces for device in instances] == [()]


@pytest.mark.parametrize(
    ("memory", "source"),
    [
        ("0,0", "0 bytes free of 0"),
        ("18446744073709551615,1", "1 bytes free of 18446744073709551615"),
        ("1000,18446744073709551615", "18446744073709551615 bytes free of 1000"),
        ("1000,1001", "1001 bytes free of 1000"),
    ],
)
def test_absurd_memory_is_unknown(library: Path, memory: str, source: str) -> None:
    (device,) = merge(_report(1), _run(library, memory=memory).outcome).devices
    assert device.memory == replace(_NO_MEMORY, source=f"NVML reports impossible sizes: {source}")


def test_a_count_that_cannot_be_is_cut(library: Path) -> None:
    report = merge(_report(1), _run(library, cards="4294967295").outcome)
    assert report.problems[0] == "NVML reports 4294967295 GPUs: only 64 were queried"
    assert "pci-0000:01:00.0" in [device.device_id for device in report.devices]


def _start(directory: Path, *, deadline_seconds: float = 60.0, **settings: str) -> ChildOutcome:
    """The child as the probe starts it."""
    return run_child(
        "potluck.probe.children.nvml",
        deadline_seconds=deadline_seconds,
        max_resident_bytes=1 << 30,
        environment=environment(directory, **settings),
    )


def test_what_a_library_prints_does_not_get_between(library: Path) -> None:
    # The fake prints a line when it is initialized.
    report = merge(_report(1), _start(library))
    assert report.problems == ()
    assert report.devices[0].memory.total_bytes == 24 * 1024**3


@pytest.mark.parametrize(
    ("faults", "failure", "deadline_seconds"),
    [
        ("nvmlInitWithFlags=9", Failure.REFUSED, 60.0),
        ("nvmlDeviceGetName=crash", Failure.CRASHED, 60.0),
        ("nvmlDeviceGetName=hang", Failure.HUNG, 1.0),
    ],
)
def test_whatever_happens_to_the_child_the_probe_goes_on(
    library: Path, faults: str, failure: Failure, deadline_seconds: float
) -> None:
    outcome = _start(library, deadline_seconds=deadline_seconds, faults=faults)
    assert isinstance(outcome, ChildFailure)
    assert outcome.failure is failure
    report = merge(_report(1), outcome)
    assert [device.device_id for device in report.devices] == ["pci-0000:01:00.0"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "libnvidia-ml.so.1 is not installed"),
        (b"\x7fELF and no more", "libnvidia-ml.so.1 cannot be loaded: "),
        (b"", "libnvidia-ml.so.1 cannot be loaded: "),
    ],
)
def test_tells_a_missing_library_from_a_broken_one(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    report = merge(_report(1), _start(tmp_path))
    assert report.devices == (_found(1),)
    assert len(report.problems) == 1
    assert report.problems[0].startswith(problem)
