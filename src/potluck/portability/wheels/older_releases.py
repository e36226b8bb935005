"""Find the newest release of a project that works on a host if its newest wheels do not.

The index lists the releases that installers would accept there; a few of them are downloaded and
checked. Older releases usually need less of a host, so the newest that works is searched for by
bisection: the reported release was checked, but a newer one may work as well.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.wheels.named_wheels import (
    Run,
    kept_wheel,
    parse_requirement,
    run_pip,
    target_arguments,
)

MAX_CHECKED = 6
"""Limit of downloads per host: the newest, and then bisection among 31 others."""

_VERSIONS = re.compile(r"^Available versions: (.*)$", re.MULTILINE)

IsUsable = Callable[[Path], bool]


def newest_usable_release(
    text: str,
    host: Host,
    python: HostPython,
    folder: Path,
    is_usable: IsUsable,
    *,
    unusable: Collection[str] = (),
    run: Run = run_pip,
) -> str:
    """Return the version of the newest release that ``is_usable`` on ``host``; empty if none of
    those checked is, or the index does not list its releases.

    ``text`` is a requirement; if it allows a single version, others are considered as well, except
    those known to be ``unusable``. Wheels are saved to ``folder``, which must exist. Raise
    ``UsageError`` if the requirement is invalid, and ``WheelDownloadError`` if pip takes too long.
    """
    requirement = parse_requirement(text)
    if host.libc != "glibc":
        return ""
    target = target_arguments(python, host.machine, host.libc_version[1])
    left = [each for each in _releases(requirement, target, run) if each not in unusable]
    found = ""
    index = 0  # the newest that installers accept is the likeliest
    for _ in range(MAX_CHECKED):
        if not left:
            break
        version = left[index]
        wheel = _download(requirement.name, version, target, folder, run)
        if wheel is not None and is_usable(wheel):
            found, left = version, left[:index]
        else:
            left = left[index + 1 :]
        index = len(left) // 2
    return found


def _releases(requirement: Requirement, target: list[str], run: Run) -> list[str]:
    """Return the releases with wheels for a host that a requirement allows, newest first."""
    is_pinned = any(each.operator in ("==", "===") for each in requirement.specifier)
    completed = run(["index", "versions", *target, requirement.name])
    match = _VERSIONS.search(completed.stdout) if completed.returncode == 0 else None
    if match is None:
        return []
    found = []
    for version in map(str.strip, match[1].split(",")):
        try:
            parsed = Version(version)
        except InvalidVersion:
            continue
        if is_pinned or requirement.specifier.contains(parsed):
            found.append((parsed, version))
    return [version for _, version in sorted(found, reverse=True)]


def _download(name: str, version: str, target: list[str], folder: Path, run: Run) -> Path | None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".coming-") as coming:
        arguments = ["--quiet", "--no-input", "--no-deps", "--dest", coming, *target]
        completed = run(["download", *arguments, f"{name}=={version}"])
        wheels = sorted(Path(coming).glob("*.whl"))
        return kept_wheel(wheels[0], folder) if wheels and completed.returncode == 0 else None
