"""Limits below what the machine has, swap, and shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from potluck.probe.doctor.case import Case
from potluck.probe.doctor.finding import Finding, Severity
from potluck.quantities import format_bytes

_MIB = 1 << 20
_GIB = 1 << 30

_MOST_SWAPPED_BYTES = 256 * _MIB
"""What a desktop leaves in swap without anybody noticing."""

_NO_SWAP_NEEDED_BYTES = 8 * _GIB
"""Machines with less run out first, and then the kernel ends processes without warning."""

_SHARED_MEMORY_BYTES = 64 * _MIB
"""What containers get unless told otherwise; runtimes of GPUs and others count on it."""


_PROCESS_LIMITS = {"-v": ("address space", "as"), "-d": ("data size", "data")}
"""By the option of ulimit: the row in /proc/self/limits, the option of prlimit(1)."""


def low_limit(case: Case) -> Iterator[Finding]:
    """A control group or ``ulimit -v`` that leaves less than half of what the machine has free."""
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
            f"{format_bytes(usable.bytes)} of memory may be used here, and the machine has "
            f"{format_bytes(memory.free_bytes)} free: {usable.reason} says so"
        ),
        command=command,
        details=details,
    )


def unknown_memory(case: Case) -> Iterator[Finding]:
    """Memory of which nothing is known, so that none of it is used."""
    memory = case.report.memory
    if memory.total_bytes == 0:
        yield Finding(
            check="memory",
            severity=Severity.PREVENTS,
            message=f"no memory may be used: {memory.usable.reason}",
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
    """The shell can, up to the hard limit; above that only root."""
    row, name = _PROCESS_LIMITS[option]
    limits = case.system.text(case.system.proc / "self/limits") or ""
    is_soft = re.search(rf"^Max {row} +\S+ +unlimited ", limits, re.MULTILINE)
    command = (
        f"ulimit {option} unlimited" if is_soft else f"sudo prlimit --pid $$ --{name}=unlimited"
    )
    return command, "in the shell that starts potluck"


def swap(case: Case) -> Iterator[Finding]:
    """Much of it in use, or none on a small machine."""
    values = _meminfo(case)
    total, free = values.get("SwapTotal"), values.get("SwapFree")
    if total is None or free is None:
        return
    used = total - free
    if used > _MOST_SWAPPED_BYTES:
        fits = values.get("MemAvailable", 0) > 2 * used
        yield Finding(
            check="swap",
            severity=Severity.NOTE,
            message=f"{format_bytes(used)} are swapped out: a model that is waits for the disk",
            command="sudo swapoff -a && sudo swapon -a"
            if fits
            else "ps axk -rss o rss,comm | head",
            details="" if fits else "shows what takes the memory; end what is not needed",
        )
    is_small = case.report.memory.total_bytes < _NO_SWAP_NEEDED_BYTES
    if total == 0 and is_small and not case.container:
        yield Finding(
            check="swap",
            severity=Severity.NOTE,
            message="there is no swap: when memory runs short, processes are ended without warning",
            command=_add_swap(case),
        )


def _add_swap(case: Case) -> str:
    """Compressed in memory where a package sets that up: boards have slow disks."""
    compressed = {"apt": "zram-tools", "dnf": "zram-generator-defaults"}
    return case.distribution.install(compressed) or (
        "sudo fallocate -l 2G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile "
        "&& sudo swapon /swapfile"
    )


def _meminfo(case: Case) -> dict[str, int]:
    """Of proc(5), in bytes."""
    text = case.system.text(case.system.proc / "meminfo") or ""
    pairs = re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in pairs}


def small_shared_memory(case: Case) -> Iterator[Finding]:
    """``/dev/shm`` is missing, or holds less than programs count on."""
    size = case.shared_memory_bytes
    if size is not None and size >= _SHARED_MEMORY_BYTES:
        return
    if tool := case.container_tool:
        command = f"{tool} run --shm-size 1g …"
    elif size is None:
        command = "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm"
    else:
        command = "sudo mount -o remount,size=1G /dev/shm"
    said = "is missing" if size is None else f"holds only {format_bytes(size)}"
    yield Finding(
        check="shared-memory",
        severity=Severity.NOTE,
        message=f"/dev/shm {said}: drivers and libraries that share memory fail",
        command=command,
    )
