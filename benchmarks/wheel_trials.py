"""The wheels on which predictions are tested (``wheel_trials.toml``), downloaded by pip."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tools.roots.wheel_site import manylinux_platforms

_DATA = Path(__file__).with_name("wheel_trials.toml")

_NEWEST_MINOR = 41
"""The newest glibc 2.x: wheels for any system that has a policy are accepted."""
_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelTrial:
    """A release for one machine; ``is_in_tests``: a test tries it too."""

    name: str
    version: str
    machine: str
    is_in_tests: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason why a prediction and the dynamic linker differ, for patterns of wheel, root and
    file.
    """

    wheel: str
    root: str
    file: str
    why: str

    def is_of(self, wheel: str, root: str, file: str) -> bool:
        """Return whether this explains a difference."""
        return (
            fnmatchcase(wheel, self.wheel)
            and fnmatchcase(root, self.root)
            and fnmatchcase(file, self.file)
        )


def wheel_trials() -> Iterator[WheelTrial]:
    """Yield all trials, in the order of the file."""
    for row in tomllib.loads(_DATA.read_text("utf-8"))["wheel"]:
        for machine in row["machines"]:
            yield WheelTrial(
                name=row["name"],
                version=row["version"],
                machine=machine,
                is_in_tests=row.get("in_tests", False),
            )


def explanations() -> tuple[Explanation, ...]:
    """Return the explanations of known differences."""
    rows = tomllib.loads(_DATA.read_text("utf-8")).get("explanation", [])
    return tuple(Explanation(**row) for row in rows)


def tag_explanations() -> Mapping[str, str]:
    """Return why the least tag is not auditwheel's, by pattern of wheel."""
    rows = tomllib.loads(_DATA.read_text("utf-8")).get("tag_explanation", [])
    return {row["wheel"]: row["why"] for row in rows}


def fetch_wheel(trial: WheelTrial, folder: Path) -> Path:
    """Return the path of the wheel in ``folder``; download it if it is missing.

    Raises ``CalledProcessError`` with what pip said in ``stderr``.
    """
    found = _in_folder(trial, folder)
    if found is not None:
        return found
    command = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        *("--implementation", "cp", "--python-version", "3.11"),
        *(f"--platform={each}" for each in manylinux_platforms(trial.machine, _NEWEST_MINOR)),
        f"{trial.name}=={trial.version}",
    )
    subprocess.run(command, check=True, capture_output=True, text=True)
    found = _in_folder(trial, folder)
    if found is None:
        raise FileNotFoundError(f"pip fetched no wheel of {trial.name} for {trial.machine}")
    return found


def _in_folder(trial: WheelTrial, folder: Path) -> Path | None:
    """Return the file that pip would choose among those in ``folder``, or None."""
    preference = _preference(trial.machine)
    found = []
    for path in folder.glob("*.whl"):
        name, version, _, tags = parse_wheel_filename(path.name)
        if (name, version) == (canonicalize_name(trial.name), Version(trial.version)):
            found += [(preference[tag], path) for tag in tags if tag in preference]
    return min(found)[1] if found else None


@cache
def _preference(machine: str) -> Mapping[Tag, int]:
    """Return each accepted tag with its position in pip's order."""
    platforms = manylinux_platforms(machine, _NEWEST_MINOR)
    tags = [
        *cpython_tags(_PYTHON, platforms=platforms),
        *compatible_tags(_PYTHON, "cp311", platforms),
    ]
    return {tag: place for place, tag in enumerate(tags)}
