"""Whether installers accept a wheel's tags on a host.

The tags are those of its file name (PyPA specifications, Platform compatibility tags); what its
files actually need is a separate question (``promises``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags

from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.wheels.file import Distribution

LEGACY_POLICIES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""Tags from before PEP 600, and the glibc versions that they mean."""

_POLICY = re.compile(r"manylinux_([0-9]{1,9})_([0-9]{1,9})(?:_|$)")


def install_finding(distribution: Distribution, host: Host) -> Finding | None:
    """Return why installers refuse the wheel on ``host``; None if they accept it.

    If the host's Python is unknown, one that matches the wheel is assumed.
    """
    if distribution.problem:
        reason, fix = distribution.problem, "download the wheel again, or build it from source"
    else:
        reason = tags_refusal(distribution.tags, distribution.requires_python, host)
        fix = "use the wheel for this platform and Python, or build from source"
    if not reason:
        return None
    return Finding(
        code="not-installable",
        severity=Severity.FATAL,
        message=f"installers refuse it: {reason}",
        fix=fix,
    )


def tags_refusal(wheel_tags: Sequence[str], requires_python: str, host: Host) -> str:
    """Return why installers refuse a wheel with these tags and this ``Requires-Python``.

    Empty if they accept it on ``host``.
    """
    platforms = host_platforms(host.machine, host.libc, host.libc_version)
    tags = [tag.split("-") for tag in wheel_tags]
    on_platform = [tag for tag in tags if tag[2] in platforms]
    if not on_platform:
        return (
            f"{_names(tag[2] for tag in tags)} is not compatible with"
            f" {host.libc_text} on {host.machine}"
        )
    if host.python is None:
        return ""
    version = host.python.version_text
    allowed = _python_tags(host.python)
    if not any(f"{interpreter}-{abi}" in allowed for interpreter, abi, _ in on_platform):
        wanted = _names(f"{interpreter}-{abi}" for interpreter, abi, _ in on_platform)
        reason = f"{wanted} is not compatible with {host.python.implementation} {host.python.name}"
        if host.python.is_free_threaded and any(abi == "abi3" for _, abi, _ in on_platform):
            reason += ": a Python without the GIL has another binary interface than abi3"
        return reason
    if not _is_allowed(requires_python, version):
        return f"it requires Python {requires_python}, but the host has {version}"
    return ""


def promised_glibc(distribution: Distribution) -> tuple[int, int] | None:
    """Return the oldest glibc in its tags; None if there is none."""
    named = (policy_glibc(tag.rpartition("-")[2]) for tag in distribution.tags)
    return min((each for each in named if each is not None), default=None)


def policy_glibc(platform: str) -> tuple[int, int] | None:
    """Return (2, 17) for ``manylinux_2_17_x86_64`` and for ``manylinux2014_x86_64``."""
    name = platform.partition("_")[0]
    if name in LEGACY_POLICIES:
        return LEGACY_POLICIES[name]
    match = _POLICY.match(platform)
    return None if match is None else (int(match[1]), int(match[2]))


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


@functools.lru_cache(maxsize=256)
def platforms(machine: str, libc: str, version: tuple[int, int]) -> tuple[str, ...]:
    """Return every platform tag that a host supports, in the installers' order of preference;
    ``any`` is not included.
    """
    major, minor = version
    if libc == "musl":
        named = [f"musllinux_{major}_{each}_{machine}" for each in range(minor, -1, -1)]
        return (*named, f"linux_{machine}")
    # PEP 600 has no minimum; in PEP 599, manylinux2014 is the first for machines other than x86.
    first = 5 if machine in ("x86_64", "i686") else 17
    legacy = {minor: name for name, (_, minor) in LEGACY_POLICIES.items()}
    named = []
    for each in range(minor, first - 1, -1):
        named.append(f"manylinux_2_{each}_{machine}")
        if each in legacy:
            named.append(f"{legacy[each]}_{machine}")
    return (*named, f"linux_{machine}")


@functools.lru_cache(maxsize=256)
def host_platforms(machine: str, libc: str, version: tuple[int, int]) -> frozenset[str]:
    """Return every platform tag that a host supports."""
    return frozenset(("any", *platforms(machine, libc, version)))


@functools.lru_cache(maxsize=256)
def tag_ranks(python: HostPython, named: tuple[str, ...]) -> Mapping[str, int]:
    """Return every tag that a Python supports on ``named`` platforms, with its rank: installers
    choose the wheel with the lowest.
    """
    ranks: dict[str, int] = {}
    for tag in _tags(python, named):
        ranks.setdefault(str(tag), len(ranks))
    return MappingProxyType(ranks)


@functools.lru_cache(maxsize=64)
def _python_tags(python: HostPython) -> frozenset[str]:
    """Return interpreter and ABI of every tag that a Python supports: ``cp311-abi3``,
    ``py3-none``.
    """
    return frozenset(f"{tag.interpreter}-{tag.abi}" for tag in _tags(python, ("any",)))


def _tags(python: HostPython, named: Sequence[str]) -> Iterator[Tag]:
    """Yield every tag that a Python supports on ``named`` platforms, the preferred ones first."""
    if python.implementation == "cpython" and python.is_free_threaded:
        yield from _free_threaded_tags(python, named)
    elif python.implementation == "cpython":
        yield from cpython_tags(python.version, [python.abi_tag], named)
    interpreter = f"cp{python.version[0]}{python.version[1]}"
    yield from compatible_tags(python.version, interpreter, named)


def _free_threaded_tags(python: HostPython, named: Sequence[str]) -> Iterator[Tag]:
    """Yield the tags of a CPython without the GIL, in the order of packaging 26.3.

    Older versions of that library do not know ``abi3t``, the stable ABI of PEP 803.
    """
    major, minor = python.version
    own = f"cp{major}{minor}"
    older = (f"cp{major}{each}" for each in range(minor - 1, 1, -1))
    pairs = [(own, python.abi_tag), (own, "abi3t"), (own, "none")]
    for interpreter, abi in (*pairs, *((each, "abi3t") for each in older)):
        yield from (Tag(interpreter, abi, platform) for platform in named)


@functools.lru_cache(maxsize=4096)
def _is_allowed(requires_python: str, version: str) -> bool:
    """Return whether any micro version is allowed, since hosts' descriptions lack theirs. Invalid
    specifiers allow everything.
    """
    try:
        wanted = SpecifierSet(requires_python)
    except InvalidSpecifier:
        return True
    return any(wanted.contains(f"{version}.{micro}") for micro in range(100))
