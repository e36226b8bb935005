"""What the kernel says of a process or thread in ``/proc/PID/stat`` (``proc_pid_stat(5)``)."""

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
    """``cpu_ticks`` and ``num_major_faults`` (pages that had to be read) since the start."""

    is_stopped: bool
    cpu_ticks: int
    num_major_faults: int


def process_stat(pid: int) -> ProcessStat | None:
    """Return what a process does; None if there is none."""
    return _read(_PROC / str(pid) / "stat")


def other_threads(pid: int) -> list[ProcessStat]:
    """Return what all threads of a process but its first do; none of a process that is gone."""
    found = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            if thread.name != str(pid) and (stat := _read(thread / "stat")) is not None:
                found.append(stat)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger; False if there is none."""
    stat = process_stat(pid)
    return stat is not None and stat.is_stopped


def _read(path: Path) -> ProcessStat | None:
    with suppress(OSError, ValueError, IndexError):
        text = path.read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return ProcessStat(
            is_stopped=fields[0] in _STOPPED,
            cpu_ticks=int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]),
            num_major_faults=int(fields[_MAJOR_FAULTS]),
        )
    return None
