"""The process that asks one OpenCL driver: over fake drivers, PoCL, and what is no driver."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.machines.icds import NVIDIA, build_icd, pocl_library

from potluck.host.child import ChildOutcome, run_child
from potluck.host.system import THIS_MACHINE
from potluck.probe.cache import ProbeCache
from potluck.probe.detectors.opencl import DETECTOR, merge
from potluck.probe.discovery import DeviceDiscovery
from potluck.probe.gpus.icds import Icd, installed_icds, library_identity
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory, Figures
from potluck.types.unit import Interface

NOTHING = DetectorReport(detector="opencl")


def ask(file: Path, *, seconds: float = 20.0) -> DetectorReport:
    """The detector's report of a driver alone."""
    (icd,) = installed_icds(THIS_MACHINE, {"OCL_ICD_VENDORS": str(file)}).icds
    return merge(icd, NOTHING, run(icd, seconds=seconds))


def run(icd: Icd, *, seconds: float = 20.0, loader: Path | None = None) -> ChildOutcome:
    paths = {} if loader is None else {"LD_LIBRARY_PATH": str(loader)}
    return run_child(
        "potluck.probe.children.opencl",
        (icd.library,),
        deadline_seconds=seconds,
        max_resident_bytes=1 << 28,
        environment={**os.environ, **icd.environment, **paths},
    )


def test_a_gpu_tells_what_it_is(tmp_path: Path) -> None:
    file = build_icd("gpu", tmp_path, extensions="cl_khr_icd cl_khr_fp16 cl_khr_fp64")
    (device,) = ask(file).devices
    assert replace(device, figures=Figures()) == Device(
        device_id="opencl-gpu-0",
        kind=DeviceKind.GPU,
        make="Arm Mali",
        name="Mali-G610 r0p0",
        reported_name="Mali-G610 r0p0",
        chip="",
        driver="",
        device_files=(),
        memory=DeviceMemory(
            total_bytes=4 << 30,
            free_bytes=None,
            is_shared=True,
            source="OpenCL, which does not report free memory",
        ),
        versions=(("OpenCL driver", "3.0"),),
        interfaces=(
            Interface(
                api="opencl",
                address=f"{file}#0:0",
                description="Mali-G610 r0p0, driver 3.0, 4 units at 1000 MHz, "
                "buffers up to 1 GiB, float16",
            ),
        ),
    )


@pytest.mark.parametrize("how", ["pci", "nv", "amd"])
def test_the_place_on_the_bus_is_told_in_three_ways(tmp_path: Path, how: str) -> None:
    file = build_icd("gpu", tmp_path, **NVIDIA, **{how: "0 65 2 1"}, is_shared="0")
    (device,) = ask(file).devices
    assert (device.device_id, device.make) == ("pci-0000:41:02.1", "NVIDIA")
    assert not device.memory.is_shared


def test_a_place_in_another_domain(tmp_path: Path) -> None:
    for how in ("pci", "nv"):
        file = build_icd("gpu", tmp_path / how, **{how: "8 1 0 0"})
        assert [each.device_id for each in ask(file).devices] == ["pci-0008:01:00.0"]


def test_several_devices_have_places_of_their_own(tmp_path: Path) -> None:
    devices = ask(build_icd("gpu", tmp_path, num_devices="3")).devices
    assert [each.device_id for each in devices] == [f"opencl-gpu-{n}" for n in range(3)]
    addresses = [interface.address for each in devices for interface in each.interfaces]
    assert addresses == [f"{tmp_path}/gpu.icd#0:{n}" for n in range(3)]


@pytest.mark.parametrize(
    ("kind", "reason", "seconds"),
    [
        ("crashes-at-load", "was killed by SIGABRT", 20),
        ("crashes-in-devices", "was killed by SIGABRT", 20),
        ("hangs-at-load", "did not respond within 0.5 s", 0.5),
        ("hangs-in-devices", "did not respond within 0.5 s", 0.5),
        ("grows", "used more than 256 MiB of memory", 20),
        ("has-no-devices", "its library reports no device", 20),
    ],
)
def test_a_bad_driver_costs_one_line(
    tmp_path: Path, kind: str, reason: str, seconds: float
) -> None:
    file = build_icd(kind, tmp_path)
    assert ask(file, seconds=seconds) == replace(NOTHING, problems=(f"{file}: {reason}",))


def test_what_a_driver_prints_does_not_get_between(tmp_path: Path) -> None:
    report = ask(build_icd("chatters", tmp_path))
    assert [each.name for each in report.devices] == ["Mali-G610 r0p0"]
    assert report.problems == ()


