"""Findings about OpenCL, and about the package that uses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machines.doctor_cases import (
    NATIVE,
    a_case,
    a_gpu,
    a_report,
    a_system,
    the_finding,
)

from potluck.probe.doctor.case import Distribution, Severity
from potluck.probe.doctor.examine import examine
from potluck.probe.doctor.look import missing_packages
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.hardware import DetectorReport, Device, ProbeReport, Trial
from potluck.types.unit import Interface

CL = BackendSpec(
    name="tinygrad:CL",
    module="tinygrad_trial",
    kinds=frozenset({DeviceKind.GPU}),
    packages=("numpy", "tinygrad"),
    api="opencl",
    extra="tinygrad",
)
OPENCL = Interface(api="opencl", address="/etc/OpenCL/vendors/x.icd#0:0")
FEDORA = Distribution(name="fedora", manager="dnf")
ARCH = Distribution(name="arch", manager="pacman")
UNKNOWN = Distribution(name="void", manager="")


def a_gpu_with_files(root: Path, make: str, driver: str, **others: Any) -> tuple[Any, Device]:
    system = a_system(root, {"dev/dri/renderD128": ""})
    return system, a_gpu(make, "GPU", driver, system.dev / "dri/renderD128", **others)


@pytest.mark.parametrize(
    ("make", "driver", "others", "command", "details"),
    [
        ("Intel", "xe", {}, "sudo apt install intel-opencl-icd", ""),
        (
            "Intel",
            "i915",
            {"distribution": FEDORA},
            "sudo dnf install intel-compute-runtime",
            "",
        ),
        (
            "AMD",
            "amdgpu",
            {"distribution": ARCH},
            "sudo pacman -S opencl-mesa",
            "and have RUSTICL_ENABLE=radeonsi in Potluck's environment",
        ),
        (
            "Arm Mali",
            "panthor",
            {"distribution": UNKNOWN},
            "sudo apt install mesa-opencl-icd",
            "and have RUSTICL_ENABLE=panfrost in Potluck's environment",
        ),
        (
            "Qualcomm Adreno",
            "adreno",
            {},
            "sudo apt install mesa-opencl-icd",
            "and have RUSTICL_ENABLE=freedreno in Potluck's environment",
        ),
        (
            "Arm Mali",
            "mali",
            {},
            "apt-cache search libmali",
            "from the board's vendor; /etc/OpenCL/vendors/mali.icd must then contain the library's "
            "name",
        ),
    ],
)
def test_a_gpu_that_nothing_reaches(
    tmp_path: Path, make: str, driver: str, others: dict[str, Any], command: str, details: str
) -> None:
    system, gpu = a_gpu_with_files(tmp_path, make, driver)
    found = the_finding(a_case(system, a_report(gpu), **others))
    assert (found.check, found.severity, found.device_id) == (
        "opencl",
        Severity.PREVENTS,
        gpu.device_id,
    )
    assert found.message.endswith("GPU: there is no OpenCL driver for it")
    assert (found.command, found.details) == (command, details)


def test_in_a_container_the_image_lacks_it(tmp_path: Path) -> None:
    system, gpu = a_gpu_with_files(tmp_path, "Intel", "xe")
    found = the_finding(a_case(system, a_report(gpu, container="docker")))
    assert found.details == "in the container's image"


@pytest.mark.parametrize("api", ["opencl", "cuda", "kfd", "kgsl"])
def test_one_way_to_reach_a_gpu_is_enough(tmp_path: Path, api: str) -> None:
    interface = Interface(api=api, address="0")
    system, gpu = a_gpu_with_files(tmp_path, "AMD", "amdgpu", interfaces=(interface,))
    assert examine(a_case(system, a_report(gpu))) == ()


def test_what_only_opencl_shows_has_its_driver(tmp_path: Path) -> None:
    """As in a container that does not show the bus."""
    gpu = a_gpu("AMD", "GPU", "", interfaces=(OPENCL,))
    assert examine(a_case(a_system(tmp_path), a_report(gpu))) == ()


def a_report_of_opencl(*devices: Device, problems: tuple[str, ...] = ()) -> ProbeReport:
    report = a_report()
    detector = DetectorReport(detector="opencl", devices=devices, problems=problems)
    return replace(report, detectors=(*report.detectors, detector))


def test_a_driver_that_cannot_be_loaded(tmp_path: Path) -> None:
    file = "/etc/OpenCL/vendors/mali.icd"
    why = "libmali.so.1: cannot open shared object file: No such file or directory"
    problems = (
        f"{file}: its library cannot be loaded: {why}",
        "/etc/OpenCL/vendors/mesa.icd: its library reports no device",  # as without any GPU
    )
    found = the_finding(a_case(a_system(tmp_path), a_report_of_opencl(problems=problems)))
    assert (found.check, found.severity) == ("opencl-driver", Severity.NOTE)
    assert found.message == f"the OpenCL driver {file} cannot be loaded: {why}"
    assert found.command == f"sudo mv {file} {file}.disabled"
    assert found.details == "or reinstall the package that provides its library"


def test_a_driver_that_crashed(tmp_path: Path) -> None:
    line = "/etc/OpenCL/vendors/x.icd: not tried again: was killed by SIGSEGV (…)"
    found = the_finding(a_case(a_system(tmp_path), a_report_of_opencl(problems=(line,))))
    assert (found.check, found.command) == ("quarantine", "potluck probe --retry")


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (Distribution(name="ubuntu", manager="apt"), "sudo apt install ocl-icd-libopencl1"),
        (FEDORA, "sudo dnf install ocl-icd"),
        (UNKNOWN, "sudo apt install ocl-icd-libopencl1"),
    ],
)
def test_drivers_without_a_loader(tmp_path: Path, distribution: Distribution, command: str) -> None:
    report = a_report_of_opencl(problems=("libOpenCL.so.1 is not installed",))
    found = the_finding(a_case(a_system(tmp_path), report, distribution=distribution))
    assert found.message == "OpenCL drivers are installed, but libOpenCL.so.1 is not installed"
    assert found.command == command


def test_software_is_named_and_no_loss(tmp_path: Path) -> None:
    pocl = a_gpu(
        "Intel",
        "pthread-Xeon",
        "",
        device_id="opencl-pocl-0",
        interfaces=(OPENCL,),
        is_software=True,
    )
    case = a_case(a_system(tmp_path), a_report_of_opencl(pocl))
    found = the_finding(case)
    assert (found.check, found.severity) == ("software", Severity.NOTE)
    assert "Intel pthread-Xeon, a software implementation that runs on the CPU" in found.message
    assert found.command == "potluck up --allow-software"
    assert case.accelerators == ()
    card = a_gpu("AMD", "GPU", "", interfaces=(OPENCL,))
    assert examine(a_case(a_system(tmp_path), a_report_of_opencl(pocl, card))) == ()


def test_a_package_that_is_missing(tmp_path: Path) -> None:
    system, gpu = a_gpu_with_files(tmp_path, "Intel", "xe", interfaces=(OPENCL,))
    refused = Trial(
        device_id=gpu.device_id, backend=CL.name, works=False, reason="No module named 'tinygrad'"
    )
    case = a_case(
        system,
        a_report(gpu, trials=(refused,)),
        backends=(NATIVE, CL),
        missing_packages=("tinygrad",),
    )
    found = the_finding(case)
    assert (found.check, found.severity) == ("package", Severity.PREVENTS)
    assert found.message == "Intel GPU cannot be used until tinygrad is installed"
    assert found.command == "pip install 'potluck[tinygrad]'"
    assert found.device_id == gpu.device_id


def test_a_package_is_no_loss_where_nothing_could_use_it(tmp_path: Path) -> None:
    def findings(device: Device) -> list[str]:
        case = a_case(
            system, a_report(device), backends=(NATIVE, CL), missing_packages=("tinygrad",)
        )
        return [found.check for found in examine(case)]

    system, gpu = a_gpu_with_files(tmp_path, "Intel", "xe")
    assert findings(gpu) == ["opencl"]
    assert findings(replace(gpu, interfaces=(OPENCL,), problem="it is lost")) == ["device"]
    assert findings(replace(gpu, interfaces=(OPENCL,), is_software=True)) == ["software"]
    # The extra brings OpenCL's backend, and this GPU has another interface.
    assert findings(replace(gpu, interfaces=(Interface(api="kgsl", address=""),))) == []


def test_which_packages_are_missing() -> None:
    backends = (NATIVE, CL, replace(CL, packages=("no-such-package", "numpy")))
    missing = missing_packages(backends)
    assert "no-such-package" in missing
    assert "numpy" not in missing
    assert missing_packages(()) == ()


@pytest.mark.parametrize(
    ("make", "is_wanted"),
    [("Intel", True), ("Arm Mali", True), ("Vivante", False), ("", False)],
)
def test_opencl_is_a_loss_for_makes_that_have_it(
    tmp_path: Path, make: str, is_wanted: bool
) -> None:
    """A virtual GPU without OpenCL is none that a backend of this build is for."""
    gpu = a_gpu(make, "GPU", "some", problem="Potluck has no backend for it")
    case = a_case(a_system(tmp_path), a_report(gpu), backends=(NATIVE, CL))
    assert case.severity(gpu) is (Severity.PREVENTS if is_wanted else Severity.NOTE)
    reached = replace(gpu, problem="", interfaces=(OPENCL,))
    assert case.severity(reached) is Severity.PREVENTS
