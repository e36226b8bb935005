"""Checks for devices without the required driver, and drivers whose kernel and user parts do not
match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from potluck.probe.doctor.case import Case, Finding, libraries, title
from potluck.types.hardware import Device

RESERVING_DRIVERS = frozenset({"vfio-pci", "pci-stub"})
"""Drivers that reserve a device for virtual machines (kernel, driver-api/vfio.rst)."""

_MODULES = {
    "NVIDIA": ("nvidia",),
    "AMD": ("amdgpu",),
    "Intel": ("xe", "i915"),
    "Arm Mali": ("panthor", "panfrost"),
    "Qualcomm Adreno": ("msm",),
}
"""Kernel modules by vendor. If there are several, they support different generations of devices,
and the kernel chooses.
"""

_PACKAGES = {
    "NVIDIA": {
        "debian": "nvidia-driver",
        "fedora": "akmod-nvidia",
        "pacman": "nvidia-open",
    },
    "AMD": {
        "debian": "firmware-amd-graphics",
        "ubuntu": "linux-firmware",
        "fedora": "amd-gpu-firmware",
        "pacman": "linux-firmware",
    },
}
"""Packages that provide a driver or the firmware that it requires."""

_UBUNTU_NVIDIA = "sudo ubuntu-drivers install"

_ON_HOST = "on the host: a container uses the host's drivers"

_VERSION = r"\d+\.\d+(?:\.\d+)?"

_MISMATCH = re.compile(r"LibRmVersionMismatch|version mismatch", re.IGNORECASE)
"""NVML error 18, as named by its binding and in its own words ("Driver/library version
mismatch").
"""


def missing_drivers(case: Case) -> Iterator[Finding]:
    """Check for a GPU that has no driver, or a driver that cannot compute."""
    for device in case.accelerators:
        if device.driver in RESERVING_DRIVERS:
            yield _reserved(case, device)
        elif device.driver == "" and device.make in _MODULES and not device.interfaces:
            yield Finding(
                check="driver",
                severity=case.severity(device),
                message=f"{title(device)} is present, but no driver is bound to it",
                command=_driver_command(case, device),
                details=_ON_HOST if case.container else "",
                device_id=device.device_id,
            )
        elif device.driver == "nouveau":
            yield Finding(
                check="driver",
                severity=case.severity(device),
                message=f"{title(device)} is bound to nouveau, but compute requires NVIDIA's"
                " driver",
                command=_package_command(case, device) or "sudo modprobe -r nouveau",
                details=_ON_HOST if case.container else "then reboot",
                device_id=device.device_id,
            )


def _reserved(case: Case, device: Device) -> Finding:
    """Suggest to unbind the driver and probe again (kernel,
    Documentation/ABI/testing/sysfs-bus-pci).
    """
    address = device.device_id.removeprefix("pci-")
    return Finding(
        check="driver",
        severity=case.severity(device),
        message=f"{title(device)} is reserved for virtual machines ({device.driver})",
        command=(
            f"echo {address} | sudo tee /sys/bus/pci/drivers/{device.driver}/unbind "
            f"&& echo {address} | sudo tee /sys/bus/pci/drivers_probe"
        ),
        details="first clear its driver_override, and remove it from the virtual machine's "
        "settings",
        device_id=device.device_id,
    )


def _driver_command(case: Case, device: Device) -> str:
    modules = _MODULES[device.make]
    if device.make == "NVIDIA" and not device.device_id.startswith("pci-"):
        return "sudo modprobe nvgpu"  # Tegra's own
    load = f"sudo modprobe {'-a ' if len(modules) > 1 else ''}{' '.join(modules)}"
    install = _package_command(case, device)
    if not install:
        return load
    if device.make == "NVIDIA":
        return load if _has_module(case, "nvidia") else install
    return f"{install} && {load}"


def _package_command(case: Case, device: Device) -> str:
    if device.make == "NVIDIA" and case.distribution.name == "ubuntu":
        return _UBUNTU_NVIDIA
    return case.distribution.install(_PACKAGES.get(device.make, {}))


def _has_module(case: Case, name: str) -> bool:
    """Return whether a module is in the running kernel's directory, compressed or not."""
    folder = case.below_files(f"/lib/modules/{case.report.kernel}")
    return next(folder.rglob(f"{name}.ko*"), None) is not None


def nvidia_versions(case: Case) -> Iterator[Finding]:
    """Check that the NVIDIA kernel driver and its libraries have the same version.

    They differ after an update until the machine reboots, and in containers whose image includes
    its own libraries.
    """
    cards = [each for each in case.accelerators if each.driver == "nvidia"]
    kernel = _kernel_version(case)
    if not cards:
        return
    found = {
        version: library
        for library in libraries(case, rf"libnvidia-ml\.so\.{_VERSION}")
        for version in re.findall(_VERSION, library.name)
    }
    is_answered = any(map(_is_reported_by_nvml, case.accelerators))  # by some library at any path
    if not is_answered and not found and not _has_any_library(case):
        yield _no_library(case, cards[0])
    elif not is_answered and kernel and found and kernel not in found:
        version, library = sorted(found.items())[-1]
        yield _mismatch(
            case,
            cards[0],
            f"the NVIDIA kernel driver is version {kernel}, but its library is version {version} "
            f"({library})",
        )
    elif any(_MISMATCH.search(text) for text in _problem_texts(case, cards)):
        yield _mismatch(
            case, cards[0], "the NVIDIA kernel driver and its library have different versions"
        )


def _is_reported_by_nvml(device: Device) -> bool:
    """Return whether NVML reported a device: its memory, or the CUDA version of its driver."""
    is_known = device.memory.source.startswith("NVML") or "CUDA" in dict(device.versions)
    return device.make == "NVIDIA" and is_known


def _kernel_version(case: Case) -> str:
    """Return the version of the loaded module."""
    version = case.system.text(case.system.sys / "module/nvidia/version")
    if version is None:
        text = case.system.text(case.system.proc / "driver/nvidia/version") or ""
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug 19 …"; the open-source
        # one has "NVIDIA UNIX Open Kernel Module for x86_64 545.23.06 Release Build …".
        match = re.search(rf"Kernel Module[^\d\n]+(?:x86_64|aarch64)?\s*({_VERSION})", text)
        version = match[1] if match else ""
    return version


def _has_any_library(case: Case) -> bool:
    return next(libraries(case, r"libnvidia-ml\.so.*"), None) is not None


def _problem_texts(case: Case, cards: list[Device]) -> Iterator[str]:
    for detector in case.report.detectors:
        yield from detector.problems
    for card in cards:
        yield card.problem


def _no_library(case: Case, card: Device) -> Finding:
    if tool := case.container_tool:
        command = f"{tool} run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …"
    else:
        command = (
            case.distribution.install(
                {
                    "debian": "libnvidia-ml1",
                    "fedora": "xorg-x11-drv-nvidia-cuda-libs",
                    "pacman": "nvidia-utils",
                }
            )
            or _UBUNTU_NVIDIA
        )
    return Finding(
        check="driver-library",
        severity=case.severity(card),
        message="the NVIDIA driver is loaded, but its library libnvidia-ml.so was not found",
        command=command,
        device_id=card.device_id,
    )


def _mismatch(case: Case, card: Device, message: str) -> Finding:
    tool = case.container_tool
    return Finding(
        check="driver-library",
        severity=case.severity(card),
        message=message,
        command=f"{tool} run --gpus all …" if tool else "sudo reboot",
        details="with an image that does not include driver libraries" if tool else "",
        device_id=card.device_id,
    )
