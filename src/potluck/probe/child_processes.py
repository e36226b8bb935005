"""A child and everything it has started, as ``/proc`` shows them: memory held, waits for a CPU."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_MOST_THREADS = 64
"""Of a process, that are looked at: a pool has a thread for each core, and they fare alike."""

_MOST_SWEEPS = 10
"""One kills all that there is; what a process had started meanwhile, the next one."""


class Processes:
    """The processes below ``pid``, and that one; for one thread.

    On a loaded machine a compiler takes several times as long, which is no fault of the device. How
    long anything here was ready to run while others ran is in ``queued_seconds``
    (``Documentation/scheduler/sched-stats.rst``: time on the CPU, time in the queue, in
    nanoseconds). It grows with every look by the wait of the thread that waited longest in between:
    threads wait at the same time, and a process that waits for another one does not queue. It stays
    0 where the kernel does not count.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._queued: dict[tuple[int, str], int] = {}
        self.queued_seconds = 0.0
        self.resident_bytes = 0

    def look(self) -> None:
        """Bring both figures up to date."""
        queued: dict[tuple[int, str], int] = {}
        num_bytes, waiting = 0, [self._pid]
        while waiting:
            pid = waiting.pop()
            num_bytes += _resident_bytes(pid)
            for task in _tasks(pid):
                queued[pid, task.name] = _queued_nanoseconds(task)
                waiting.extend(int(child) for child in _bytes(task / "children").split())
        waits = (now - self._queued.get(task, 0) for task, now in queued.items())
        self.queued_seconds += max(waits, default=0) / 1e9
        self._queued = queued
        self.resident_bytes = num_bytes


def kill_marked(mark: str) -> None:
    """Kill every process of this user whose environment has ``mark``, such as ``NAME=value``.

    A killed process has no environment, so that this ends when there is nothing left to kill.
    """
    for _ in range(_MOST_SWEEPS):
        found = [
            path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)
        ]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        if not found:
            return


def _has(environment: Path, mark: str) -> bool:
    return mark.encode() in _bytes(environment).split(b"\0")


def _tasks(pid: int) -> Iterator[Path]:
    """The directories of a process's threads; none if it ends right now."""
    try:
        for number, task in enumerate(Path(f"/proc/{pid}/task").iterdir()):
            if number == _MOST_THREADS:
                return
            yield task
    except OSError:
        return


def _queued_nanoseconds(task: Path) -> int:
    fields = _bytes(task / "schedstat").split()
    return int(fields[1]) if len(fields) > 1 else 0


def _resident_bytes(pid: int) -> int:
    """What a process holds in memory, mapped files excepted.

    ``proc(5)``: ``RssAnon`` and ``RssShmem`` of ``/proc/PID/status``, since Linux 4.5; before,
    ``VmRSS``, which counts files too. A limit on the address space would be simpler, but CUDA
    reserves hundreds of gigabytes that it never uses.
    """
    lines = _bytes(Path(f"/proc/{pid}/status")).splitlines()
    fields = dict(line.split(b":", 1) for line in lines if b":" in line)
    counted = (b"RssAnon", b"RssShmem") if b"RssAnon" in fields else (b"VmRSS",)
    return sum(int(fields[name].split()[0]) * 1024 for name in counted if name in fields)


def _bytes(path: Path) -> bytes:
    """A file of ``/proc``; nothing if the process ends right now or the kernel has no such file."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
