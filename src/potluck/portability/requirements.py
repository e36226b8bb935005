"""Which libraries a wheel leaves to the wheels that it requires.

Nothing in a wheel says so. Two traces do: a search path into the folder of another distribution
(``$ORIGIN/../../nvidia/cublas/lib`` and ``nvidia-cublas-cu12``), and a library with the name of
one that is required (``libtorch_python.so`` and ``torch``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from potluck.portability.host import HostPython

_LEAST_NAME_LENGTH = 4
"""Shorter names are in too many libraries' names by chance."""


def required_names(
    requires: Iterable[str], machine: str, python: HostPython | None
) -> tuple[str, ...]:
    """The distributions that Requires-Dist lines name there, without extras, normalized. Where no
    Python is known, this one stands for it.
    """
    environment = {
        "extra": "",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
    }
    if python is not None:
        version = ".".join(map(str, python.version))
        environment |= {"python_version": version, "python_full_version": f"{version}.0"}
    return tuple(
        canonicalize_name(each.name) for each in _parsed(requires) if _applies(each, environment)
    )


def bringer(library: str, sought: Sequence[str], required: Iterable[str]) -> str:
    """The required distribution that may bring a library; empty if none looks like it.

    ``sought`` are the folders that the linker looks in, relative to ``site-packages``.
    """
    names = list(required)
    of_folders = [name for folder in sought if (name := _of_folder(folder, names))]
    stem = re.split(r"\.so\b", library.removeprefix("lib").lower())[0]
    named_after = [name for name in names if _is_named_after(stem, name)]
    both = [name for name in of_folders if name in named_after]
    return next(iter([*both, *of_folders, *named_after]), "")


def _of_folder(folder: str, names: Iterable[str]) -> str:
    """The distribution whose name begins with as much of a folder's path as any."""
    parts = [canonicalize_name(part) for part in folder.split("/") if part]
    for count in range(len(parts), 0, -1):
        prefix = "-".join(parts[:count])
        for name in names:
            if name == prefix or name.startswith(f"{prefix}-"):
                return name
    return ""


def _is_named_after(stem: str, name: str) -> bool:
    """``torch_python`` after ``torch``, ``cublaslt`` after ``nvidia-cublas-cu12``."""
    return any(
        len(part) >= _LEAST_NAME_LENGTH and stem.startswith(part) for part in name.split("-")
    )


def _parsed(requires: Iterable[str]) -> Iterable[Requirement]:
    for line in requires:
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue  # installers refuse or pass over it: nothing is known from it


def _applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    try:
        return requirement.marker is None or requirement.marker.evaluate(environment)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False
