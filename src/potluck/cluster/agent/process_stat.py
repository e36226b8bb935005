"""Reads the kernel's figures of a process from ``/proc/PID/stat`` (``proc_pid_stat(5)``), and of
its threads from ``schedstat`` beside it (the kernel's ``scheduler/sched-stats.rst``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STOPPED = "Tt"
"""The states of a process stopped by a signal such as SIGSTOP, and by a debugger."""
_ENDED = "ZX"
"""The states of a process that has exited: not yet waited for, or being removed."""

_FIRST_FIELD = 3
"""The number of the first field after the name, which may contain anything, including spaces and
parentheses."""
_PARENT, _MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS, _START_TICKS = (
    number - _FIRST_FIELD for number in (4, 12, 14, 15, 22)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """``cpu_time`` and ``num_major_faults`` (pages that had to be read) since the start.

    The time is in nanoseconds if the kernel provides them, and else in ticks, usually of 10 ms:
    compare it only with earlier values of the same process. ``start_ticks`` is since the boot.
    """

    is_stopped: bool
    has_ended: bool
    parent: int
    start_ticks: int
    cpu_time: int
    num_major_faults: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return the figures of a process; None if it does not exist."""
    return _read(_PROC / str(pid))


def other_threads(pid: int) -> list[ProcessStat]:
    """Return the figures of all threads of a process but the first; empty if it does not exist."""
    found = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            if thread.name != str(pid) and (stat := _read(thread)) is not None:
                found.append(stat)
    return found


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger; False if it does not exist."""
    stat = process_stat(pid)
    return stat is not None and stat.is_stopped


def _read(folder: Path) -> ProcessStat | None:
    with suppress(OSError, ValueError, IndexError):
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        return ProcessStat(
            is_stopped=fields[0] in _STOPPED,
            has_ended=fields[0] in _ENDED,
            parent=int(fields[_PARENT]),
            start_ticks=int(fields[_START_TICKS]),
            cpu_time=_nanoseconds(folder) or ticks,
            num_major_faults=int(fields[_MAJOR_FAULTS]),
        )
    return None


def _nanoseconds(folder: Path) -> int:
    """Return the CPU time; 0 if the kernel does not keep it (no ``CONFIG_SCHED_INFO``)."""
    with suppress(OSError, ValueError, IndexError):
        return int((folder / "schedstat").read_text(encoding="ascii").split()[0])
    return 0
