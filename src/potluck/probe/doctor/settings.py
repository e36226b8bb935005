"""Checks of the CPU's clock, and of the directories that Potluck writes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from potluck.probe.doctor.case import Case, Finding, Folder, Severity
from potluck.quantities import format_bytes

STATE = "the node's state"
CACHE = "what the probe measured"
MODELS = "downloaded models"

_MOVED = {
    STATE: "potluck up --state DIRECTORY",
    CACHE: "export XDG_CACHE_HOME=DIRECTORY",
    MODELS: "export HF_HOME=DIRECTORY",
}
"""How to move each directory to another disk."""

_WITHOUT = {
    STATE: "this node cannot join a cluster",
    CACHE: "every device is tested again at every start",
    MODELS: "no model can be downloaded",
}

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})

_POLICIES = "/sys/devices/system/cpu/cpufreq"

_SELF_SCALING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers with which the CPU itself chooses its clock, up to the maximum. Their "powersave" differs
from the governor of that name (kernel, admin-guide/pm/intel_pstate.rst, amd-pstate.rst).
"""

_DYNAMIC = frozenset({"schedutil"})
"""Governors that follow the load closely; threads that wait for each other still get lower
clocks.
"""


def folders(case: Case) -> Iterator[Finding]:
    """Check for a directory that is not writable, has no space, or is lost when the machine shuts
    down.
    """
    if case.missing_folder:
        yield Finding(
            check="folder",
            severity=Severity.PREVENTS,
            message=f"{case.missing_folder}: {_WITHOUT[STATE]}",
            command=_MOVED[STATE],
        )
    for folder in case.folders:
        if folder.is_read_only:
            yield _finding(folder, "is on a disk that is mounted read-only", _remount(case, folder))
        elif not folder.is_writable:
            yield _finding(folder, "is not writable", f"sudo chown -R $USER {folder.path}")
        elif folder.free_bytes < folder.needed_bytes:
            room = f"has {format_bytes(folder.free_bytes)} of free space"
            yield _finding(folder, room, f"df -h {folder.mount_point}", _elsewhere(folder))
        elif folder.file_system in _IN_MEMORY:
            yield _in_memory(folder)


def _finding(folder: Folder, what: str, command: str, details: str = "") -> Finding:
    return Finding(
        check="folder",
        severity=Severity.PREVENTS if folder.purpose == STATE else Severity.SLOWS,
        message=f"{folder.path} {what}: {_WITHOUT[folder.purpose]}",
        command=command,
        details=details,
    )


def _remount(case: Case, folder: Folder) -> str:
    if case.container:
        return _MOVED[folder.purpose]
    return f"sudo mount -o remount,rw {folder.mount_point}"


def _elsewhere(folder: Folder) -> str:
    return f"free some space, or use another disk: {_MOVED[folder.purpose]}"


def _in_memory(folder: Folder) -> Finding:
    takes_memory = folder.purpose == MODELS
    return Finding(
        check="folder",
        severity=Severity.SLOWS if takes_memory else Severity.NOTE,
        message=f"{folder.path} is in memory ({folder.file_system}): "
        + ("models occupy memory twice" if takes_memory else "it is lost when the machine stops"),
        command=_MOVED[folder.purpose],
    )


def slow_governor(case: Case) -> Iterator[Finding]:
    """Check for a governor that does not run the cores at their maximum clock."""
    governors: dict[str, list[str]] = {}
    is_dynamic = True
    for policy in _policies(case):
        governor = case.system.text(policy / "scaling_governor") or ""
        offered = (case.system.text(policy / "scaling_available_governors") or "").split()
        if governor in ("", "performance") or "performance" not in offered:
            continue
        governors.setdefault(governor, []).append(policy.name)
        driver = case.system.text(policy / "scaling_driver")
        is_dynamic &= governor in _DYNAMIC or driver in _SELF_SCALING
    if not governors:
        return
    governor_text = ", ".join(
        f"{governor} ({', '.join(policies)})" for governor, policies in sorted(governors.items())
    )
    yield Finding(
        check="cpu-governor",
        severity=Severity.NOTE if is_dynamic else Severity.SLOWS,
        message=f"the CPU frequency governor is {governor_text} instead of performance",
        command=f"echo performance | sudo tee {_POLICIES}/policy*/scaling_governor",
        details="on the host, until it reboots" if case.container else "until the machine reboots",
    )


def _policies(case: Case) -> list[Path]:
    directory = case.system.sys / "devices/system/cpu/cpufreq"
    return [path for path in case.system.entries(directory) if path.name.startswith("policy")]
