"""The versions that an installation gets on every platform, with new and with old C libraries. The
values are stored as JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from packaging.requirements import Requirement

from tools.platforms.closure import Index, Project, closure
from tools.platforms.release import ANY_GLIBC, PLATFORMS, Candidate, Glibc, choose

OLDER_GLIBCS: tuple[Glibc, ...] = ((2, 17), (2, 23), (2, 27), (2, 28), (2, 31), (2, 35), (2, 36))
"""The glibc versions of systems in use: CentOS 7, Ubuntu 16.04 and 18.04, RHEL 8, Ubuntu 20.04 and
Debian 11, Ubuntu 22.04, Debian 12.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A version that pip takes. ``glibc`` is the oldest that its wheels take, ``any`` where one
    has no native code, ``source`` where there is no wheel.
    """

    version: str
    glibc: str
    uploaded: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderSystem:
    """The version that pip installs instead if the C library is ``glibc``, and the one if it may
    not build (``--only-binary=:all:``); None if it refuses.
    """

    glibc: str
    takes: Taken | None
    takes_wheel: Taken | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedProject:
    """A project on a platform: what pip takes of it, and the older systems where it takes something
    else, or must build.
    """

    name: str
    required_by: tuple[str, ...]
    takes: Taken
    older: tuple[OlderSystem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedPlatform:
    """An installation on a machine and a Python."""

    machine: str
    python: str
    projects: tuple[SurveyedProject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All of it, as of ``date``, for ``requirements`` as ``pyproject.toml`` has them."""

    date: str
    requirements: tuple[str, ...]
    platforms: tuple[SurveyedPlatform, ...]

    def to_json(self) -> str:
        """Return the survey as JSON, for ``platforms.json``."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def survey(requirements: Sequence[str], index: Index, date: str) -> Survey:
    """Ask ``index``. Raises ``LookupError`` where a platform cannot be installed on at all."""
    parsed = tuple(map(Requirement, requirements))
    return Survey(
        date=date,
        requirements=tuple(requirements),
        platforms=tuple(
            SurveyedPlatform(
                machine=platform.machine,
                python=platform.python_version,
                projects=tuple(map(_surveyed, closure(parsed, platform, index))),
            )
            for platform in PLATFORMS
        ),
    )


def read_survey(text: str) -> Survey:
    """Read the survey that ``to_json`` wrote."""
    return msgspec.json.decode(text, type=Survey)


def glibc_name(glibc: Glibc) -> str:
    """Return the version as text: ``2.17``."""
    return f"{glibc[0]}.{glibc[1]}"


def _surveyed(project: Project) -> SurveyedProject:
    wheels = [each for each in project.offered if each.is_wheel]
    older = []
    for glibc in OLDER_GLIBCS:
        choice = choose(project.offered, project.allowed, glibc)
        if choice is None or _is_worse(choice, project.newest):
            wheel = choose(wheels, project.allowed, glibc)
            older.append(
                OlderSystem(
                    glibc=glibc_name(glibc),
                    takes=None if choice is None else _taken(choice),
                    takes_wheel=None if wheel is None else _taken(wheel),
                )
            )
    return SurveyedProject(
        name=project.name,
        required_by=project.required_by,
        takes=_taken(project.newest),
        older=tuple(older),
    )


def _is_worse(choice: Candidate, newest: Candidate) -> bool:
    return (choice.version, choice.is_wheel) != (newest.version, newest.is_wheel)


def _taken(choice: Candidate) -> Taken:
    glibc = "any" if choice.glibc == ANY_GLIBC else glibc_name(choice.glibc)
    return Taken(
        version=str(choice.version),
        glibc=glibc if choice.is_wheel else "source",
        uploaded=choice.uploaded,
    )
