"""Python's headers for every machine, from Debian's packages: they need not be installed here.

The packages are pinned, with their digests, in ``python_headers.toml``. Debian writes ``#if`` by
machine into ``pyconfig.h``, so that one folder serves all machines.
"""

from __future__ import annotations

import hashlib
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.debian_package import installed_files
from tools.wheels.errors import DownloadError

_PINS = Path(__file__).with_name("python_headers.toml")
_TIMEOUT_SECONDS = 60.0
_INCLUDE = PurePosixPath("usr/include")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPackage:
    """A package: its URLs, the preferred one first, and its SHA-256."""

    urls: tuple[str, ...]
    sha256: str


def pinned_packages(version: str) -> tuple[PinnedPackage, ...]:
    """Return the packages with the headers of Python ``version`` (``3.11``), one per machine."""
    pins = tomllib.loads(_PINS.read_text(encoding="utf-8"))
    return tuple(
        PinnedPackage(
            urls=tuple(f"{each}/{pin['path']}" for each in pins["archives"]), sha256=pin["sha256"]
        )
        for pin in pins["package"]
        if pin["python"] == version
    )


def include_directories(version: str, folder: Path) -> tuple[Path, Path]:
    """Return the folders with the headers of Python ``version``, unpacked in ``folder``; packages
    that are there already are not downloaded again.

    Raises ``DownloadError`` if a package is unavailable, or is not the pinned one.
    """
    packages = pinned_packages(version)
    include = folder / version / _INCLUDE
    done = folder / version / "packages"
    wanted = "".join(f"{package.sha256}\n" for package in packages)
    if not done.exists() or done.read_text(encoding="ascii") != wanted:
        for package in packages:
            _extract(fetch(package), folder / version)
        done.write_text(wanted, encoding="ascii")
    return include / f"python{version}", include


def fetch(package: PinnedPackage) -> bytes:
    """Download the package from the first URL that has it. Raise ``DownloadError`` if none has."""
    reasons = []
    for url in package.urls:
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
                content: bytes = response.read()
        except (urllib.error.URLError, TimeoutError) as error:
            reasons.append(f"{url}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == package.sha256:
            return content
        reasons.append(f"{url}: not the file whose SHA-256 is pinned")
    raise DownloadError("; ".join(reasons))


def _extract(package: bytes, folder: Path) -> None:
    for path, content in installed_files(package):
        if path.is_relative_to(_INCLUDE) and ".." not in path.parts:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
