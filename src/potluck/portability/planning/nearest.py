"""Find alternatives if nothing that was requested fits: an older release, another Python, or a
build from source and what that needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.hosts.host import HostPython
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.plan import Nearest
from potluck.portability.planning.releases import Rejections, Releases
from potluck.portability.planning.resolve import UnresolvableError, resolve
from potluck.portability.planning.sources import build_needs
from potluck.portability.planning.target import Target, target_of
from potluck.portability.planning.wants import Want, wants_of

_NEWEST_MINOR = 14
"""The newest CPython 3.x for which most projects have wheels."""


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
