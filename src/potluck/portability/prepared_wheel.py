"""A wheel that was read, with what follows from it whatever the host: made once for many checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from packaging.tags import Tag, parse_tag

from potluck.portability.feature_rules import rules_for
from potluck.portability.features import Build
from potluck.portability.finding import Finding
from potluck.portability.host import Host, HostPython
from potluck.portability.link import Link
from potluck.portability.memory import Memory
from potluck.portability.needs import WheelNeeds
from potluck.portability.object_tree import ObjectTree
from potluck.portability.promises import Minimum, Promise, minimum, promise
from potluck.portability.requirements import bringer, required_names
from potluck.portability.stable_abi import stable_abi_findings
from potluck.portability.wheel_tags import promised_glibc

_MAX_SYSTEMS = 256
"""Of which is remembered what the dynamic linker does with a wheel."""


class PreparedWheel:
    """What was read of a wheel, and what follows from it whatever the host.

    What was found out on a host is remembered for those that run the same system. Not for several
    threads at once.
    """

    def __init__(self, needs: WheelNeeds, *, beside: Iterable[WheelNeeds] = ()) -> None:
        self.needs = needs
        objects = {each.path: each.elf for other in beside for each in other.objects}
        objects |= {each.path: each.elf for each in needs.objects}
        self.tree = ObjectTree(objects, needs.links)
        self.machines = tuple(sorted({each.elf.machine for each in needs.objects}))
        distribution = needs.distribution
        self.label = distribution.name if distribution else needs.file
        self.rules = rules_for(distribution.name) if distribution else None
        self.build = Build(
            version=distribution.version if distribution else "",
            files={PurePosixPath(each.path): each.facts for each in needs.objects if each.facts},
        )
        self.links: Memory[Mapping[str, Link]] = Memory(_MAX_SYSTEMS)
        self.minima = tuple(self._minima())
        self.promise = self._promise()
        self._tags = tuple(_parsed(distribution.tags)) if distribution else ()
        self._required: dict[tuple[str, HostPython | None], tuple[str, ...]] = {}
        self._abi: dict[HostPython | None, Mapping[str, tuple[Finding, ...]]] = {}

    def abi_findings(self, python: HostPython | None) -> Mapping[str, tuple[Finding, ...]]:
        """What comes of the stable ABI with a Python, by file."""
        if python not in self._abi:
            self._abi[python] = {
                each.path: stable_abi_findings(each.elf, self._tags, python=python, file=each.path)
                for each in self.needs.objects
            }
        return self._abi[python]

    def required(self, host: Host) -> tuple[str, ...]:
        """The distributions that it requires on a host."""
        distribution = self.needs.distribution
        if distribution is None:
            return ()
        key = host.machine, host.python
        if key not in self._required:
            self._required[key] = required_names(distribution.requires, *key)
        return self._required[key]

    def _minima(self) -> Iterator[Minimum]:
        distribution = self.needs.distribution
        for machine in self.machines:
            required = required_names(distribution.requires, machine, None) if distribution else ()
            brought = {
                name
                for each in self.tree
                if each.machine == machine
                for name in each.elf.needed
                if bringer(name, each.search_folders, required)
            }
            found = minimum(self.tree, machine, brought=brought)
            if found is not None:
                yield found

    def _promise(self) -> Promise:
        promised = promised_glibc(self.needs.distribution) if self.needs.distribution else None
        kept = {promise(promised, each) for each in self.minima}
        return next((each for each in Promise if each in kept), Promise.NONE)


def _parsed(tags: Iterable[str]) -> Iterator[Tag]:
    for tag in tags:
        yield from parse_tag(tag)
