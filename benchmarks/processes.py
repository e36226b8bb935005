"""Facts about processes on this machine, read from ``/proc``."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

UNEVICTABLE = ("RssAnon", "RssShmem")
"""The fields of memory that the kernel cannot evict: a process's own pages and shared memory."""


def memory_bytes(pid: int | str, *fields: str) -> int:
    """Return the sum of ``fields`` of ``/proc/PID/status``; 0 if the process has ended."""
    prefixes = tuple(f"{field}:" for field in fields)
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith(prefixes)]
    return sum(int(line.split()[1]) * 1024 for line in lines)


def num_descriptors(pid: int) -> int:
    """Return the number of open files and sockets of a process; 0 if it has ended."""
    with suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


def scheduled_seconds(pid: int) -> tuple[float, float]:
    """Return the seconds that a process's threads ran, and those that they waited for a core."""
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):
            first, second, _ = path.read_text(encoding="ascii").split()
            ran, waited = ran + int(first), waited + int(second)
    return ran / 1e9, waited / 1e9
