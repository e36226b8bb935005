"""Explain why there is no solution: minimal sets of conflicting requirements and hosts, and the
fewest reasons that cover every release that was considered.

If nothing that was requested fits, alternatives are found: an older release, another Python, or a
build from source and its needs.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.hosts.host import HostPython
from potluck.portability.planning.index import (
    Incompatibility,
    Index,
    IndexFile,
    Rejections,
    Releases,
)
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.plan import Nearest, Problem, Reason
from potluck.portability.planning.provider import UNUSABLE, UnresolvableError, resolve
from potluck.portability.planning.refusals import PYTHON_KINDS
from potluck.portability.planning.target import Target, Want, all_wants
from potluck.portability.wheels.bounded_zip import BROKEN

Item = TypeVar("Item")


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
    tools = ["setuptools"]
    match project:
        case {"build-system": {"requires": list(requires)}}:
            tools = [each for each in requires if isinstance(each, str)]
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
    except tomllib.TOMLDecodeError:
        return names, {}
    except (tarfile.TarError, *BROKEN) as error:
        raise WheelFileError(path.name, f"it is malformed ({error})") from None


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in islice(archive.infolist(), _MAX_FILES):
                yield info.filename, lambda info=info: _head(archive.open(info))
        return
    with tarfile.open(path, "r:*") as tar:
        expanded = 0
        for member in islice(tar, _MAX_FILES):
            expanded += member.size
            if expanded > _MAX_EXPANDED_BYTES:
                raise WheelFileError(path.name, "it expands to more than 2 GiB")
            if member.isreg():
                yield member.name, lambda member=member: _head(tar.extractfile(member))


def _head(file: Any) -> bytes:
    with file:
        data: bytes = file.read(_MAX_TOML_BYTES)
        return data


class Explainer:
    """Explains why ``resolve`` failed, from what it has read."""

    def __init__(self, judge: Judge, releases: Releases, rejections: Rejections) -> None:
        self._judge = judge
        self._releases = releases
        self._rejections = rejections

    def problems(
        self,
        error: UnresolvableError,
        requirements: Sequence[Requirement],
        targets: Sequence[Target],
    ) -> list[Problem]:
        """Return at least one problem. ``error`` was raised for ``requirements`` and
        ``targets``.
        """
        causes = error.causes

        def fails(needed: Sequence[Requirement], hosts: Sequence[Target]) -> bool:
            nonlocal causes
            wants = all_wants(needed, hosts)
            try:
                resolve(wants, self._judge, self._releases, self._rejections)
            except UnresolvableError as error:
                causes = error.causes
                return True
            return False

        least = smallest_failing(requirements, lambda each: fails(each, targets))
        hosts = smallest_failing(targets, lambda each: fails(least, each))
        fails(least, hosts)
        return [self._problem(package, causes, least, hosts) for package in _packages(causes)]

    def _problem(
        self,
        package: str,
        causes: Sequence[Want],
        requirements: Sequence[Requirement],
        targets: Sequence[Target],
    ) -> Problem:
        names = tuple(each.name for each in targets)
        wants = [each for each in causes if each.name == package]
        specifier = SpecifierSet()
        for want in wants:
            specifier &= want.specifier
        by_kind = self._reasons(package, names, specifier)
        kinds = {kind for kind, _ in by_kind}
        requested = [each for each in requirements if canonicalize_name(each.name) == package]
        nearest: list[Nearest] = []
        if len(targets) == 1:
            nearest += self._nearest(
                package,
                targets[0],
                requirements,
                is_requested=bool(requested),
                may_be_python=bool(kinds & PYTHON_KINDS),
                libraries=self._missing_libraries(package, targets[0].name),
            )
        reasons = [reason for _, reason in by_kind]
        if not self._releases.of(package):
            reasons = [Reason(message="the index has no such package", versions=())]
        elif not reasons:
            reasons = [Reason(message=each, versions=()) for each in _conflict(wants)]
        return Problem(
            package=package,
            hosts=names,
            wanted=tuple(dict.fromkeys(_wanted(each) for each in wants)),
            reasons=tuple(reasons),
            nearest=tuple(nearest),
        )

    def _missing_libraries(self, package: str, host: str) -> frozenset[str]:
        """Return the libraries that the newest release that was read misses, if nothing else is
        missing.
        """
        rejected = self._rejections.of(package, host)
        read = [
            version for version, found in rejected.items() if any(each.library for each in found)
        ]
        newest = rejected[max(read)] if read else ()
        if not all(each.library for each in newest):
            return frozenset()
        return frozenset(each.library for each in newest)

    def _reasons(
        self, package: str, hosts: Sequence[str], specifier: SpecifierSet
    ) -> list[tuple[str, Reason]]:
        """Return the fewest pairs of host and kind of reason that cover every rejected version
        among those requested.
        """
        cases: dict[tuple[str, str], dict[Version, Incompatibility]] = {}
        for host in hosts:
            for version, found in self._rejections.of(package, host).items():
                for each in found if specifier.contains(version, prereleases=True) else ():
                    cases.setdefault((host, each.kind), {}).setdefault(version, each)
        reasons = []
        for host, kind in fewest_covering(cases):
            versions = cases[host, kind]
            message = versions[min(versions)].message
            prefix = f"on {host}, " if len(hosts) > 1 else ""
            reasons.append(
                (
                    kind,
                    Reason(
                        message=f"{prefix}{_range(versions)}: {message}",
                        versions=tuple(map(str, sorted(versions, reverse=True))),
                    ),
                )
            )
        return reasons

    def _nearest(
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

    def _version_on(self, target: Target, requirements: Iterable[Requirement], package: str) -> str:
        """Return the version that fits another target; empty if there is none."""
        judge = self._judge.on_targets([target])
        return self._version(all_wants(requirements, [target]), judge, package)

    def _other_python(
        self, package: str, target: Target, requirements: Iterable[Requirement]
    ) -> Iterator[Nearest]:
        """Return the next newer Python with which it works."""
        for minor in range(target.python.version[1] + 1, _NEWEST_MINOR + 1):
            python = HostPython(implementation="cpython", version=(3, minor))
            other = Target(replace(target.host, python=python), python)
            version = self._version_on(other, requirements, package)
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
        other = Target(more, target.python)
        version = self._version_on(other, requirements, package)
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
            if canonicalize_name(each.name) == package:
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


def smallest_failing(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]
) -> tuple[Item, ...]:
    """Return a minimal failing subset of ``items``: items that are not needed for the failure are
    removed, from the last one.
    """
    left = list(items)
    for item in reversed(items):
        if len(left) == 1:
            break
        without = [each for each in left if each is not item]
        if fails(without):
            left = without
    return tuple(left)


def fewest_covering(
    cases: Mapping[tuple[str, str], Mapping[Version, Incompatibility]],
) -> Iterator[tuple[str, str]]:
    """Yield keys that together cover all versions. Each time, the key that covers most of the
    remaining versions is chosen (greedy: at most a logarithmic factor more than the minimum).
    """
    left = {version for versions in cases.values() for version in versions}
    while left:
        key = max(cases, key=lambda each: (len(left & cases[each].keys()), each))
        yield key
        left -= cases[key].keys()


def _packages(causes: Iterable[Want]) -> list[str]:
    named = [each.parent if each.name == UNUSABLE else each.name for each in causes]
    return list(dict.fromkeys(named))[:3] or ["?"]


def _conflict(wants: Sequence[Want]) -> list[str]:
    specifiers = dict.fromkeys(_wanted(each) for each in wants)
    return (
        [f"no release satisfies all of {', '.join(specifiers)}"] if specifiers else ["nothing fits"]
    )


def _wanted(want: Want) -> str:
    requested = f"{want.specifier}" or "any release"
    return f"{requested} (for {want.parent})" if want.parent else requested


def _range(versions: Mapping[Version, Incompatibility]) -> str:
    oldest, newest = min(versions), max(versions)
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
