"""What a wheel promises by its tag beside what its files need: the oldest policy that they keep.

Only what is counted on of a host counts: a library that is in the wheel, or that a wheel it
requires brings, promises nothing. Versions that are needed weakly are not needed; those of the
dynamic linker are, though auditwheel passes over them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from potluck.portability.file_findings import needs_glibc
from potluck.portability.host_libraries import is_glibc_loader
from potluck.portability.object_tree import ObjectTree, TreeObject
from potluck.portability.policies import Glibc, policies_for


class Promise(enum.StrEnum):
    """How the tag compares with the files."""

    KEPT = "keeps what it promises"
    BROKEN = "promises more than it keeps"
    MODEST = "asks for more than it needs"
    NONE = "promises nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The oldest policy with every version that the objects for ``machine`` need.

    ``glibc`` is None where they need one that no policy has. ``because`` are the versions that set
    it, with the files that need them. ``outside`` are needed libraries that no policy has:
    installers know nothing of them.
    """

    machine: str
    glibc: Glibc | None
    because: tuple[tuple[str, str], ...]
    outside: tuple[str, ...]

    @property
    def platform(self) -> str:
        """As a tag has it."""
        if self.glibc is None:
            return f"linux_{self.machine}"
        return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"


def minimum(tree: ObjectTree, machine: str, *, brought: Iterable[str] = ()) -> Minimum | None:
    """The minimum of the tree's objects for a machine; ``brought`` are libraries that come with
    other wheels, of which those that policies have are the host's all the same. None where there
    are no policies, or none of the objects needs glibc.
    """
    policies = policies_for(machine)
    objects = [each for each in tree if each.machine == machine]
    if policies is None or not any(needs_glibc(each.elf) for each in objects):
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
    """How a tag's glibc compares with what is needed."""
    if promised is None:
        return Promise.NONE
    if needed.glibc is None or needed.glibc > promised:
        return Promise.BROKEN
    return Promise.MODEST if needed.glibc < promised else Promise.KEPT


def _outer_libraries(tree: ObjectTree, objects: Iterable[TreeObject]) -> Iterator[str]:
    """The needed libraries that are not in the tree."""
    for each in objects:
        for name in each.elf.needed:
            if tree.named(name, each.machine) is None:
                yield name
