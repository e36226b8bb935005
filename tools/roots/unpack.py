"""Unpack packages to where installing them would put their files."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.roots.archive import download, find_packages
from tools.roots.package_set import PackageSet

_MERGED = ("bin", "lib", "lib64", "sbin")
"""Since Debian 13 packages have these under ``usr`` only; links of that name lead there."""


def unpack(package_set: PackageSet, folder: Path, downloads: Path) -> None:
    """Unpack the set's packages to ``folder``; ``downloads`` keeps them.

    Raises ``ArchiveError`` if packages are unavailable, ``FileNotFoundError`` or
    ``CalledProcessError`` if dpkg-deb is missing or fails.
    """
    for package in find_packages(package_set):
        path = download(package, downloads)
        subprocess.run(["dpkg-deb", "-x", path, folder], check=True)
    for name in _MERGED:
        if (folder / "usr" / name).is_dir() and not (folder / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
