"""Find vendors' libraries by name, without opening them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from potluck.probe.doctor.case import Case

_DIRECTORIES = (
    "/usr/lib/{machine}-linux-gnu",
    "/usr/lib/{machine}-linux-gnu/mali",
    "/usr/lib/{machine}-linux-gnu/nvidia",
    "/usr/lib/{machine}-linux-gnu/nvidia/current",
    "/usr/lib/{machine}-linux-gnu/tegra",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/mali",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/vendor/lib64",
    "/system/vendor/lib64",
)
"""Directories of Debian and Fedora derivatives, Arch, vendors' installers, WSL and Android."""


def libraries(case: Case, pattern: str) -> Iterator[PurePosixPath]:
    """Return files whose whole name matches ``pattern``, by their paths on the machine."""
    seen: set[Path] = set()
    usual = (each.format(machine=case.report.cpu.architecture) for each in _DIRECTORIES)
    for directory in (*case.library_folders, *usual):
        path = case.below_files(directory)
        try:
            resolved = path.resolve()  # /usr/lib64 may be a link to /usr/lib
        except (OSError, RuntimeError):  # RuntimeError: a loop of links
            continue
        if resolved in seen:
            continue
        seen.add(resolved)
        for file in case.system.entries(path):
            if re.fullmatch(pattern, file.name):
                yield PurePosixPath(directory) / file.name
