"""Checks for installed native code that cannot be loaded on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from potluck.portability.finding import Finding as MissingDependency
from potluck.probe.doctor.case import (
    UBUNTU_NVIDIA,
    Case,
    Finding,
    OpenedLibrary,
    Severity,
    UnloadablePackage,
    libraries,
    title,
)
from potluck.probe.doctor.opencl import LOADER_PACKAGES
from potluck.types.backend import BackendLibrary
from potluck.types.hardware import Device, Trial

_MAX_LACKS = 3
"""Limit of reported reasons; a build for a newer distribution may lack a hundred symbols."""

_LIBRARY_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "libcuda.so": {
        "debian": "libcuda1",
        "fedora": "xorg-x11-drv-nvidia-cuda-libs",
        "pacman": "nvidia-utils",
    },
    "libOpenCL.so": LOADER_PACKAGES,
    "libLLVM.so": {"apt": "llvm", "dnf": "llvm-libs", "pacman": "llvm-libs"},
}
"""The packages that provide a library, by distribution or package manager."""

_MISSING_LIBRARY = "missing-library"
"""The code of such a finding (``portability.linking.findings``)."""

_SEARCHES = {
    "apt": "apt-file search {}",
    "dnf": "dnf provides '*/{}'",
    "pacman": "pacman -F {}",
}
"""Commands that show which package provides a file."""


def unloadable_packages(case: Case) -> Iterator[Finding]:
    """Check for Python packages whose compiled parts the dynamic linker refuses."""
    for package in case.unloadable_packages:
        loss = f": without it {package.loss}" if package.loss else ""
        yield Finding(
            check="build",
            severity=Severity.PREVENTS if package.loss else Severity.NOTE,
            message=f"{package.name} {package.version} is installed but cannot be loaded"
            f" ({_reason(package)}){loss}",
            command=_package_command(case, package),
            details=_fix(package.lacks),
        )


def _reason(unloadable: UnloadablePackage | OpenedLibrary) -> str:
    """Return what its files lack, or if unknown, the dynamic linker's error."""
    messages = list(dict.fromkeys(lack.message for lack in unloadable.lacks))
    if not messages:
        return unloadable.load_error
    more = len(messages) - _MAX_LACKS
    summary = "; ".join(messages[:_MAX_LACKS])
    return f"{summary}, and {more} more" if more > 0 else summary


def _fix(lacks: tuple[MissingDependency, ...]) -> str:
    return next((lack.fix for lack in lacks if lack.fix), "")


def _package_command(case: Case, package: UnloadablePackage) -> str:
    """Suggest how to find the library that it lacks, or to compile it here if it was built for a
    newer system.
    """
    wanted = f"'{package.name}=={package.version}'"
    if missing := _missing_library(package.lacks):
        return _search(case, missing)
    if any(lack.symbol for lack in package.lacks):
        return f"pip install --force-reinstall --no-deps --no-binary {package.name} {wanted}"
    return f"pip install --force-reinstall --no-deps {wanted}"


def _missing_library(lacks: tuple[MissingDependency, ...]) -> str:
    return next((lack.library for lack in lacks if lack.code == _MISSING_LIBRARY), "")


def _search(case: Case, file_name: str) -> str:
    return _SEARCHES.get(case.distribution.manager, "find / -name {}").format(file_name)


def hindering_libraries(case: Case) -> Iterator[Finding]:
    """Check for libraries that a backend needs on every device but that are missing or unusable."""
    devices = {device.device_id: device for device in case.report.devices if not device.problem}
    for trial in case.report.trials:
        device = devices.get(trial.device_id)
        if trial.works or trial.is_pending or device is None:
            continue
        for opened in case.blocking_libraries(trial):
            yield _hindrance(case, device, trial, opened)


def _hindrance(case: Case, device: Device, trial: Trial, opened: OpenedLibrary) -> Finding:
    library = opened.library
    elsewhere = "" if opened.path else _elsewhere(case, library)
    details = _fix(opened.lacks)
    if opened.path:
        message = f"{opened.path}, which {trial.backend} needs, cannot be loaded: {_reason(opened)}"
        missing = _missing_library(opened.lacks)
        command = _search(case, missing) if missing else _install(case, library)
    elif elsewhere:
        message = f"{trial.backend} does not search {elsewhere} for {library.name}"
        command = f"export {library.variable}={elsewhere}"
        details = "before potluck up"
    else:
        message = f"{trial.backend} needs {library.name}, which is not installed"
        command = _install(case, library)
    return Finding(
        check="library",
        severity=case.severity(device),
        message=f"{title(device)}: {message}",
        command=command,
        details=details,
        device_id=device.device_id,
    )


def _elsewhere(case: Case, library: BackendLibrary) -> str:
    """Return where vendors install it, if it exists."""
    for pattern in library.patterns:
        for file in libraries(case, pattern):
            return str(file)
    return ""


def _install(case: Case, library: BackendLibrary) -> str:
    if library.name == "libcuda.so":
        if tool := case.container_tool:
            return f"{tool} run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
        if case.distribution.name == "ubuntu":
            return UBUNTU_NVIDIA
    packages = _LIBRARY_PACKAGES.get(library.name, {})
    return case.distribution.install(packages) or _search(case, library.name)
