"""Packages of an archive as Debian lays it out: found in its index, fetched, checked.

Formats: https://wiki.debian.org/DebianRepository/Format. What is fetched must have the size and
the SHA-256 that the index states. Nobody's signature of the index is checked: use it for tests.
"""

from __future__ import annotations

import hashlib
import lzma
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.roots.package_set import PackageSet

_TIMEOUT_SECONDS = 60.0


class ArchiveError(Exception):
    """An archive cannot be reached, lacks a package, or does not send what its index says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package as the index has it."""

    name: str
    url: str
    size_bytes: int
    sha256: str


def find_packages(package_set: PackageSet) -> tuple[Package, ...]:
    """Find the packages of a set in its archive's index; return them in the order of the set."""
    base = f"{package_set.archive}/dists/{package_set.suite}/main"
    index = fetch(f"{base}/binary-{package_set.architecture}/Packages.xz")
    text = lzma.decompress(index).decode("utf-8")
    found = {each.name: each for each in _parse(text, package_set.archive, package_set.packages)}
    if missing := [name for name in package_set.packages if name not in found]:
        raise ArchiveError(f"{base} has no {', '.join(missing)}")
    return tuple(found[name] for name in package_set.packages)


def _parse(index: str, archive: str, names: Collection[str]) -> Iterator[Package]:
    """Yield the packages with these names; an index has tens of thousands of others."""
    for stanza in index.split("\n\n"):
        name = stanza.partition("\n")[0].removeprefix("Package: ")
        if name in names:
            lines = (line.partition(": ") for line in stanza.splitlines())
            fields = {key: value for key, _, value in lines}
            yield Package(
                name=name,
                url=f"{archive}/{fields['Filename']}",
                size_bytes=int(fields["Size"]),
                sha256=fields["SHA256"],
            )


def download(package: Package, folder: Path) -> Path:
    """Return the package's file in ``folder``, named by its digest; download a missing one."""
    path = folder / f"{package.sha256}.deb"
    if path.exists():
        return path
    content = fetch(package.url)
    if (len(content), hashlib.sha256(content).hexdigest()) != (package.size_bytes, package.sha256):
        raise ArchiveError(f"{package.url} is not what the index says")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(content)
    return unfinished.rename(path)


def fetch(url: str) -> bytes:
    """Return the contents of a URL. Raise ``ArchiveError`` on failure."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ArchiveError(f"{url}: {error}") from error
    return content
