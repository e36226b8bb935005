"""The files of a project in an index, and the platforms that can install them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.version import Version

from potluck.portability.wheels.tags import policy_glibc

Glibc = tuple[int, int]

ANY_GLIBC: Glibc = (0, 0)
"""The requirement of files without native code: any C library."""
NEWEST_GLIBC: Glibc = (2, 99)
"""A version that satisfies every requirement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """An interpreter on a machine, without a particular C library."""

    machine: str
    python: tuple[int, int]

    @property
    def python_version(self) -> str:
        """The version as in markers: ``3.11``."""
        return f"{self.python[0]}.{self.python[1]}"

    def applies(self, requirement: Requirement, extra: str = "") -> bool:
        """Return whether a requirement's marker is true here, if ``extra`` is requested."""
        environment = {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python_version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python_version}.0",
            "python_version": self.python_version,
            "sys_platform": "linux",
            "extra": extra,
        }
        return requirement.marker is None or requirement.marker.evaluate(environment)


PLATFORMS = tuple(
    Platform(machine=machine, python=python)
    for machine in ("x86_64", "aarch64")
    for python in ((3, 11), (3, 12), (3, 13), (3, 14))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFile:
    """A wheel, or an sdist (which has no tags), as an index lists it. ``uploaded`` is a date."""

    url: str
    version: Version
    tags: frozenset[Tag]
    requires_python: SpecifierSet
    uploaded: str

    @property
    def is_wheel(self) -> bool:
        """Whether the file can be installed without being built."""
        return bool(self.tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that can be installed on some platform, from the C library ``glibc`` on."""

    version: Version
    glibc: Glibc
    is_wheel: bool
    uploaded: str


def candidates(files: Iterable[ReleaseFile], platform: Platform) -> tuple[Candidate, ...]:
    """Return the files that ``platform`` can install, if its C library is new enough."""
    return tuple(
        Candidate(version=file.version, glibc=glibc, is_wheel=file.is_wheel, uploaded=file.uploaded)
        for file in files
        if (glibc := _oldest_glibc(file, platform)) is not None
        and file.requires_python.contains(platform.python_version)
    )


def choose(
    offered: Iterable[Candidate], allowed: SpecifierSet, glibc: Glibc = NEWEST_GLIBC
) -> Candidate | None:
    """Return what pip installs with a C library ``glibc``; None if it finds nothing.

    Pip takes the newest allowed version that has any suitable file: a wheel rather than the sdist,
    and of several wheels the one that requires the oldest glibc. It takes a pre-release only if
    there is nothing else.
    """
    usable = [each for each in offered if each.glibc <= glibc]
    permitted = set(allowed.filter(each.version for each in usable))
    return max(
        (each for each in usable if each.version in permitted),
        key=lambda each: (each.version, each.is_wheel, (-each.glibc[0], -each.glibc[1])),
        default=None,
    )


def _oldest_glibc(file: ReleaseFile, platform: Platform) -> Glibc | None:
    """Return the oldest C library with which ``platform`` accepts the file, or None."""
    if not file.is_wheel:
        return ANY_GLIBC
    floors = [_glibc_of(tag, platform) for tag in file.tags]
    return min((floor for floor in floors if floor is not None), default=None)


def _glibc_of(tag: Tag, platform: Platform) -> Glibc | None:
    if tag.platform == "any":
        return ANY_GLIBC if tag in _taken(platform) else None
    if not tag.platform.endswith(f"_{platform.machine}"):
        return None
    if Tag(tag.interpreter, tag.abi, platform.machine) not in _taken(platform):
        return None
    return policy_glibc(tag.platform)


@cache
def _taken(platform: Platform) -> frozenset[Tag]:
    """Return the tags that an interpreter accepts, with the machine in place of platform tags."""
    interpreter = f"cp{platform.python[0]}{platform.python[1]}"
    machine = [platform.machine]
    native = cpython_tags(platform.python, abis=[interpreter], platforms=machine)
    return frozenset((*native, *compatible_tags(platform.python, interpreter, machine)))
