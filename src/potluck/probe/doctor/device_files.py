"""Checks for devices without the required driver, drivers whose kernel and user parts do not match,
and device files that are missing, or that this user may not open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from potluck.host.system import Access
from potluck.probe.detectors.nvidia_device import kernel_driver_version
from potluck.probe.doctor.case import UBUNTU_NVIDIA, Case, Finding, libraries, title
from potluck.probe.gpus.pci_gpu import RESERVING_DRIVERS
from potluck.types.hardware import Device

_EXPECTED = {
    "nvidia": ("nvidiactl", "nvidia0"),
    "amdgpu": ("dri", "kfd"),
    "i915": ("dri",),
    "xe": ("dri",),
    "mali": ("mali0",),
    "panthor": ("dri",),
    "panfrost": ("dri",),
    "kgsl-3d": ("kgsl-3d0",),
    "msm": ("dri",),
}
"""The files that a driver creates in /dev, for devices whose files the probe could not find."""

_KUBERNETES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "gpu.intel.com/xe"}
"""The resources of the vendors' device plugins."""

_SUBSYSTEMS = {"dri": "drm", "kfd": "kfd", "mali0": "misc", "kgsl-3d0": "kgsl"}
"""The udev subsystem of a device file, by the first component of its name under /dev."""

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
        return UBUNTU_NVIDIA
    return case.distribution.install(_PACKAGES.get(device.make, {}))


def _has_module(case: Case, name: str) -> bool:
    """Return whether a module is in the running kernel's directory, compressed or not."""
    folder = case.system.below_files(f"/lib/modules/{case.report.kernel}")
    return next(folder.rglob(f"{name}.ko*"), None) is not None


def nvidia_versions(case: Case) -> Iterator[Finding]:
    """Check that the NVIDIA kernel driver and its libraries have the same version.

    They differ after an update until the machine reboots, and in containers whose image includes
    its own libraries.
    """
    cards = [each for each in case.accelerators if each.driver == "nvidia"]
    kernel = kernel_driver_version(case.system)
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
            or UBUNTU_NVIDIA
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


def forbidden_files(case: Case) -> Iterator[Finding]:
    """Check for a device that only its file's group, or nobody, may use."""
    for device in case.accelerators:
        for name in device.device_files:
            file = Path(name)
            if case.system.access(file) is Access.FORBIDDEN:
                yield _forbidden(case, device, file)
                break  # its other files usually have the same group


def _forbidden(case: Case, device: Device, file: Path) -> Finding:
    group, shown = case.system.group(file), case.shown(file)
    details = "then log in again"
    if tool := case.container_tool:
        command = f"{tool} run --group-add $(stat -c %g {shown}) …"
        details = "because the file is owned by a group of the host, identified by number"
    elif group in ("", "root") or group in case.user.groups:
        # There is no group to join: the file's mode excludes everyone but root.
        command = _rule(file.name)
    elif group.isdecimal():
        command = f"sudo groupadd --gid {group} gpu && sudo usermod -aG gpu $USER"
    elif case.user.name in _members(case, group):
        command = f"newgrp {group}"
        details = "the user is in the group, but logged in before being added: log in again"
    else:
        command = f"sudo usermod -aG {group} $USER"
    belongs = f" (owned by group {group})" if group else ""
    return Finding(
        check="permission",
        severity=case.severity(device),
        message=f"{title(device)}: this user does not have permission to open {shown}{belongs}",
        command=command,
        details=details,
        device_id=device.device_id,
    )


def _rule(name: str) -> str:
    """Suggest a rule for udev(7) that gives the group video access to the device permanently."""
    rule = f'KERNEL=="{name}", GROUP="video", MODE="0660"'
    return (
        f"echo '{rule}' | sudo tee /etc/udev/rules.d/70-potluck.rules && sudo udevadm control "
        "--reload && sudo udevadm trigger && sudo usermod -aG video $USER"
    )


def _members(case: Case, group: str) -> list[str]:
    """Return the members of a group in the user database (group(5)), whether or not in effect."""
    text = case.system.text(case.system.below_files("/etc/group")) or ""
    for line in text.splitlines():
        match line.split(":"):
            case [name, _, _, members] if name == group:
                return members.split(",")
    return []


def absent_files(case: Case) -> Iterator[Finding]:
    """Check for a device whose driver is loaded but whose files are not in /dev, usually in a
    container.
    """
    for device in case.accelerators:
        names = device.device_files or tuple(
            str(case.system.dev / name) for name in _EXPECTED.get(device.driver, ())
        )
        missing = [file for file in map(Path, names) if case.system.access(file) is Access.ABSENT]
        if not missing or device.driver in {"", *RESERVING_DRIVERS}:
            continue
        shown = ", ".join(case.shown(file) for file in missing)
        if case.container:
            message = f"{title(device)} is present, but {shown} was not passed to this container"
            command = _container_command(case, device, missing)
        else:
            message = f"{title(device)} has a driver, but {shown} does not exist"
            command = _make_command(case, missing)
        yield Finding(
            check="device-file",
            severity=case.severity(device),
            message=message,
            command=command,
            device_id=device.device_id,
        )


def _container_command(case: Case, device: Device, missing: list[Path]) -> str:
    tool = case.container_tool
    if case.container == "lxc":
        return "lxc config device add CONTAINER gpu gpu"
    if case.container == "kubernetes" and device.make in _KUBERNETES:
        return f"kubectl set resources deployment NAME --limits={_KUBERNETES[device.make]}=1"
    options: list[str] = []
    for file in missing:
        name = _first_name(case, file)
        if name.startswith("nvidia"):
            option = "--device nvidia.com/gpu=all" if tool == "podman" else "--gpus all"
        elif device.make == "NVIDIA" and name.startswith("nv"):  # Tegra's nvhost-gpu, nvmap
            option = "--runtime nvidia"
        else:
            option = f"--device /dev/{name}"
        if option not in options:
            options.append(option)
    return f"{tool} run {' '.join(options)} …"


def _make_command(case: Case, missing: list[Path]) -> str:
    name = _first_name(case, missing[0])
    if name.startswith("nvidia"):
        return "sudo nvidia-modprobe -c 0 -u"
    subsystem = _SUBSYSTEMS.get(name)
    return f"sudo udevadm trigger{f' --subsystem-match={subsystem}' if subsystem else ''}"


def _first_name(case: Case, file: Path) -> str:
    """Return ``dri`` for ``/dev/dri/renderD128``, ``mali0`` for ``/dev/mali0``."""
    return Path(case.shown(file).removeprefix("/dev/")).parts[0]
