"""Read regular files without blocking: pipes and devices are rejected."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` of a regular file; files of sysfs and procfs are regular too.

    Raise ``OSError`` if it cannot be read or is not a regular file, and ``ValueError`` if its name
    contains a NUL.
    """
    # The type is checked before opening, because opening a device can change it (a tape is
    # rewound). The file is opened without waiting for a writer, because it may have been replaced.
    _check_regular(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb", closefd=True) as file:  # noqa: PTH123 - a descriptor
        _check_regular(path, os.fstat(descriptor).st_mode)
        return file.read(max_bytes)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
