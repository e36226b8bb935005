"""Measure the memory of a child and its descendants, and their time waiting for a CPU."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_MOST_THREADS = 64
"""The threads examined per process: a pool has one per core, and all of them wait equally long."""

_MOST_SWEEPS = 10
"""Each round kills all processes that exist; the next round those that were started meanwhile."""


class Processes:
    """The process ``pid`` and its descendants. Not thread-safe.

    On a busy machine a compiler takes several times as long, which is not the device's fault.
    ``queued_seconds`` is the time in which these processes were ready to run but had no CPU
    (``Documentation/scheduler/sched-stats.rst``: time on the CPU and time in the queue, in
    nanoseconds). Each call of ``look`` adds the wait of the thread that waited longest since the
    last one, because threads wait at the same time, and a process that waits for another is not in
    the queue. It stays 0 if the kernel does not measure it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._queued: dict[tuple[int, str], int] = {}
        self.queued_seconds = 0.0
        self.resident_bytes = 0

    def look(self) -> None:
        """Update both figures."""
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

    A killed process has no environment, so this ends when no such process is left.
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
    """Yield the directories of a process's threads; none if it is just ending."""
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
    """Return the memory of a process, not counting mapped files.

    ``proc(5)``: ``RssAnon`` and ``RssShmem`` of ``/proc/PID/status``, since Linux 4.5; before,
    ``VmRSS``, which counts files too. A limit on the address space would be simpler, but CUDA
    reserves hundreds of gigabytes that it never uses.
    """
    lines = _bytes(Path(f"/proc/{pid}/status")).splitlines()
    fields = dict(line.split(b":", 1) for line in lines if b":" in line)
    counted = (b"RssAnon", b"RssShmem") if b"RssAnon" in fields else (b"VmRSS",)
    return sum(int(fields[name].split()[0]) * 1024 for name in counted if name in fields)


def _bytes(path: Path) -> bytes:
    """Read a file of ``/proc``; empty if the process is ending or the kernel lacks the file."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
