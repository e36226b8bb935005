"""The values of a plan (versions of packages for hosts, or what prevents it), and the files of
constraints that are written from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from potluck.errors import UsageError
from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.judge import LostFeature
from potluck.portability.planning.release_variants import UnusedVariant
from potluck.portability.planning.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWheel:
    """A wheel to install on a host. ``lost`` are the features that will not work there; ``parents``
    are the packages that require it, empty if only the user does. ``unused`` are the variants that
    are not chosen, though the host may have their properties.
    """

    name: str
    version: str
    file: IndexFile
    lost: tuple[LostFeature, ...] = ()
    parents: tuple[str, ...] = ()
    unused: tuple[UnusedVariant, ...] = ()

    @property
    def label(self) -> str:
        """Which variant of the wheel it is; empty if it is none."""
        return self.file.label


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """All wheels to install on a host, by name."""

    host: str
    wheels: tuple[PlannedWheel, ...]

    def versions(self) -> Mapping[str, str]:
        """Return the version of each package."""
        return {each.name: each.version for each in self.wheels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why some releases of a package do not work on a host."""

    message: str
    versions: tuple[str, ...]
    """The releases, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """An alternative that would work."""

    kind: Literal["release", "library", "python", "source"]
    message: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why no version of a package works on hosts."""

    package: str
    hosts: tuple[str, ...]
    """If there are several, each has some versions, but none is common to all."""
    wanted: tuple[str, ...]
    """The requirements for it and their origins."""
    reasons: tuple[Reason, ...]
    """The fewest that cover every release that was examined."""
    nearest: tuple[Nearest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The loss of a host if all use the same version: a newer release, or features."""

    host: str
    package: str
    shared_version: str
    own_version: str
    features: tuple[str, ...]
    """The features that the host's own version has and the shared one lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Two answers: ``shared`` has one version of each package for all hosts, and is None if there
    is none; ``own`` has the newest for each host for which there is a solution. ``problems`` are
    those of hosts without a solution; ``conflicts`` say why nothing can be shared.
    """

    hosts: tuple[str, ...]
    shared: tuple[HostPlan, ...] | None
    own: tuple[HostPlan, ...]
    costs: tuple[Cost, ...] = ()
    problems: tuple[Problem, ...] = ()
    conflicts: tuple[Problem, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Whether there is a solution for every host."""
        return len(self.own) == len(self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Environment:
    """The properties of a host that markers can test."""

    machine: str
    python: tuple[int, int]

    def marker(self, others: Iterable[_Environment]) -> str:
        """Return a marker that is true here and for none of the others."""
        is_machine = any(each.machine != self.machine for each in others)
        is_python = any(each.python != self.python for each in others)
        version = ".".join(map(str, self.python))
        parts = []
        if is_machine:
            parts.append(f'platform_machine == "{self.machine}"')
        if is_python:
            parts.append(f'python_version == "{version}"')
        return " and ".join(parts)


def constraints_files(
    plans: Sequence[HostPlan], targets: Sequence[Target], output: Path
) -> Mapping[Path, str]:
    """Return the files to write, with their contents: ``output`` alone, or one per host next to it,
    with the host's name in the file name.

    There is one file with environment markers if these can distinguish the hosts, or else one per
    host.
    """
    by_name = {each.name: each for each in targets}
    of_environments: dict[_Environment, dict[str, str]] = {}
    is_determined_by_markers = True
    for plan in plans:
        target = by_name[plan.host]
        environment = _Environment(machine=target.host.machine, python=target.python.version)
        versions = of_environments.setdefault(environment, dict(plan.versions()))
        is_determined_by_markers = is_determined_by_markers and versions == plan.versions()
    if is_determined_by_markers:
        return {output: _text([each.host for each in plans], _with_markers(of_environments))}
    return {
        output.with_name(f"{output.stem}-{plan.host}{output.suffix}"): _text(
            [plan.host], (f"{name}=={version}" for name, version in plan.versions().items())
        )
        for plan in plans
    }


def write_constraints(files: Mapping[Path, str]) -> None:
    """Write them. Raise ``UsageError`` on failure."""
    for path, text in files.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--output {path}: {error.strerror}", hint="give a file in an existing directory"
            ) from None


def _text(hosts: Sequence[str], lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (f"# For {', '.join(hosts)}", *lines))


def _with_markers(versions: Mapping[_Environment, Mapping[str, str]]) -> Iterator[str]:
    names = sorted({name for each in versions.values() for name in each})
    for name in names:
        found = {environment: each[name] for environment, each in versions.items() if name in each}
        if len(set(found.values())) == 1:
            yield f"{name}=={next(iter(found.values()))}"
            continue
        for environment, version in sorted(found.items()):
            others = [each for each, other in found.items() if other != version]
            yield f"{name}=={version} ; {environment.marker(others)}"
