"""Checks for device files that are missing, or that this user may not open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from potluck.probe.doctor.case import Case, Finding, title
from potluck.probe.doctor.drivers import RESERVING_DRIVERS
from potluck.probe.machine.system import Access
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
    text = case.system.text(case.below_files("/etc/group")) or ""
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
