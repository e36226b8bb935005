"""Descriptors of this process, and whether another one has ended."""

from __future__ import annotations

from pathlib import Path

import psutil


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # and was reaped
        return True
