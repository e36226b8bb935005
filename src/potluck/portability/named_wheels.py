"""The newest wheels of a project, for every platform, from the index that pip is set up with.

pip finds and downloads them: mirrors, keyrings and proxies are its settings. Nothing is installed,
and nothing is built: a project without wheels for a platform has none here.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from potluck.cache_folder import cache_folder
from potluck.child_environment import child_environment
from potluck.errors import UsageError, WheelDownloadError
from potluck.portability.wheel_tags import LEGACY_POLICIES

MACHINES = ("x86_64", "aarch64")

_NEWEST_GLIBC_MINOR = 60
"""glibc has two releases a year: 2.60 is of 2033."""

_DEADLINE_SECONDS = 1800.0
"""Wheels of 2 GB come over a slow line in that time."""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def default_wheels_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/potluck/wheels``, or below ``~/.cache``; None without a home."""
    folder = cache_folder(environ)
    return None if folder is None else folder / "wheels"


def run_pip(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the pip of this Python. Raises ``WheelDownloadError`` if it takes too long."""
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
            hint="download the wheel by other means, and name the file",
        ) from None


def newest_wheels(
    text: str, pythons: Iterable[tuple[int, int]], folder: Path, *, run: Run = run_pip
) -> tuple[Path, ...]:
    """The newest wheel of a requirement (``warp-lang``, ``numpy==2.1.0``) for each machine and
    each Python, in ``folder``. What is there already is not replaced by the same.

    Raises ``UsageError`` if it is no requirement, ``WheelDownloadError`` if there is none for any.
    """
    requirement = _parsed(text)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    problems = []
    for python, machine in itertools.product(pythons, MACHINES):
        with tempfile.TemporaryDirectory(dir=folder, prefix=".coming-") as coming:
            completed = run(_arguments(requirement, python, machine, coming))
            if completed.returncode:
                problems.append(_problem(completed.stderr))
                continue
            for wheel in sorted(Path(coming).glob("*.whl")):
                found[wheel.name] = _kept(wheel, folder)
    if not found:
        raise WheelDownloadError(
            f"no wheel of {requirement} came: {problems[0] if problems else 'pip brought none'}",
            hint="check the name, the version and the network, or name a file",
        )
    return tuple(found.values())


def _parsed(text: str) -> Requirement:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url or requirement.extras:
        raise UsageError(
            f"{text} is neither a file nor the name of a project",
            hint="as in warp-lang or warp-lang==1.6.2, or the path of a wheel",
        )
    return requirement


def _arguments(
    requirement: Requirement, python: tuple[int, int], machine: str, folder: str
) -> list[str]:
    return [
        *("download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary", ":all:", "--dest", folder),
        *("--implementation", "cp", "--python-version", ".".join(map(str, python))),
        *(part for platform in _platforms(machine) for part in ("--platform", platform)),
        str(requirement),
    ]


def _platforms(machine: str) -> Iterator[str]:
    """Every manylinux tag there can be: what does not go with a host is to be seen, too."""
    for minor in range(_NEWEST_GLIBC_MINOR, 4, -1):
        yield f"manylinux_2_{minor}_{machine}"
    for name in LEGACY_POLICIES:
        yield f"{name}_{machine}"
    yield f"linux_{machine}"


def _problem(stderr: str) -> str:
    """The last line in which pip says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed without a word"])[-1]


def _kept(wheel: Path, folder: Path) -> Path:
    """The wheel in the folder. One of the same name and size stays: what was read of it holds."""
    kept = folder / wheel.name
    if not kept.is_file() or kept.stat().st_size != wheel.stat().st_size:
        wheel.replace(kept)
    return kept
