"""What a wheel's tags let installers do on a host.

The tags are those of its file name (PyPA specifications, Platform compatibility tags); what the
files in it really need is another matter (``promises``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import compatible_tags, cpython_tags

from potluck.portability.finding import Finding, Severity
from potluck.portability.host import Host, HostPython
from potluck.portability.wheel_file import Distribution

LEGACY_POLICIES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""Names from before PEP 600, and the glibc that they stand for."""


def install_finding(distribution: Distribution, host: Host) -> Finding | None:
    """Why installers refuse the wheel on ``host``; None if they take it.

    Where the host's Python is not known, that of the wheel is taken to be there.
    """
    platforms = _host_platforms(host.machine, host.libc, host.libc_version)
    tags = [tag.split("-") for tag in distribution.tags]
    on_platform = [tag for tag in tags if tag[2] in platforms]
    if not on_platform:
        return _refusal(f"{_names(tag[2] for tag in tags)} does not go with {_what_it_is(host)}")
    if host.python is None:
        return None
    version = ".".join(map(str, host.python.version))
    allowed = _python_tags(host.python)
    if not any(f"{interpreter}-{abi}" in allowed for interpreter, abi, _ in on_platform):
        wanted = _names(f"{interpreter}-{abi}" for interpreter, abi, _ in on_platform)
        return _refusal(f"{wanted} does not go with {host.python.implementation} {version}")
    if not _is_allowed(distribution.requires_python, version):
        return _refusal(f"it wants Python {distribution.requires_python}, and there is {version}")
    return None


def promised_glibc(distribution: Distribution) -> tuple[int, int] | None:
    """The oldest glibc that its tags name; None where they name none."""
    named = (policy_glibc(tag.rpartition("-")[2]) for tag in distribution.tags)
    return min((each for each in named if each is not None), default=None)


def policy_glibc(platform: str) -> tuple[int, int] | None:
    """(2, 17) of ``manylinux_2_17_x86_64`` and of ``manylinux2014_x86_64``."""
    name, _, rest = platform.partition("_")
    if name in LEGACY_POLICIES:
        return LEGACY_POLICIES[name]
    major, _, rest = rest.partition("_")
    minor = rest.partition("_")[0]
    if name != "manylinux" or not (major.isdigit() and minor.isdigit()):
        return None
    return int(major), int(minor)


def _refusal(reason: str) -> Finding:
    return Finding(
        code="not-installable",
        severity=Severity.FATAL,
        message=f"installers refuse it: {reason}",
        way_out="take the wheel for this platform and Python, or build from source",
    )


def _what_it_is(host: Host) -> str:
    major, minor = host.libc_version
    return f"{host.libc} {major}.{minor} on {host.machine}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


@functools.lru_cache(maxsize=256)
def _host_platforms(machine: str, libc: str, version: tuple[int, int]) -> frozenset[str]:
    """Every platform tag that goes with a host."""
    major, minor = version
    platforms = {"any", f"linux_{machine}"}
    if libc == "musl":
        platforms.update(f"musllinux_{major}_{each}_{machine}" for each in range(minor + 1))
        return frozenset(platforms)
    # PEP 600 has no floor; PEP 599 has manylinux2014 as the first for other machines than x86.
    first = 5 if machine in ("x86_64", "i686") else 17
    platforms.update(f"manylinux_2_{each}_{machine}" for each in range(first, minor + 1))
    platforms.update(
        f"{name}_{machine}"
        for name, glibc in LEGACY_POLICIES.items()
        if glibc <= version and glibc[1] >= first
    )
    return frozenset(platforms)


@functools.lru_cache(maxsize=64)
def _python_tags(python: HostPython) -> frozenset[str]:
    """Interpreter and ABI of every tag that goes with a Python: ``cp311-abi3``, ``py3-none``."""
    short = f"cp{python.version[0]}{python.version[1]}"
    abi = f"{short}t" if python.is_free_threaded else short
    tags = {*compatible_tags(python.version, short, ["any"])}
    if python.implementation == "cpython":
        tags.update(cpython_tags(python.version, [abi], ["any"]))
    return frozenset(f"{tag.interpreter}-{tag.abi}" for tag in tags)


def _is_allowed(requires_python: str, version: str) -> bool:
    """Of any micro version: hosts do not tell theirs. What cannot be read forbids nothing."""
    try:
        wanted = SpecifierSet(requires_python)
    except InvalidSpecifier:
        return True
    return any(wanted.contains(f"{version}.{micro}") for micro in (0, 99))
