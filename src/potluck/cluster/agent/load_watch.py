"""Whether a worker that loads gets on: it says how far it is, or computes, reads or writes.

What takes long (a large tensor that is quantized, a slow disk, a slow download) does one of these.
A worker that waits for a disk or a lock that never answers does none. Of one that was stopped the
kernel says so, and nothing else is to be waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from potluck.cluster.agent.process_stat import is_stopped
from potluck.quantities import format_seconds

STALL_SECONDS = 120.0
"""Without any sign of progress. The longest that a sound worker does nothing is a pause that the
hub asks for, which is obeyed up to a minute (``catalog.hub_client``); a disk that spins up takes
some ten seconds, and 64 MiB on their way to a slow SD card half a minute."""

STOPPED_SECONDS = 3.0
"""For a worker that the kernel says was stopped. Whoever attaches a debugger stops it for
milliseconds."""

_LOOKS = 8
"""Within that time: a stall is found at most an eighth later."""
_MOST_SECONDS = 0.5


Activity = tuple[float, ...]


def process_activity(pid: int) -> Activity:
    """Numbers that grow while a process does something; nothing of one that cannot be read."""
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
    """Watches one worker; ``look`` is called every ``look_seconds``."""

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
        self.look_seconds = min(_MOST_SECONDS, stall_seconds / _LOOKS)

    def heard(self) -> None:
        """It said how far it is."""
        self._moved_at = self._clock()

    def look(self) -> str:
        """Return why it has to be given up; empty while it makes progress, or may yet."""
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
