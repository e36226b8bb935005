"""Compare what a wheel's tag promises with what its files need: the oldest policy that they
satisfy.

Only what is required of a host counts: libraries that are in the wheel, or in a wheel that it
requires, are ignored. Weak version requirements are ignored as well; those of the dynamic linker
count, although auditwheel ignores them.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from potluck.portability.linking.object_tree import ObjectTree, TreeObject, is_glibc_loader
from potluck.portability.shipped_toml import read_toml

Glibc = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policies:
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
def policies_for(machine: str) -> _Policies | None:
    """Return the policies of a machine; None if there are none.

    A manylinux policy guarantees a version or a library since some glibc. The data is in
    ``policies.toml``, which ``tools/manylinux_policies.py`` generates; PEP 600 defines the meaning.
    """
    table = _document().machine.get(machine)
    if table is None:
        return None
    return _Policies(
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
    return read_toml(__package__, "policies.toml", _Document)


def _by_name(table: Mapping[str, tuple[str, ...]]) -> dict[str, Glibc]:
    return {name: _glibc(policy) for policy, names in table.items() for name in names}


def _glibc(policy: str) -> Glibc:
    major, minor = policy.split(".")
    return int(major), int(minor)


class Promise(enum.StrEnum):
    """How the tag compares with what the files need."""

    KEPT = "the tag matches the files"
    BROKEN = "the tag claims compatibility that the files lack"
    MODEST = "the tag excludes systems that the files support"
    NONE = "the tag claims nothing to compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The oldest policy with every version that the objects for ``machine`` need.

    ``glibc`` is None if they need one that no policy has. ``because`` are the versions that
    determine it, with the files that need them. ``outside`` are needed libraries that no policy
    includes, which installers do not check.
    """

    machine: str
    glibc: Glibc | None
    because: tuple[tuple[str, str], ...]
    outside: tuple[str, ...]

    @property
    def platform(self) -> str:
        """The policy in the form of a tag."""
        if self.glibc is None:
            return f"linux_{self.machine}"
        return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"


def minimum(tree: ObjectTree, machine: str, *, brought: Iterable[str] = ()) -> Minimum | None:
    """Return the minimum of the tree's objects for a machine; ``brought`` are libraries from other
    wheels, but those that policies include still count as the host's. None if there are no
    policies, or none of the objects needs glibc.
    """
    policies = policies_for(machine)
    objects = [each for each in tree if each.machine == machine]
    if policies is None or not any(each.elf.needs_glibc for each in objects):
        return None
    within = set(brought) - set(policies.libraries)
    needed = set(_outer_libraries(tree, objects)) - within
    versions = {
        (need.version, each.path)
        for each in objects
        for need in each.elf.version_needs
        if not need.is_weak and need.library in needed
    }
    reached: list[tuple[Glibc | None, str, str]] = [
        (policies.versions.get(version), version, path) for version, path in sorted(versions)
    ]
    outside = tuple(
        sorted(
            name for name in needed if name not in policies.libraries and not is_glibc_loader(name)
        )
    )
    missing = [(version, path) for glibc, version, path in reached if glibc is None]
    floors = [policies.libraries[each] for each in needed if each in policies.libraries]
    if missing:
        return Minimum(machine=machine, glibc=None, because=tuple(missing), outside=outside)
    known = [(glibc, version, path) for glibc, version, path in reached if glibc is not None]
    glibc = max([*(each for each, _, _ in known), *floors, policies.known[0]])
    because = tuple((version, path) for each, version, path in known if each == glibc)
    return Minimum(machine=machine, glibc=glibc, because=because, outside=outside)


def promise(promised: Glibc | None, needed: Minimum) -> Promise:
    """Return how a tag's glibc compares with what is needed."""
    if promised is None:
        return Promise.NONE
    if needed.glibc is None or needed.glibc > promised:
        return Promise.BROKEN
    return Promise.MODEST if needed.glibc < promised else Promise.KEPT


def _outer_libraries(tree: ObjectTree, objects: Iterable[TreeObject]) -> Iterator[str]:
    """Return the needed libraries that are not in the tree."""
    for each in objects:
        for name in each.needed:
            if tree.named(name, each.machine) is None:
                yield name
