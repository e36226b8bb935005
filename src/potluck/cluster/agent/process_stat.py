"""What the kernel says of a process in ``/proc/PID/stat`` (``proc_pid_stat(5)``) and of its threads
in ``schedstat`` beside it (the kernel's ``scheduler/sched-stats.rst``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STOPPED = "Tt"
"""By a signal such as SIGSTOP, and by a debugger."""

_FIRST_FIELD = 3
"""After the name, which may hold anything, also spaces and parentheses."""
_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = (number - _FIRST_FIELD for number in (12, 14, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """``cpu_time`` and ``num_major_faults`` (pages that had to be read) since the start.

    The time is in nanoseconds where the kernel tells, and else in ticks of 10 ms, as a rule: it is
    for comparison with itself only.
    """

    is_stopped: bool
    cpu_time: int
    num_major_faults: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return what a process does; None if there is none."""
    return _read(_PROC / str(pid))


def other_threads(pid: int) -> list[ProcessStat]:
    """Return what all threads of a process but its first do; none of a process that is gone."""
    found = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            if thread.name != str(pid) and (stat := _read(thread)) is not None:
                found.append(stat)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; False if there is none."""
    stat = process_stat(pid)
    return stat is not None and stat.is_stopped


def _read(folder: Path) -> ProcessStat | None:
    with suppress(OSError, ValueError, IndexError):
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        return ProcessStat(
            is_stopped=fields[0] in _STOPPED,
            cpu_time=_nanoseconds(folder) or ticks,
            num_major_faults=int(fields[_MAJOR_FAULTS]),
        )
    return None


def _nanoseconds(folder: Path) -> int:
    """Return the time on a CPU; 0 where the kernel does not keep it (no ``CONFIG_SCHED_INFO``)."""
    with suppress(OSError, ValueError, IndexError):
        return int((folder / "schedstat").read_text(encoding="ascii").split()[0])
    return 0
