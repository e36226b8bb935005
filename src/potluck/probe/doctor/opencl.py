"""What keeps OpenCL from reaching a GPU: no driver, one that is not registered, one that is broken.

OpenCL finds vendors' libraries by ``/etc/OpenCL/vendors/*.icd`` (cl_khr_icd).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.probe.doctor.case import Case, title
from potluck.probe.doctor.finding import Finding, Severity
from potluck.probe.doctor.libraries import libraries
from potluck.probe.layers import opencl

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
    """What brings OpenCL to a GPU: packages, by package manager, and what else to know."""

    packages: Mapping[str, str]
    details: str = ""

    def command(self, case: Case) -> str:
        known = case.distribution.install(self.packages)
        return known or f"sudo apt install {self.packages['apt']}"


def _rusticl(driver: str) -> _Driver:
    """Mesa's rusticl, which has to be told of most drivers (its ``envvars.rst``)."""
    return _Driver(
        packages=_MESA, details=f"and have RUSTICL_ENABLE={driver} in Potluck's environment"
    )


_BY_DRIVER = {
    "panthor": _rusticl("panfrost"),
    "panfrost": _rusticl("panfrost"),
    "msm": _rusticl("freedreno"),
    "adreno": _rusticl("freedreno"),
}
"""By kernel driver, where a make has several."""

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
    """A Mali whose vendor's library is there, but not registered with OpenCL."""
    devices = [each for each in case.accelerators if each.driver == "mali"]
    found = [*libraries(case, r"lib[mM]ali(OpenCL)?\.so(\.\d+)*")]
    if not devices or not found or any(_is_mali(case, text) for text in _registered(case)):
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
    """A GPU whose kernel driver runs, and which no software can reach to compute."""
    for device in case.accelerators:
        if device.interfaces or device.problem:
            continue
        driver = _BY_DRIVER.get(device.driver) or _BY_MAKE.get(device.make)
        if device.driver == "mali":
            command = "apt-cache search libmali"
            details = f"from the board's maker; {_VENDORS}/mali.icd then has to name the library"
        elif driver is not None:
            command, details = driver.command(case), driver.details
        else:
            continue
        yield Finding(
            check="opencl",
            severity=case.severity(device),
            message=f"{title(device)}: {_said(case)}",
            command=command,
            details="; ".join(filter(None, [details, _in_image(case)])),
            device_id=device.device_id,
        )


def _said(case: Case) -> str:
    if any(_registered(case)):
        return "no OpenCL driver that is installed shows it"
    return "there is no OpenCL driver for it"


def _in_image(case: Case) -> str:
    return "in the container's image" if case.container else ""


def broken_drivers(case: Case) -> Iterator[Finding]:
    """OpenCL drivers whose library cannot be loaded, and no loader for them."""
    for problem in _problems(case):
        if problem.startswith(_LOADER_MISSING):
            yield Finding(
                check="opencl-driver",
                severity=Severity.NOTE,
                message=f"OpenCL drivers are installed, and {_LOADER_MISSING}",
                command=case.distribution.install(LOADER_PACKAGES)
                or f"sudo apt install {LOADER_PACKAGES['apt']}",
            )
        elif found := _UNLOADABLE.fullmatch(problem):
            file = found["file"]
            yield Finding(
                check="opencl-driver",
                severity=Severity.NOTE,
                message=f"the OpenCL driver {file} cannot be loaded: {found['why']}",
                command=f"sudo mv {file} {file}.disabled",
                details="or install again what brings its library",
            )


def only_software(case: Case) -> Iterator[Finding]:
    """OpenCL that computes on the CPU only, which nobody uses by accident."""
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
            message=f"OpenCL shows only {', '.join(title(each) for each in shown)}, software that "
            "computes on the CPU: it is not used",
            command="potluck up --allow-software",
            details="to try it nevertheless; the native backend is faster",
            device_id=shown[0].device_id,
        )


def _problems(case: Case) -> Iterator[str]:
    for layer in case.report.layers:
        if layer.layer == opencl.NAME:
            yield from layer.problems


def _registered(case: Case) -> Iterator[str]:
    """The first line of each file: a library's name or path."""
    for file in case.system.entries(case.below_files(_VENDORS)):
        if file.suffix == ".icd" and (text := case.system.text(file)):
            yield text.splitlines()[0].strip()


def _is_mali(case: Case, text: str) -> bool:
    """Whether an entry names a Mali library; one by path must be there too."""
    path = PurePosixPath(text)
    if "mali" not in path.name.lower():
        return False
    return not path.is_absolute() or case.below_files(text).exists()


def _preference(library: PurePosixPath) -> tuple[bool, int, str]:
    """The one for OpenCL alone, then the name that updates leave as it is (``libmali.so.1``)."""
    return "OpenCL" not in library.name, len(library.name), str(library)
