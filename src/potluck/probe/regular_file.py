"""Files read without ever waiting for them: a pipe or a device in the place of one is no file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """At most ``max_bytes`` of a regular file, as those of sysfs and procfs are too.

    Raises ``OSError`` if it cannot be read or is none, and ``ValueError`` for a NUL in its name.
    """
    # Looked at before it is opened, as opening a device can change it (a tape is rewound), and
    # opened without waiting for a writer, as it may be another file by then.
    _check_regular(path, path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb", closefd=True) as file:  # noqa: PTH123 - a descriptor
        _check_regular(path, os.fstat(descriptor).st_mode)
        return file.read(max_bytes)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
