"""The manylinux policies: since which glibc a version or a library is guaranteed.

The data is in ``policies.toml``, which ``tools/manylinux_policies.py`` generates; PEP 600 defines
the meaning.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import msgspec

Glibc = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of one machine. ``versions`` (``GLIBCXX_3.4.26``) and ``libraries``
    (``libz.so.1``) map to the oldest policy that allows them; ``known`` are all policies,
    ascending.
    """

    known: tuple[Glibc, ...]
    versions: Mapping[str, Glibc]
    libraries: Mapping[str, Glibc]


class _System(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    maker: str
    release: str
    glibc: str


class _Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policies: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]
    libraries: dict[str, tuple[str, ...]]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system: tuple[_System, ...]
    machine: dict[str, _Machine]


@functools.cache
def policies_for(machine: str) -> Policies | None:
    """Return the policies of a machine; None if there are none."""
    table = _document().machine.get(machine)
    if table is None:
        return None
    return Policies(
        known=tuple(sorted(map(_glibc, table.policies))),
        versions=_by_name(table.versions),
        libraries=_by_name(table.libraries),
    )


@functools.cache
def systems_with(glibc: Glibc) -> tuple[str, ...]:
    """Return well-known systems with at least this glibc, the oldest of each distribution."""
    found: dict[str, str] = {}
    for system in _document().system:
        if _glibc(system.glibc) >= glibc:
            found.setdefault(system.maker, f"{system.maker} {system.release}")
    return tuple(found.values())


@functools.cache
def _document() -> _Document:
    file = resources.files(__package__).joinpath("policies.toml")
    return msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Document)


def _by_name(table: Mapping[str, tuple[str, ...]]) -> dict[str, Glibc]:
    return {name: _glibc(policy) for policy, names in table.items() for name in names}


def _glibc(policy: str) -> Glibc:
    major, minor = policy.split(".")
    return int(major), int(minor)
