"""Download the newest wheels of a project, for every platform, from the index that pip is
configured for.

pip finds and downloads them, so its settings for mirrors, keyrings and proxies apply. Nothing is
installed or built: a project without wheels for a platform has none here.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from potluck.errors import UsageError, WheelDownloadError
from potluck.host.cache_folder import cache_path
from potluck.host.child_environment import child_environment
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.wheels.tags import LEGACY_POLICIES

MACHINES = ("x86_64", "aarch64")

_NEWEST_GLIBC_MINOR = 60
"""glibc has two releases a year: 2.60 is expected in 2033."""

_DEADLINE_SECONDS = 1800.0
"""Enough for wheels of 2 GB over a slow connection."""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def default_wheels_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/wheels``, or the same under ``~/.cache``; None without a
    home directory.
    """
    return cache_path(environ, "wheels")


def run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the pip of this Python. Raise ``WheelDownloadError`` if it takes too long."""
    try:
        return subprocess.run(
            [sys.executable, "-m", "pip", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_DEADLINE_SECONDS,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise WheelDownloadError(
            f"pip did not finish within {_DEADLINE_SECONDS / 60:.0f} minutes",
            hint="download the wheel by other means, and give the file",
        ) from None


def newest_wheels(
    text: str,
    pythons: Iterable[HostPython],
    folder: Path,
    *,
    machines: Sequence[str] = MACHINES,
    run: Run = run_pip,
) -> tuple[Path, ...]:
    """Download the newest wheel of a requirement (``warp-lang``, ``numpy==2.1.0``) for each of
    ``machines`` and each Python to ``folder``. Identical files that exist are kept.

    Raise ``UsageError`` if the requirement is invalid, and ``WheelDownloadError`` if there is no
    wheel for any of them.
    """
    requirement = parse_requirement(text)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    problems = []
    for python, machine in itertools.product(pythons, machines):
        target = target_arguments(python, machine, _NEWEST_GLIBC_MINOR)
        wheels, problem = _downloaded(str(requirement), target, folder, run)
        found |= {wheel.name: wheel for wheel in wheels}
        if problem:
            problems.append(problem)
    if not found:
        raise WheelDownloadError(
            f"no wheel of {requirement} was downloaded:"
            f" {problems[0] if problems else 'pip found none'}",
            hint="check the name, the version and the network, or give a file",
        )
    return tuple(found.values())


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement without a URL or extras. Raise ``UsageError`` for anything else."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url or requirement.extras:
        raise UsageError(
            f"{text} is neither a file nor the name of a project",
            hint="for example warp-lang or warp-lang==1.6.2, or the path of a wheel",
        )
    return requirement


def _downloaded(
    requirement: str, target: list[str], folder: Path, run: Run
) -> tuple[list[Path], str]:
    """Return what pip downloads to the folder for a requirement, or the problem."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".coming-") as coming:
        options = ("--quiet", "--no-input", "--no-deps", "--dest", coming)
        completed = run(["download", *options, *target, requirement])
        if completed.returncode:
            return [], _problem(completed.stderr)
        return [kept_wheel(each, folder) for each in sorted(Path(coming).glob("*.whl"))], ""


def target_arguments(python: HostPython, machine: str, glibc_minor: int) -> list[str]:
    """Return the options with which pip looks for wheels for another machine with glibc
    2.``glibc_minor``.
    """
    abi = ("--abi", python.abi_tag) if python.is_free_threaded else ()
    return [
        *("--disable-pip-version-check", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", python.version_text, *abi),
        *(
            part
            for platform in _platforms(machine, glibc_minor)
            for part in ("--platform", platform)
        ),
    ]


def _platforms(machine: str, glibc_minor: int) -> Iterator[str]:
    """Return every manylinux tag up to a glibc. To show incompatible wheels as well, all possible
    tags are requested.
    """
    for minor in range(glibc_minor, 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
    for name, (_, minor) in LEGACY_POLICIES.items():
        if minor <= glibc_minor:
            yield f"{name}_{machine}"
    yield f"linux_{machine}"


def _problem(stderr: str) -> str:
    """Return the last error line of pip's output."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed without an error message"])[-1]


def kept_wheel(wheel: Path, folder: Path) -> Path:
    """Move the wheel to the folder. A file of the same name and size stays, so that cached data
    about it stays valid.
    """
    kept = folder / wheel.name
    if not kept.is_file() or kept.stat().st_size != wheel.stat().st_size:
        wheel.replace(kept)
    return kept


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

    The index lists the releases that installers would accept there; a few of them are downloaded
    and checked. Older releases usually need less of a host, so the newest that works is searched
    for by bisection: the reported release was checked, but a newer one may work as well.
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
        wheels, _ = _downloaded(f"{requirement.name}=={version}", target, folder, run)
        if wheels and is_usable(wheels[0]):
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
