"""The planner's interface to package indexes: the files of a project, and their contents."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from potluck.errors import UsageError, WheelDownloadError
from potluck.portability.wheels.variants import split_label

_VARIANTS_SUFFIX = "-variants.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file of a project that an index lists.

    ``sha256`` is empty if the index does not publish it. ``metadata_sha256`` is None if the index
    has no separate metadata file for it (PEP 658), and empty if that is published without a digest.
    ``is_named`` is true for a file that the user named instead of its project.
    """

    filename: str
    url: str
    sha256: str = ""
    requires_python: str = ""
    is_yanked: bool = False
    metadata_sha256: str | None = None
    is_named: bool = False

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel; anything else has to be built first."""
        return self.filename.endswith(".whl")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of a wheel; empty for other files."""
        parsed = parse_filename(self.filename)
        return () if parsed is None else parsed.tags

    @property
    def label(self) -> str:
        """The label of a variant; empty for other files."""
        parsed = parse_filename(self.filename)
        return "" if parsed is None else parsed.label


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedName:
    """The parts of a file's name. ``tags`` is empty for a source package, and ``label`` for
    everything but a variant of a wheel.
    """

    project: str
    version: Version
    tags: tuple[str, ...]
    build: tuple[int, str] | tuple[()] = ()
    label: str = ""


class Index(Protocol):
    """A source of files. Methods raise ``WheelDownloadError`` if the index does not respond."""

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """Return all files of a project; none if the index does not have it."""
        ...

    def metadata(self, file: IndexFile) -> bytes | None:
        """Return the separate metadata file of a wheel; None if there is none."""
        ...

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        """Write the whole file to ``path``, which must not exist. A file with more than
        ``most_bytes`` is an error.
        """
        ...

    def num_bytes(self, file: IndexFile) -> int | None:
        """Return the size of a file; None if the index cannot send ranges of it."""
        ...

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        """Write bytes [start, end) to the same offset of ``path``, which must exist; return False
        if the index does not support ranges.
        """
        ...


@functools.lru_cache(maxsize=65536)
def parse_filename(filename: str) -> ParsedName | None:
    """Parse the name of a wheel or a source package; return None for any other file."""
    try:
        if filename.endswith(".whl"):
            without_label, label = split_label(filename)
            name, version, build, tags = parse_wheel_filename(without_label)
            return ParsedName(
                project=name,
                version=version,
                tags=tuple(sorted(map(str, tags))),
                build=build,
                label=label,
            )
        name, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return ParsedName(project=name, version=version, tags=())


def parse_variants_filename(filename: str) -> tuple[str, Version] | None:
    """Return the project and the version that the name of an index's file about variants contains
    (``{name}-{version}-variants.json``, PEP 825); None for any other file.
    """
    if not filename.endswith(_VARIANTS_SUFFIX):
        return None
    name, _, version = filename.removesuffix(_VARIANTS_SUFFIX).partition("-")
    try:
        return canonicalize_name(name, validate=True), Version(version)
    except (InvalidName, InvalidVersion):
        return None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class WithLocalWheels:
    """An index extended by local files, which replace all other files of their projects.

    Raise ``UsageError`` if one is not a wheel.
    """

    def __init__(self, index: Index, wheels: Iterable[Path]) -> None:
        self._index = index
        self._files: dict[str, list[IndexFile]] = {}
        self._paths: dict[str, Path] = {}
        for path in wheels:
            parsed = parse_filename(path.name)
            if parsed is None or not parsed.tags or not path.is_file():
                raise UsageError(f"{path}: not a wheel", hint="build one with pip wheel")
            url = path.resolve().as_uri()
            file = IndexFile(filename=path.name, url=url, sha256=sha256_of(path), is_named=True)
            self._files.setdefault(parsed.project, []).append(file)
            self._paths[url] = path

    @property
    def projects(self) -> tuple[str, ...]:
        """The names of the projects that have files here."""
        return tuple(self._files)

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """See ``Index``."""
        local = self._files.get(project)
        return tuple(local) if local is not None else self._index.files(project)

    def metadata(self, file: IndexFile) -> bytes | None:
        """See ``Index``."""
        return None if file.url in self._paths else self._index.metadata(file)

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        """See ``Index``."""
        local = self._paths.get(file.url)
        if local is None:
            self._index.fetch(file, path, most_bytes=most_bytes)
        elif most_bytes is not None and local.stat().st_size > most_bytes:
            raise WheelDownloadError(f"{local} has more than {most_bytes} bytes")
        else:
            shutil.copyfile(local, path)

    def num_bytes(self, file: IndexFile) -> int | None:
        """See ``Index``."""
        return None if file.url in self._paths else self._index.num_bytes(file)

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        """See ``Index``."""
        is_local = file.url in self._paths
        return not is_local and self._index.fetch_range(file, start, end, path)


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
    return replace(
        release,
        wheels=tuple(each for each in release.wheels if not each.is_yanked),
        sources=tuple(each for each in release.sources if not each.is_yanked),
        variants=tuple(each for each in release.variants if not each.is_yanked),
    )
