"""Find alternatives if nothing that was requested fits: an older release, another Python, or a
build from source and what that needs.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.hosts.host import HostPython
from potluck.portability.planning.index import Index, IndexFile, Rejections, Releases
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.plan import Nearest
from potluck.portability.planning.provider import UnresolvableError, resolve
from potluck.portability.planning.target import Target, Want, target_of, wants_of

_NEWEST_MINOR = 14
"""The newest CPython 3.x for which most projects have wheels."""


_MAX_BYTES = 256 << 20
_MAX_FILES = 50_000
_MAX_TOML_BYTES = 1 << 20
_MAX_EXPANDED_BYTES = 2 << 30

_LANGUAGES = {
    ".c": "C",
    ".cc": "C++",
    ".cpp": "C++",
    ".cxx": "C++",
    ".cu": "CUDA",
    ".f": "Fortran",
    ".f90": "Fortran",
    ".go": "Go",
    ".rs": "Rust",
    ".pyx": "Cython",
}

_NOT_BUILT = re.compile(r"(^|/)(vendor[^/]*|third_party|examples?|docs?|[^/]*test[^/]*)(/|$)")
"""Directories that a build does not need, or that contain bundled code."""


def build_needs(file: IndexFile, index: Index) -> str:
    """Return what a build of a source package needs, as the end of a sentence ("needs …"): packages
    for the build, and the languages of its sources.

    Raise ``WheelDownloadError`` or ``WheelFileError`` if it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-source-") as folder:
        path = Path(folder, file.filename)
        num_bytes = index.num_bytes(file)
        if num_bytes is not None and num_bytes > _MAX_BYTES:
            raise WheelDownloadError(f"it has {num_bytes} bytes")
        index.fetch(file, path)
        names, project = _read(path)
    languages = {
        language
        for name in names
        if (language := _LANGUAGES.get(PurePosixPath(name).suffix.lower()))
        and not _NOT_BUILT.search(name.partition("/")[2].lower())
    }
    system = project.get("build-system", {})
    tools = [each for each in system.get("requires", ["setuptools"]) if isinstance(each, str)]
    parts = [f"needs {', '.join(tools)}"] if tools else []
    if languages:
        parts.append(f"has sources in {', '.join(sorted(languages))}, some of which may be unused")
    return ", and ".join(parts) or "needs only Python"


def _read(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the names in an archive, and its pyproject.toml."""
    try:
        names: list[str] = []
        data = b""
        for name, read in _members(path):
            names.append(name)
            if PurePosixPath(name).name == "pyproject.toml" and name.count("/") == 1:
                data = read()
        return names, tomllib.loads(data.decode("utf-8", "replace"))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise WheelFileError(path.name, f"it is malformed ({error})") from None
    except tomllib.TOMLDecodeError:
        return names, {}


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in _first(archive.infolist()):
                yield info.filename, lambda info=info: _head(archive.open(info))
        return
    with tarfile.open(path, "r:*") as tar:
        expanded = 0
        for member in _first(tar):
            expanded += member.size
            if expanded > _MAX_EXPANDED_BYTES:
                raise WheelFileError(path.name, "it expands to more than 2 GiB")
            if member.isreg():
                yield member.name, lambda member=member: _head(tar.extractfile(member))


def _head(file: Any) -> bytes:
    with file:
        data: bytes = file.read(_MAX_TOML_BYTES)
        return data


def _first(members: Iterable[Any]) -> Iterator[Any]:
    for number, member in enumerate(members):
        if number >= _MAX_FILES:
            return
        yield member


class NearestFinder:
    """Searches an index for what fits a host."""

    def __init__(self, judge: Judge, releases: Releases) -> None:
        self._judge = judge
        self._releases = releases

    def find(
        self,
        package: str,
        target: Target,
        requirements: Sequence[Requirement],
        *,
        is_requested: bool,
        may_be_python: bool,
        libraries: frozenset[str],
    ) -> Iterator[Nearest]:
        """Yield what fits ``target`` if ``requirements`` do not because of ``package``.

        ``is_requested``: the user named the package; ``may_be_python``: another Python might help;
        ``libraries`` are those that the newest release misses there, if that is the only reason.
        """
        if is_requested:
            any_release = Want(
                name=package, specifier=SpecifierSet(), hosts=frozenset({target.name})
            )
            version = self._version([any_release], self._judge, package)
            if version:
                yield Nearest(
                    kind="release",
                    message=f"{package} {version} installs and loads there",
                    version=version,
                )
                return
        if libraries:
            yield from self._more_libraries(package, target, requirements, libraries)
        if may_be_python:
            yield from self._other_python(package, target, requirements)
        yield from self._source(package, requirements)

    def _version(self, wants: Sequence[Want], judge: Judge, package: str) -> str:
        """Return the version of a package among the choices; empty if there is none."""
        try:
            choices = resolve(wants, judge, self._releases, Rejections())
        except UnresolvableError:
            return ""
        return next((str(each.version) for each in choices if each.name == package), "")

    def _other_python(
        self, package: str, target: Target, requirements: Iterable[Requirement]
    ) -> Iterator[Nearest]:
        """Return the next newer Python with which it works."""
        for minor in range(target.python.version[1] + 1, _NEWEST_MINOR + 1):
            python = HostPython(implementation="cpython", version=(3, minor))
            other = target_of(replace(target.host, python=python), python)
            judge = self._judge.on_targets([other])
            wants = [want for each in requirements for want in wants_of(each, [other])]
            version = self._version(wants, judge, package)
            if version:
                yield Nearest(
                    kind="python",
                    message=f"with Python 3.{minor}, {package} {version} installs and loads there",
                    version=version,
                )
                return

    def _more_libraries(
        self,
        package: str,
        target: Target,
        requirements: Iterable[Requirement],
        libraries: frozenset[str],
    ) -> Iterator[Nearest]:
        """Return the same host with libraries of its distribution installed."""
        host = target.host
        more = replace(host, other_libraries=host.other_libraries | libraries)
        other = target_of(more, target.python)
        judge = self._judge.on_targets([other])
        wants = [want for each in requirements for want in wants_of(each, [other])]
        version = self._version(wants, judge, package)
        if version:
            names = ", ".join(sorted(libraries))
            yield Nearest(
                kind="library",
                message=f"with its packages for {names} installed, {package} {version} installs"
                " and loads there",
                version=version,
            )

    def _source(self, package: str, requirements: Iterable[Requirement]) -> Iterator[Nearest]:
        specifier = SpecifierSet()
        for each in requirements:
            if each.name == package:
                specifier &= each.specifier
        for release in self._releases.allowed(package, specifier):
            for file in release.sources[:1]:
                try:
                    needs = build_needs(file, self._judge.reader.index)
                except (WheelDownloadError, WheelFileError) as error:
                    needs = f"cannot be read ({error.message})"
                yield Nearest(
                    kind="source",
                    message=f"{package} {release.version} can be built from source; the build"
                    f" {needs}",
                    version=str(release.version),
                )
                return
