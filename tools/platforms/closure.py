"""Everything that an installation brings along, and what each project of it is restricted to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.platforms.release import Candidate, Platform, ReleaseFile, candidates, choose

_MOST_ROUNDS = 20  # a project that is restricted late changes what it requires itself


class Index(Protocol):
    """A source of projects and their files."""

    def files(self, project: str) -> tuple[ReleaseFile, ...]:
        """Return all files of a project."""
        ...

    def requirements(self, wheel: ReleaseFile) -> tuple[Requirement, ...]:
        """Return the requirements of a wheel, including those of extras."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project of an installation. ``allowed`` are the versions that all projects in
    ``required_by`` allow (none for our own dependencies), ``newest`` is the one that pip installs
    if the C library is new enough, and ``offered`` are those available for the platform.
    """

    name: str
    allowed: SpecifierSet
    required_by: tuple[str, ...]
    newest: Candidate
    offered: tuple[Candidate, ...]


_Demands = Mapping[str, Mapping[str, SpecifierSet]]  # project, and who wants what of it


def closure(
    requirements: Iterable[Requirement], platform: Platform, index: Index
) -> tuple[Project, ...]:
    """Return the projects that ``requirements`` install on ``platform``, by name.

    Each version is the newest that satisfies all requirements on it. Unlike pip, this never takes
    an older version of one project to get a newer one of another. Raises ``LookupError`` if no
    version is allowed.
    """
    wanted = [each for each in requirements if platform.applies(each)]
    chosen: dict[str, Candidate] = {}
    for _ in range(_MOST_ROUNDS):
        demands = _demands(wanted, chosen, platform, index)
        found = {name: _newest(name, by, platform, index) for name, by in sorted(demands.items())}
        if found == chosen:
            return tuple(
                Project(
                    name=name,
                    allowed=_all_of(demands[name].values()),
                    required_by=tuple(sorted(by for by in demands[name] if by)),
                    newest=newest,
                    offered=candidates(index.files(name), platform),
                )
                for name, newest in chosen.items()
            )
        chosen = found
    raise LookupError("the projects' requirements lead in a circle")


def _demands(
    wanted: Iterable[Requirement],
    chosen: Mapping[str, Candidate],
    platform: Platform,
    index: Index,
) -> _Demands:
    """Return all requirements: the given ones, and those of the chosen versions."""
    demands: defaultdict[str, dict[str, SpecifierSet]] = defaultdict(dict)
    open_ends = [(requirement, "") for requirement in wanted]
    seen: set[tuple[str, str]] = set()
    while open_ends:
        requirement, by = open_ends.pop()
        name = canonicalize_name(requirement.name)
        demands[name][by] = demands[name].get(by, SpecifierSet()) & requirement.specifier
        if name not in chosen:
            continue
        wheel = _a_wheel(name, chosen[name].version, index)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                open_ends += [
                    (each, name)
                    for each in index.requirements(wheel)
                    if platform.applies(each, extra)
                ]
    return demands


def _all_of(specifiers: Iterable[SpecifierSet]) -> SpecifierSet:
    allowed = SpecifierSet()
    for specifier in specifiers:
        allowed &= specifier
    return allowed


def _newest(
    name: str, by: Mapping[str, SpecifierSet], platform: Platform, index: Index
) -> Candidate:
    allowed = _all_of(by.values())
    newest = choose(candidates(index.files(name), platform), allowed)
    if newest is None:
        raise LookupError(f"no version of {name} is {allowed} and for {platform}")
    return newest


def _a_wheel(name: str, version: Version, index: Index) -> ReleaseFile:
    """Return any wheel of that version: all of them have the same requirements."""
    for file in index.files(name):
        if file.version == version and file.is_wheel:
            return file
    raise LookupError(f"{name} {version} has no wheel that says what it requires")
