"""The values of a plan: versions of packages for hosts, or what prevents it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    """Why some releases of a package do not work on a host. ``versions`` are newest first."""

    message: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """An alternative, described by ``message``. ``kind`` is ``release``, ``library``, ``python`` or
    ``source``.
    """

    kind: str
    message: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why no version of ``package`` works on ``hosts`` (if several: each has some, but none is
    common to all). ``wanted`` are the requirements for it and their origins.
    """

    package: str
    hosts: tuple[str, ...]
    wanted: tuple[str, ...]
    reasons: tuple[Reason, ...]
    nearest: tuple[Nearest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a host loses if all use the same version: a newer release, or features."""

    host: str
    package: str
    shared_version: str
    own_version: str
    features: tuple[str, ...]


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
