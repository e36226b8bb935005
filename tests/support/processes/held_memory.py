"""How much memory a process holds that is nobody else's: anonymous, and shared by mapping."""

from __future__ import annotations

import os
import select
from typing import IO

_SAMPLE_SECONDS = 0.01


def held_bytes(status: int) -> int:
    """RssAnon + RssShmem, from an open ``/proc/PID/status``."""
    total = 0
    for line in os.pread(status, 8192, 0).decode("ascii", errors="replace").splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) * 1024
    return total


def peak_until_output(status: int, output: IO[bytes]) -> int:
    """The most that is held until something can be read from ``output``."""
    peak = held_bytes(status)
    while not select.select([output], [], [], _SAMPLE_SECONDS)[0]:
        peak = max(peak, held_bytes(status))
    return max(peak, held_bytes(status))
