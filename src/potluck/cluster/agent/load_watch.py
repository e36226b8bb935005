"""Detects whether a loading worker makes progress: it reports progress, computes, reads or writes.

Whatever takes long (quantizing a large tensor, a slow disk, a slow download) does one of these. A
worker that waits for a disk or a lock that never responds does none. A worker that the kernel
reports as stopped is given up immediately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from potluck.cluster.agent.process_stat import is_stopped
from potluck.types.quantities import format_seconds

STALL_SECONDS = 120.0
"""The time limit without any sign of progress. The longest pause of a healthy worker is one that
the hub requests, which is honoured up to a minute (``catalog.hub_client``); a disk that spins up
takes about ten seconds, and writing 64 MiB to a slow SD card half a minute."""

STOPPED_SECONDS = 3.0
"""The time limit for a stopped worker. Attaching a debugger stops it for milliseconds."""

_CHECKS = 8
"""Checks per time limit: a stall is detected at most an eighth later."""
_MOST_SECONDS = 0.5


Activity = tuple[float, ...]


def process_activity(pid: int) -> Activity:
    """Return numbers that grow while a process is active; none if it cannot be read."""
    found: list[float] = []
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        times = process.cpu_times()
        found += [times.user + times.children_user, times.system + times.children_system]
        counters = process.io_counters()
        found += [counters.read_chars, counters.write_chars]
        found += [counters.read_bytes, counters.write_bytes]
    return tuple(found)


class LoadWatch:
    """Watches one worker; ``check`` is called every ``check_seconds``."""

    def __init__(
        self,
        pid: int,
        stall_seconds: float,
        *,
        activity_of: Callable[[int], Activity] = process_activity,
        is_stopped: Callable[[int], bool] = is_stopped,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._stall_seconds = stall_seconds
        self._stopped_seconds = min(STOPPED_SECONDS, stall_seconds)
        self._activity_of = activity_of
        self._is_stopped = is_stopped
        self._clock = clock
        self._activity = activity_of(pid)
        self._moved_at = clock()
        self._stopped_at: float | None = None
        self.check_seconds = min(_MOST_SECONDS, stall_seconds / _CHECKS)

    def progressed(self) -> None:
        """Record that the worker reported progress."""
        self._moved_at = self._clock()

    def check(self) -> str:
        """Return why the worker must be given up; empty while it makes progress, or still may."""
        activity, now = self._activity_of(self._pid), self._clock()
        if activity != self._activity:
            self._activity, self._moved_at = activity, now
        if not self._is_stopped(self._pid):
            self._stopped_at = None
        elif self._stopped_at is None or self._moved_at > self._stopped_at:
            self._stopped_at = now
        elif now - self._stopped_at >= self._stopped_seconds:
            return "its worker was stopped by a signal or a debugger while it loaded"
        if now - self._moved_at >= self._stall_seconds:
            seconds = format_seconds(self._stall_seconds)
            return f"its worker made no progress for {seconds} while it loaded"
        return ""
