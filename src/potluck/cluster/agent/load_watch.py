"""Whether a worker that loads gets on: it says how far it is, or computes, reads or writes.

What takes long (a large tensor that is quantized, a slow disk, a slow download) does one of these.
A worker that was stopped, or waits for a disk or a lock that never answers, does none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

STALL_SECONDS = 120.0
"""Without any sign of progress. The longest that a sound worker does nothing is a pause that the
hub asks for, which is obeyed up to a minute (``catalog.hub_client``); a disk that spins up takes
some ten seconds, and 64 MiB on their way to a slow SD card half a minute."""

_LOOKS = 8
"""Within that time: a stall is found at most an eighth later."""
_MOST_SECONDS = 2.0


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._stall_seconds = stall_seconds
        self._activity_of = activity_of
        self._clock = clock
        self._activity = activity_of(pid)
        self._moved_at = clock()
        self.look_seconds = min(_MOST_SECONDS, stall_seconds / _LOOKS)

    def heard(self) -> None:
        """It said how far it is."""
        self._moved_at = self._clock()

    def look(self) -> bool:
        """Whether it has shown no sign of progress for too long."""
        activity, now = self._activity_of(self._pid), self._clock()
        if activity != self._activity:
            self._activity, self._moved_at = activity, now
        return now - self._moved_at >= self._stall_seconds
