"""The manylinux policies: from which glibc on a version or a library may be counted on.

Facts in ``policies.toml``, which ``tools/manylinux_policies.py`` makes; PEP 600 says what they
mean.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

Glibc = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """Of one machine. ``versions`` (``GLIBCXX_3.4.26``) and ``libraries`` (``libz.so.1``) have the
    oldest policy that allows them; ``known`` are all policies, ascending.
    """

    known: tuple[Glibc, ...]
    versions: Mapping[str, Glibc]
    libraries: Mapping[str, Glibc]

    def oldest(self, glibc: Glibc) -> Glibc | None:
        """The first policy that goes with at least this glibc; None if there is none yet."""
        return next((each for each in self.known if each >= glibc), None)


@functools.cache
def policies_for(machine: str) -> Policies | None:
    """The policies of a machine; None where there are none."""
    table = _document()["machine"].get(machine)
    if table is None:
        return None
    versions = _by_name(table["versions"])
    libraries = _by_name(table["libraries"])
    return Policies(
        known=tuple(sorted(map(_glibc, table["policies"]))),
        versions=versions,
        libraries=libraries,
    )


@functools.cache
def systems_with(glibc: Glibc) -> tuple[str, ...]:
    """Well-known systems with at least this glibc, the oldest of each maker."""
    found: dict[str, str] = {}
    for system in _document()["system"]:
        if _glibc(system["glibc"]) >= glibc:
            found.setdefault(system["maker"], f"{system['maker']} {system['release']}")
    return tuple(found.values())


@functools.cache
def _document() -> dict[str, dict[str, dict[str, dict[str, list[str]]]]]:
    file = resources.files(__package__).joinpath("policies.toml")
    return tomllib.loads(file.read_text("utf-8"))


def _by_name(table: Mapping[str, list[str]]) -> dict[str, Glibc]:
    return {name: _glibc(policy) for policy, names in table.items() for name in names}


def _glibc(policy: str) -> Glibc:
    major, minor = policy.split(".")
    return int(major), int(minor)
