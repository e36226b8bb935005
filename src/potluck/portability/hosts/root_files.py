"""Access to the files of a Linux system whose root may be a directory of this one.

Links are resolved as if that directory were ``/``: an absolute link points into the tree. No
contents make it raise: what cannot be read is treated as missing.
"""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

_MAX_FILE_BYTES = 1 << 24
"""The largest files that are read whole are ``/etc/ld.so.cache`` and ``/proc/cpuinfo``, of about 1
MB.
"""

_MAX_STEPS = 400
"""Limit of the components of a path, including those of links; Linux follows 40 links."""


@dataclass(frozen=True, slots=True)
class RootFiles:
    """Reads files under ``root``. Paths are absolute within that system."""

    root: Path
    _names: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    def real_path(self, path: str) -> str | None:
        """Return ``path`` with all links resolved; None if it does not exist, or the links form a
        loop.
        """
        pending = [*reversed(PurePosixPath(path).parts[1:])]
        real = PurePosixPath("/")
        for _ in range(_MAX_STEPS):
            if not pending:
                return str(real)
            part = pending.pop()
            if part == "..":
                real = real.parent
                continue
            try:
                status = self._here(real / part).lstat()
                if not stat.S_ISLNK(status.st_mode):
                    real /= part
                    continue
                target = PurePosixPath(self._here(real / part).readlink())
            except (OSError, ValueError):  # a ValueError: a NUL in a name
                return None
            if target.is_absolute():
                real = PurePosixPath("/")
            pending += reversed([each for each in target.parts if each != "/"])
        return None

    def names(self, directory: str) -> frozenset[str]:
        """Return the contents of a directory, which is read once."""
        if directory not in self._names:
            real = self.real_path(directory)
            try:
                here = None if real is None else self._here(PurePosixPath(real))
                found = [each.name for each in here.iterdir()] if here else []
            except OSError:
                found = []
            self._names[directory] = frozenset(found)
        return self._names[directory]

    def matches(self, pattern: str) -> list[str]:
        """Return the files of one directory whose names match the last part of ``pattern``, sorted
        by name.
        """
        directory, _, name = pattern.rpartition("/")
        found = sorted(each for each in self.names(directory or "/") if fnmatchcase(each, name))
        return [f"{directory}/{each}" for each in found]

    def text(self, path: str) -> str:
        """Return a text file's contents; empty if it cannot be read."""
        return self.content(path).decode("utf-8", errors="replace")

    def content(self, path: str) -> bytes:
        """Return at most 16 MiB of a file; empty if it cannot be read."""
        real = self._file(path)
        if real is None:
            return b""
        try:
            with real.open("rb") as file:
                return file.read(_MAX_FILE_BYTES)
        except OSError:
            return b""

    def mapped(self, path: str) -> mmap.mmap | None:
        """Return a file, mapped into memory; None if it is empty or unreadable."""
        real = self._file(path)
        if real is None:
            return None
        try:
            with real.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # a ValueError: an empty file
            return None

    def _file(self, path: str) -> Path | None:
        """Return the path of a regular file on this machine. Reading a pipe or a device could
        block.
        """
        real = self.real_path(path)
        if real is None:
            return None
        here = self._here(PurePosixPath(real))
        return here if here.is_file() else None

    def _here(self, path: PurePosixPath) -> Path:
        return self.root / path.relative_to("/")
