"""The control groups of this process, in both versions.

Sources: ``cgroups(7)``, ``proc_pid_mountinfo(5)``, and the kernel's
``admin-guide/cgroup-v1/cgroups.rst`` and ``admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.host.system import System

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """A group: ``directory`` as the process sees it, ``path`` as ``System`` reads it."""

    version: int
    directory: PurePosixPath
    path: Path


def control_groups(system: System, controller: str) -> Iterator[ControlGroup]:
    """Find this process's groups for a controller (``cpu``, ``memory``) and all their ancestors up
    to the mount point of the hierarchy, innermost first.

    Groups of version 2 are included whether or not the controller is enabled in them; if it is not,
    its files are missing.
    """
    own = dict(_own_groups(system, controller))
    for fields, file_system in read_mounts(system):
        if len(file_system) < 3:
            continue
        kind, options = file_system[0], file_system[2].split(",")
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" else None
        if version not in own or (version == 1 and controller not in options):
            continue
        below = _below(own[version], PurePosixPath(fields[3]))
        directory = PurePosixPath(fields[4]) / below
        for each in (directory, *directory.parents[: len(below.parts)]):
            yield ControlGroup(version=version, directory=each, path=_located(system, each))


def read_mounts(system: System) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the fields of each mount of this process: five or more about the mount, with octal
    escapes (of blanks) replaced, and one or more about the file system.
    """
    for line in (system.text(system.proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, file_system = before.split(), after.split()
        if len(fields) >= 5 and file_system:
            unescaped = [_ESCAPE.sub(lambda each: chr(int(each[1], 8)), field) for field in fields]
            yield unescaped, file_system


def _own_groups(system: System, controller: str) -> Iterator[tuple[int, PurePosixPath]]:
    """Yield the version and path of each group.

    A line is ``id:controllers:path``; version 2 has id 0 and no controllers.
    """
    for line in (system.text(system.proc / "self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, PurePosixPath(path)
        elif controller in controllers.split(","):
            yield 1, PurePosixPath(path)


def _below(group: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """Return the path of the group relative to the mounted directory.

    In a container the hierarchy may be mounted from the container's own group on. A group outside
    the mount, or outside the process's namespace (``/../x``), cannot be found by its name; the root
    of the mount is then the nearest group that can be read.
    """
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath()
    return group.relative_to(mounted)


def _located(system: System, directory: PurePosixPath) -> Path:
    if directory.is_relative_to("/sys"):
        return system.sys / directory.relative_to("/sys")
    return system.below_files(str(directory))
