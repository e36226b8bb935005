"""A wheel that was read, with everything that can be derived independently of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from potluck.portability.checks.needs import WheelNeeds
from potluck.portability.features.findings import Build
from potluck.portability.features.rules import rules_for
from potluck.portability.finding import Finding
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.linking.link import Link
from potluck.portability.linking.object_tree import ObjectTree
from potluck.portability.linking.opened_libraries import provider_of, required_names
from potluck.portability.linking.promises import Minimum, Promise, minimum, promise
from potluck.portability.linking.stable_abi import python_findings
from potluck.portability.memory import Memory
from potluck.portability.wheels.tags import promised_glibc

_MAX_SYSTEMS = 256
"""Number of hosts for which the result of dynamic linking is cached, per wheel."""


class PreparedWheel:
    """The contents of a wheel, and the conclusions that do not depend on the host.

    Results for a host are cached for other hosts that run the same system. Not thread-safe.
    """

    def __init__(self, needs: WheelNeeds) -> None:
        self.needs = needs
        objects = {each.path: each.elf for each in needs.objects}
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
        self._requires = distribution.requires if distribution else ()
        self.minima = tuple(self._minima())
        self.promise = self._promise()
        self._tags = distribution.tags if distribution else ()
        self._required: dict[tuple[str, HostPython | None], tuple[str, ...]] = {}
        self._abi: dict[HostPython | None, Mapping[str, tuple[Finding, ...]]] = {}

    def abi_findings(self, python: HostPython | None) -> Mapping[str, tuple[Finding, ...]]:
        """Return findings about the functions of Python that its files call, by file."""
        if python not in self._abi:
            self._abi[python] = {
                each.path: python_findings(each.elf, self._tags, python=python, file=each.path)
                for each in self.needs.objects
            }
        return self._abi[python]

    def required(self, host: Host) -> tuple[str, ...]:
        """Return the distributions that it requires on a host."""
        key = host.machine, host.python
        if key not in self._required:
            self._required[key] = required_names(self._requires, *key)
        return self._required[key]

    def _minima(self) -> Iterator[Minimum]:
        for machine in self.machines:
            required = required_names(self._requires, machine, None)
            brought = {
                name
                for each in self.tree
                if each.machine == machine
                for name in each.needed
                if provider_of(name, each.search_folders, required)
            }
            found = minimum(self.tree, machine, brought=brought)
            if found is not None:
                yield found

    def _promise(self) -> Promise:
        promised = promised_glibc(self.needs.distribution) if self.needs.distribution else None
        kept = {promise(promised, each) for each in self.minima}
        return next((each for each in Promise if each in kept), Promise.NONE)
