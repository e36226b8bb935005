"""The releases of projects in an index, and why releases were rejected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from potluck.portability.planning.index import Index, IndexFile, parse_filename
from potluck.portability.planning.judge import Incompatibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version of a project, with its wheels and its source packages."""

    version: Version
    wheels: tuple[IndexFile, ...]
    sources: tuple[IndexFile, ...]


@dataclass(slots=True)
class Rejections:
    """Why wheels of a project do not work on a host, by version; collected while planning."""

    _reasons: dict[tuple[str, str], dict[Version, tuple[Incompatibility, ...]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(
        self, project: str, host: str, version: Version, reasons: Iterable[Incompatibility]
    ) -> None:
        """Record why a version does not work."""
        self._reasons[project, host][version] = tuple(dict.fromkeys(reasons))

    def of(self, project: str, host: str) -> Mapping[Version, tuple[Incompatibility, ...]]:
        """Return the reasons for each rejected version."""
        return self._reasons.get((project, host), {})


class Releases:
    """Reads the releases of projects, each project once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._found: dict[str, tuple[Release, ...]] = {}

    def of(self, project: str) -> tuple[Release, ...]:
        """Return all releases, newest first; none if the index does not have the project."""
        if project not in self._found:
            self._found[project] = _releases(self._index.files(project))
        return self._found[project]

    def allowed(self, project: str, specifier: SpecifierSet) -> tuple[Release, ...]:
        """Return the releases that a specifier allows, newest first: no pre-releases if there are
        others, and no yanked ones unless the specifier requests exactly that release.
        """
        is_pinned = any(each.operator in ("==", "===") for each in specifier)
        usable = [each if is_pinned else _without_yanked(each) for each in self.of(project)]
        left = {each.version: each for each in usable if each.wheels or each.sources}
        return tuple(left[version] for version in specifier.filter(left))


def _releases(files: Iterable[IndexFile]) -> tuple[Release, ...]:
    by_version: dict[Version, list[IndexFile]] = defaultdict(list)
    for file in files:
        parsed = parse_filename(file.filename)
        if parsed is not None:
            by_version[parsed.version].append(file)
    return tuple(
        Release(
            version=version,
            wheels=tuple(each for each in by_version[version] if each.is_wheel),
            sources=tuple(each for each in by_version[version] if not each.is_wheel),
        )
        for version in sorted(by_version, reverse=True)
    )


def _without_yanked(release: Release) -> Release:
    return Release(
        version=release.version,
        wheels=tuple(each for each in release.wheels if not each.is_yanked),
        sources=tuple(each for each in release.sources if not each.is_yanked),
    )
