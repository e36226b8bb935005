"""The values of a plan: versions of packages for hosts, or what prevents it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.judge import LostFeature
from potluck.portability.planning.release_variants import UnusedVariant, label_of


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
        return label_of(self.file)


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