def test_lies_are_not_believed(tmp_path: Path) -> None:
    """Sizes of answers far beyond any, which are not reserved; numbers that cannot be."""
    (device,) = ask(build_icd("lies-about-sizes", tmp_path / "sizes")).devices
    assert (device.device_id, device.reported_name) == ("opencl-lies-about-sizes-0", "")
    assert device.memory.total_bytes is None
    file = build_icd(
        "gpu",
        tmp_path / "numbers",
        memory=str(2**63),
        largest=str(2**64 - 1),
        units="4294967295",
        clock="4294967295",
        long_name="50000",
        pci="70000 1 99 9",
        num_devices="100",
    )
    devices = ask(file).devices
    assert len(devices) == 64
    assert devices[0].device_id == "opencl-gpu-0"
    assert devices[0].memory.total_bytes is None
    assert devices[0].name == 96 * "x"
    assert devices[0].interfaces[0].description == f"{96 * 'x'}, driver 3.0"


def test_pocl_is_software() -> None:
    """The real one, as a distribution installs it."""
    library = pocl_library()
    icd = Icd(file="/etc/OpenCL/vendors/pocl.icd", library=library)
    (device,) = merge(icd, NOTHING, run(icd)).devices
    assert device.device_id == "opencl-pocl-0"
    assert device.is_software
    assert device.kind is DeviceKind.GPU
    assert device.memory.is_shared
    assert device.interfaces[0].address == "/etc/OpenCL/vendors/pocl.icd#0:0"
    assert library_identity(THIS_MACHINE, icd)[1].endswith(library)


@pytest.mark.parametrize(
    ("settings", "is_software"),
    [
        ({"type": "cpu"}, True),
        ({"platform": "rusticl", "name": "llvmpipe (LLVM 15.0.6, 256 bits)"}, True),
        ({"platform": "clvk", "name": "SwiftShader Device (Subzero)"}, True),
        ({"platform": "rusticl", "name": "Mali-G610 (Panfrost)"}, False),
    ],
)
def test_what_plays_a_gpu(tmp_path: Path, settings: dict[str, str], is_software: bool) -> None:
    (device,) = ask(build_icd("gpu", tmp_path, **settings)).devices
    assert device.is_software is is_software


def test_what_is_no_driver(tmp_path: Path) -> None:
    cases = {
        "missing": "/nowhere/libnothing.so",
        "empty": str(tmp_path / "empty.so"),
        "unrelated": "libm.so.6",
    }
    (tmp_path / "empty.so").write_bytes(b"")
    for name, library in cases.items():
        (tmp_path / f"{name}.icd").write_text(f"{library}\n")
    reasons = {
        "missing": "its library cannot be loaded: /nowhere/libnothing.so: cannot open shared "
        "object file: No such file or directory",
        "empty": f"its library cannot be loaded: {tmp_path}/empty.so: file too short",
        "unrelated": "its library was loaded, but reports no platform",
    }
    for name, reason in reasons.items():
        file = tmp_path / f"{name}.icd"
        assert ask(file) == replace(NOTHING, problems=(f"{file}: {reason}",))


def test_without_a_loader_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "libOpenCL.so.1").write_text("no library")
    report = NOTHING
    for name in ("a", "b"):
        icd = Icd(file=f"/{name}.icd", library="lib.so")
        report = merge(icd, report, run(icd, loader=tmp_path))
    assert report.devices == ()
    (line,) = report.problems
    assert line.startswith("libOpenCL.so.1 cannot be loaded: ")


def test_bad_drivers_cost_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ("crashes-at-load", "hangs-in-devices", "has-no-devices")
    for kind in (*bad, "gpu", "chatters"):
        build_icd(kind, tmp_path / "vendors")
    (tmp_path / "vendors" / "rubbish.icd").write_bytes(b"\xff\xfe\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "vendors"))
    cache = ProbeCache(tmp_path / "cache")

    def look() -> DetectorReport:
        looker = DeviceDiscovery(
            system=THIS_MACHINE,
            cache=cache,
            retry=False,
            end=time.monotonic() + 2.0,
        )
        return looker.ask(DETECTOR, looker.find(DETECTOR))

    report = look()
    assert [each.device_id for each in report.devices] == ["opencl-chatters-0", "opencl-gpu-0"]
    lines = [
        line.removeprefix(f"{tmp_path}/vendors/").partition(" within")[0]
        for line in report.problems
    ]
    assert lines == [
        "rubbish.icd does not name a library",
        "crashes-at-load.icd: was killed by SIGABRT",
        "hangs-in-devices.icd: did not respond",
        "has-no-devices.icd: its library reports no device",
    ]
    again = look().problems
    assert [line for line in again if "not tried again" in line] == [
        line for line in again if "crashes" in line or "hangs" in line
    ]
    build_icd("crashes-at-load", tmp_path / "vendors", load="")  # an update that cures it
    os.utime(tmp_path / "vendors" / "libcrashes-at-load.so", (1, 1))
    assert "opencl-crashes-at-load-0" in [each.device_id for each in look().devices]
