"""Wheels unpacked to where a Python of a root imports them from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from potluck.portability.wheels.tags import LEGACY_POLICIES

SITE = PurePosixPath("lib/python3.11/site-packages")
"""The path of modules in a prefix; files installed with them rely on this depth."""

_OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}
"""The minor version of glibc 2.x in the first policy of each machine (PEP 600)."""


def unzip_wheel(wheel: Path, prefix: Path) -> None:
    """Unpack a wheel to ``prefix`` and ``SITE`` in it, as an installer does but for its scripts."""
    site = prefix / SITE
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    places = {"purelib": site, "platlib": site, "data": prefix}
    for scheme, place in places.items():
        for folder in site.glob(f"*.data/{scheme}"):
            for file in sorted(folder.rglob("*")):
                target = place / file.relative_to(folder)
                if file.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    file.rename(target)


def install_for(
    site: Path, requirements: Sequence[str], *, machine: str, glibc_minor: int, python: str
) -> None:
    """Let pip choose and unpack wheels for another machine: glibc 2.``glibc_minor``, ``3.11``.

    Raises ``CalledProcessError`` with what pip said in ``stderr``.
    """
    platforms = manylinux_platforms(machine, glibc_minor)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--target", str(site), "--no-compile", "--only-binary", ":all:"),
            *("--implementation", "cp", "--python-version", python),
            *(f"--platform={platform}" for platform in platforms),
            *requirements,
        ],
        check=True,
        capture_output=True,
        text=True,
    )


def manylinux_platforms(machine: str, glibc_minor: int) -> tuple[str, ...]:
    """Return the platform tags that glibc 2.``glibc_minor`` accepts, newest first."""
    oldest = _OLDEST_MINOR[machine]
    numbered = [f"manylinux_2_{minor}" for minor in range(glibc_minor, oldest - 1, -1)]
    named = [name for name, (_, minor) in LEGACY_POLICIES.items() if oldest <= minor <= glibc_minor]
    return tuple(f"{each}_{machine}" for each in (*numbered, *reversed(named)))
