"""The requirements in the metadata of wheels, and whether their markers hold on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from potluck.portability.hosts.host import HostPython


def parsed_requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """Yield the valid ones among Requires-Dist lines: installers refuse or ignore others."""
    for line in lines:
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue


def applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    """Return whether a requirement has no marker, or one that holds in ``environment``."""
    return requirement.marker is None or bool(holds(requirement.marker, environment))


def holds(marker: Marker, environment: Mapping[str, str]) -> bool | None:
    """Return whether a marker holds in ``environment``; None if installers fail on it."""
    try:
        return marker.evaluate(environment)
    except InvalidVersion:  # packaging 26 and later: False (platform_release >= "20")
        return False
    except (UndefinedComparison, UndefinedEnvironmentName):
        return None


def marker_environment(machine: str, python: HostPython, *, micro: int = 0) -> dict[str, str]:
    """Return what markers can test on Linux, except for ``extra`` and the kernel. ``micro`` is the
    third number of Python's version, which descriptions of hosts lack.
    """
    version = python.version_text
    return {
        "implementation_name": python.implementation,
        "implementation_version": f"{version}.{micro}",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": (
            "CPython" if python.implementation == "cpython" else "PyPy"
        ),
        "platform_system": "Linux",
        "python_full_version": f"{version}.{micro}",
        "python_version": version,
        "sys_platform": "linux",
    }
