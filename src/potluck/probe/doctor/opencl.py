"""Checks for why OpenCL cannot use a GPU: a missing, unregistered or broken driver.

OpenCL finds vendors' libraries through ``/etc/OpenCL/vendors/*.icd`` (cl_khr_icd).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.probe.detectors import opencl
from potluck.probe.doctor.case import Case, Finding, Severity, libraries, title
from potluck.probe.gpus.icds import Icd, installed_icds

_VENDORS = "/etc/OpenCL/vendors"

_UNLOADABLE = re.compile(r"(?P<file>\S+\.icd): its library cannot be loaded: (?P<why>.*)")
_LOADER_MISSING = "libOpenCL.so.1 is not installed"

LOADER_PACKAGES = {
    "apt": "ocl-icd-libopencl1",
    "dnf": "ocl-icd",
    "pacman": "ocl-icd",
}

_MESA = {"apt": "mesa-opencl-icd", "dnf": "mesa-libOpenCL", "pacman": "opencl-mesa"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """How to install OpenCL for a GPU: packages by package manager, and a note."""

    packages: Mapping[str, str]
    details: str = ""


def _rusticl(driver: str) -> _Driver:
    """Return Mesa's rusticl, in which most drivers must be enabled (its ``envvars.rst``)."""
    return _Driver(
        packages=_MESA, details=f"and have RUSTICL_ENABLE={driver} in Potluck's environment"
    )


_BY_DRIVER = {
    "panthor": _rusticl("panfrost"),
    "panfrost": _rusticl("panfrost"),
    "msm": _rusticl("freedreno"),
    "adreno": _rusticl("freedreno"),
}
"""Drivers by kernel driver, for vendors with several."""

_BY_MAKE = {
    "Intel": _Driver(
        packages={
            "apt": "intel-opencl-icd",
            "dnf": "intel-compute-runtime",
            "pacman": "intel-compute-runtime",
        }
    ),
    "AMD": _rusticl("radeonsi"),
    "NVIDIA": _Driver(
        packages={
            "apt": "nvidia-opencl-icd",
            "dnf": "xorg-x11-drv-nvidia-cuda",
            "pacman": "opencl-nvidia",
        }
    ),
}


def unregistered_mali(case: Case) -> Iterator[Finding]:
    """Check for a Mali whose vendor library exists, but is not registered with OpenCL."""
    devices = [each for each in case.accelerators if each.driver == "mali"]
    found = [*libraries(case, r"lib[mM]ali(OpenCL)?\.so(\.\d+)*")]
    if not devices or not found or any(_is_mali(case, icd) for icd in _icds(case)):
        return
    library = min(found, key=_preference)
    yield Finding(
        check="opencl",
        severity=case.severity(devices[0]),
        message=f"{title(devices[0])}: its library {library} is not registered with OpenCL",
        command=(f"sudo mkdir -p {_VENDORS} && echo {library} | sudo tee {_VENDORS}/mali.icd"),
        device_id=devices[0].device_id,
    )


def missing_drivers(case: Case) -> Iterator[Finding]:
    """Check for a GPU whose kernel driver is loaded but for which no OpenCL driver exists."""
    for device in case.accelerators:
        if device.interfaces or device.problem:
            continue
        driver = _BY_DRIVER.get(device.driver) or _BY_MAKE.get(device.make)
        if device.driver == "mali":
            command = "apt-cache search libmali"
            details = (
                f"from the board's vendor; {_VENDORS}/mali.icd must then contain the library's name"
            )
        elif driver is not None:
            command, details = _install(case, driver.packages), driver.details
        else:
            continue
        yield Finding(
            check="opencl",
            severity=case.severity(device),
            message=f"{title(device)}: {_problem(case)}",
            command=command,
            details="; ".join(
                filter(None, [details, "in the container's image" if case.container else ""])
            ),
            device_id=device.device_id,
        )


def _install(case: Case, packages: Mapping[str, str]) -> str:
    return case.distribution.install(packages) or f"sudo apt install {packages['apt']}"


def _problem(case: Case) -> str:
    if _icds(case):
        return "no installed OpenCL driver lists it"
    return "there is no OpenCL driver for it"


def broken_drivers(case: Case) -> Iterator[Finding]:
    """Check for OpenCL drivers whose library cannot be loaded, or a missing loader."""
    for problem in _problems(case):
        if problem.startswith(_LOADER_MISSING):
            yield Finding(
                check="opencl-driver",
                severity=Severity.NOTE,
                message=f"OpenCL drivers are installed, but {_LOADER_MISSING}",
                command=_install(case, LOADER_PACKAGES),
            )
        elif found := _UNLOADABLE.fullmatch(problem):
            file = found["file"]
            yield Finding(
                check="opencl-driver",
                severity=Severity.NOTE,
                message=f"the OpenCL driver {file} cannot be loaded: {found['why']}",
                command=f"sudo mv {file} {file}.disabled",
                details="or reinstall the package that provides its library",
            )


def only_software(case: Case) -> Iterator[Finding]:
    """Check for OpenCL that computes on the CPU only, which is not used unless enabled."""
    shown = [each for each in case.report.devices if each.is_software]
    is_any_real = any(
        interface.api == "opencl"
        for each in case.report.devices
        if not each.is_software
        for interface in each.interfaces
    )
    if shown and not is_any_real:
        yield Finding(
            check="software",
            severity=Severity.NOTE,
            message=f"OpenCL shows only {', '.join(title(each) for each in shown)}, a software "
            "implementation that runs on the CPU; it is not used",
            command="potluck up --allow-software",
            details="to use it anyway; the native backend is faster",
            device_id=shown[0].device_id,
        )


def _problems(case: Case) -> Iterator[str]:
    for detector in case.report.detectors:
        if detector.detector == opencl.NAME:
            yield from detector.problems


def _icds(case: Case) -> tuple[Icd, ...]:
    return installed_icds(case.system, {}).icds


def _is_mali(case: Case, icd: Icd) -> bool:
    """Return whether a driver is a Mali library; one given by path must also exist."""
    path = PurePosixPath(icd.library)
    if "mali" not in path.name.lower():
        return False
    return not path.is_absolute() or case.system.below_files(icd.library).exists()


def _preference(library: PurePosixPath) -> tuple[bool, int, str]:
    """Prefer the library for OpenCL alone, then the name that updates do not change
    (``libmali.so.1``).
    """
    return "OpenCL" not in library.name, len(library.name), str(library)
