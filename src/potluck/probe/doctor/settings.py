"""Checks of memory limits, swap and shared memory, of the CPU's clock, and of the directories that
Potluck writes to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from potluck.host.memory import read_sizes
from potluck.probe.doctor.case import Case, Finding, Folder, Severity
from potluck.types.quantities import format_bytes

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


_MIB = 1 << 20
_GIB = 1 << 30

_MOST_SWAPPED_BYTES = 256 * _MIB
"""The amount of swap that a desktop uses without noticeable effect."""

_NO_SWAP_NEEDED_BYTES = 8 * _GIB
"""Machines with less memory are the most likely to run out of it; the kernel then kills processes
without warning.
"""

_SHARED_MEMORY_BYTES = 64 * _MIB
"""The default in containers; GPU runtimes and others rely on it."""


_PROCESS_LIMITS = {"-v": ("address space", "as"), "-d": ("data size", "data")}
"""The row in /proc/self/limits and the option of prlimit(1), by the option of ulimit."""


def low_limit(case: Case) -> Iterator[Finding]:
    """Check for a control group or ``ulimit -v`` that allows less than half of the machine's free
    memory.
    """
    memory = case.report.memory
    usable = memory.usable
    if usable.bytes >= memory.free_bytes // 2:
        return
    group = re.search(r"control group\S* limit in (\S+)", usable.reason)
    if group:
        command, details = _raise_group(case, PurePosixPath(group[1]))
    elif option := re.search(r"ulimit (-\w)", usable.reason):
        command, details = _raise_process_limit(case, option[1])
    else:
        return
    yield Finding(
        check="memory-limit",
        severity=Severity.SLOWS,
        message=(
            f"{format_bytes(usable.bytes)} of memory is usable here, but the machine has "
            f"{format_bytes(memory.free_bytes)} free: limited by {usable.reason}"
        ),
        command=command,
        details=details,
    )


def unknown_memory(case: Case) -> Iterator[Finding]:
    """Check for memory of unknown size, which is not used."""
    memory = case.report.memory
    if memory.total_bytes == 0:
        yield Finding(
            check="memory",
            severity=Severity.PREVENTS,
            message=f"no memory is usable: {memory.usable.reason}",
            command="sudo mount -t proc proc /proc",
        )


def _raise_group(case: Case, directory: PurePosixPath) -> tuple[str, str]:
    if case.container == "kubernetes":
        return "kubectl set resources deployment NAME --limits=memory=SIZE", ""
    if tool := case.container_tool:
        total = f"{case.report.memory.total_bytes // _MIB}m"
        return (
            f"{tool} update --memory {total} --memory-swap {total} CONTAINER",
            "on the host, with this container's name",
        )
    if directory.suffix in (".service", ".slice", ".scope"):
        return (
            f"sudo systemctl set-property {directory.name} MemoryMax=infinity MemoryHigh=infinity",
            "",
        )
    version_1 = case.system.text(
        case.system.sys.joinpath(*_below_sys(directory), "memory.limit_in_bytes")
    )
    if version_1 is not None:
        return f"echo -1 | sudo tee {directory}/memory.limit_in_bytes", ""
    return f"echo max | sudo tee {directory}/memory.max {directory}/memory.high", ""


def _below_sys(directory: PurePosixPath) -> tuple[str, ...]:
    parts = directory.parts
    return parts[2:] if parts[:2] == ("/", "sys") else parts[1:]


def _raise_process_limit(case: Case, option: str) -> tuple[str, str]:
    """Suggest ``ulimit`` within the hard limit, or else a command that requires root."""
    row, name = _PROCESS_LIMITS[option]
    limits = case.system.text(case.system.proc / "self/limits") or ""
    is_soft = re.search(rf"^Max {row} +\S+ +unlimited ", limits, re.MULTILINE)
    command = (
        f"ulimit {option} unlimited" if is_soft else f"sudo prlimit --pid $$ --{name}=unlimited"
    )
    return command, "in the shell that starts potluck"


def swap(case: Case) -> Iterator[Finding]:
    """Check for heavily used swap, or no swap on a small machine."""
    values = read_sizes(case.system, case.system.proc / "meminfo")
    total, free = values.get("SwapTotal"), values.get("SwapFree")
    if total is None or free is None:
        return
    used = total - free
    if used > _MOST_SWAPPED_BYTES:
        fits = values.get("MemAvailable", 0) > 2 * used
        yield Finding(
            check="swap",
            severity=Severity.NOTE,
            message=f"{format_bytes(used)} are swapped out: a model in swap is slowed down by"
            " the disk",
            command="sudo swapoff -a && sudo swapon -a"
            if fits
            else "ps axk -rss o rss,comm | head",
            details="" if fits else "shows what uses the memory; stop programs that are not needed",
        )
    is_small = case.report.memory.total_bytes < _NO_SWAP_NEEDED_BYTES
    if total == 0 and is_small and not case.container:
        yield Finding(
            check="swap",
            severity=Severity.NOTE,
            message="there is no swap: when memory runs out, processes are killed without warning",
            command=_add_swap(case),
        )


def _add_swap(case: Case) -> str:
    """Suggest compressed swap in memory if a package provides it, since boards have slow disks."""
    compressed = {"apt": "zram-tools", "dnf": "zram-generator-defaults"}
    return case.distribution.install(compressed) or (
        "sudo fallocate -l 2G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile "
        "&& sudo swapon /swapfile"
    )


def small_shared_memory(case: Case) -> Iterator[Finding]:
    """Check for ``/dev/shm`` that is missing, or smaller than programs expect."""
    size = case.shared_memory_bytes
    if size is not None and size >= _SHARED_MEMORY_BYTES:
        return
    if tool := case.container_tool:
        command = f"{tool} run --shm-size 1g …"
    elif size is None:
        command = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm"
    else:
        command = "sudo mount -o remount,size=1G /dev/shm"
    problem = "is missing" if size is None else f"is only {format_bytes(size)}"
    yield Finding(
        check="shared-memory",
        severity=Severity.NOTE,
        message=f"/dev/shm {problem}: drivers and libraries that use shared memory fail",
        command=command,
    )
