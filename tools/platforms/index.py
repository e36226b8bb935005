"""The package index that pip uses, by its JSON (PEP 691, PEP 658, PEP 700)."""

from __future__ import annotations

import email.parser
import http
import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from functools import cache
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion

from tools.platforms.release import ReleaseFile

_PYPI = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_SECONDS = 60.0


class PackageIndex:
    """An index at a URL; responses are cached."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._files: dict[str, tuple[ReleaseFile, ...]] = {}
        self._requirements: dict[str, tuple[Requirement, ...]] = {}

    def files(self, project: str) -> tuple[ReleaseFile, ...]:
        """Return all files of a project that are not yanked and have the name of a release."""
        if project not in self._files:
            listing = json.loads(_fetch(f"{self._url}/{canonicalize_name(project)}/", _JSON))
            listed = (_release(each) for each in listing["files"] if not each.get("yanked"))
            self._files[project] = tuple(file for file in listed if file is not None)
        return self._files[project]

    def requirements(self, wheel: ReleaseFile) -> tuple[Requirement, ...]:
        """Return the requirements in a wheel's metadata, including those of extras."""
        if wheel.url not in self._requirements:
            metadata = email.parser.BytesParser().parsebytes(_metadata(wheel.url))
            lines = metadata.get_all("Requires-Dist") or ()
            self._requirements[wheel.url] = tuple(map(Requirement, lines))
        return self._requirements[wheel.url]


@cache
def configured_index() -> str:
    """Return the index that pip uses: its ``index-url``, or PyPI."""
    command = (sys.executable, "-m", "pip", "config", "get", "global.index-url")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or _PYPI


def _release(listed: dict[str, Any]) -> ReleaseFile | None:
    name: str = listed["filename"]
    tags: frozenset[Tag] = frozenset()
    try:
        if name.endswith(".whl"):
            _, version, _, tags = parse_wheel_filename(name)
        else:
            _, version = parse_sdist_filename(name)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return ReleaseFile(
        url=listed["url"],
        version=version,
        tags=tags,
        requires_python=_pythons(listed.get("requires-python") or ""),
        uploaded=listed["upload-time"][:10],
    )


def _pythons(written: str) -> SpecifierSet:
    """Parse the Python versions; an invalid specifier allows any, as in pip."""
    try:
        return SpecifierSet(written)
    except InvalidSpecifier:
        return SpecifierSet()


def _metadata(wheel: str) -> bytes:
    """Return the wheel's metadata, which most indexes serve as a separate file."""
    try:
        return _fetch(f"{wheel}.metadata")
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise
    with zipfile.ZipFile(io.BytesIO(_fetch(wheel))) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


def _fetch(address: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        content: bytes = response.read()
    return content
