"""The releases of projects in an index, and why releases were rejected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from potluck.portability.planning.index import (
    Index,
    IndexFile,
    parse_filename,
    parse_variants_filename,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A version of a project, with its wheels, its variants of wheels and its source packages.

    ``variants_file`` is the index's file about the variants; None if it does not list one.
    """

    version: Version
    wheels: tuple[IndexFile, ...]
    sources: tuple[IndexFile, ...]
    variants: tuple[IndexFile, ...] = ()
    variants_file: IndexFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatibility:
    """Why a wheel does not work on a host. Reasons of one ``kind`` are similar for many releases.

    ``library`` is the one that the host lacks, if that is the only reason.
    """

    kind: str
    message: str
    library: str = ""


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
        left = {
            each.version: each for each in usable if each.wheels or each.variants or each.sources
        }
        return tuple(left[version] for version in specifier.filter(left))


def _releases(files: Iterable[IndexFile]) -> tuple[Release, ...]:
    wheels: dict[Version, list[IndexFile]] = defaultdict(list)
    variants: dict[Version, list[IndexFile]] = defaultdict(list)
    sources: dict[Version, list[IndexFile]] = defaultdict(list)
    variants_files: dict[Version, IndexFile] = {}
    for file in files:
        of_variants = parse_variants_filename(file.filename)
        if of_variants is not None:
            variants_files.setdefault(of_variants[1], file)
        parsed = parse_filename(file.filename)
        if parsed is None:
            continue
        if parsed.label:
            variants[parsed.version].append(file)
        elif file.is_wheel:
            wheels[parsed.version].append(file)
        else:
            sources[parsed.version].append(file)
    return tuple(
        Release(
            version=version,
            wheels=tuple(wheels[version]),
            sources=tuple(sources[version]),
            variants=tuple(variants[version]),
            variants_file=variants_files.get(version),
        )
        for version in sorted({*wheels, *variants, *sources}, reverse=True)
    )


def _without_yanked(release: Release) -> Release:
    return Release(
        version=release.version,
        wheels=tuple(each for each in release.wheels if not each.is_yanked),
        sources=tuple(each for each in release.sources if not each.is_yanked),
        variants=tuple(each for each in release.variants if not each.is_yanked),
        variants_file=release.variants_file,
    )
