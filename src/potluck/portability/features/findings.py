"""Find features of a distribution that will not work on a host, by its rules
(``features.rules``).
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from potluck.portability.cuda.fat_binary import CudaNeeds
from potluck.portability.cuda.findings import host_cuda, is_tegra
from potluck.portability.cuda.table import dotted
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfImage
from potluck.portability.features.rules import Conditions, FeatureRules, Rule
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.constant_functions import constant_results


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The facts about one file: which of the functions that rules name it ``exports``, the
    ``results`` of those that only return a number, and the CUDA toolkit that one of them returned
    (empty if none does).

    They are the facts that feature rules use: read once, small enough to cache.
    """

    machine: str
    exports: frozenset[str]
    results: Mapping[str, int]
    toolkit: tuple[int, ...]


def file_facts(
    rules: FeatureRules, elf: ElfFile, image: ElfImage, cuda: CudaNeeds | None
) -> FileFacts:
    """Return the facts about ``image``, from which ``elf`` and ``cuda`` were read."""
    functions = frozenset((*rules.functions, *rules.toolkit_functions))
    exports = frozenset(symbol.name for symbol in elf.defined.named(functions))
    results = constant_results(image, sorted(exports))
    versions = [results[name] for name in rules.toolkit_functions if results.get(name, 0) > 0]
    return FileFacts(
        machine=elf.machine,
        exports=exports,
        results=results,
        toolkit=toolkit_of_number(max(versions)) if versions else cuda.toolkit if cuda else (),
    )


def toolkit_of_number(number: int) -> tuple[int, int]:
    """Return ``CUDA_VERSION`` of ``cuda.h`` as numbers: 13040 is (13, 4)."""
    return number // 1000, number % 1000 // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A wheel as rules see it: its version, and the facts about its ELF files by path."""

    version: str
    files: Mapping[PurePosixPath, FileFacts]

    @property
    def toolkit(self) -> tuple[int, ...]:
        """The newest CUDA among the files; empty if unknown."""
        return max((facts.toolkit for facts in self.files.values()), default=())


def feature_findings(
    rules: FeatureRules,
    build: Build,
    host: Host,
    findings: Iterable[Finding],
) -> tuple[Finding, ...]:
    """Return what follows from the rules for ``build`` on ``host``, in the order of the rules.

    ``findings`` are the previous findings about its files, which tell which files do not load.
    """
    case = _Case(
        build=build,
        host=host,
        cuda=host_cuda(host),
        is_tegra=is_tegra(host),
        failing=frozenset(each.file for each in findings if each.severity is Severity.FATAL),
    )
    return tuple(_finding(rule, case) for rule in rules.rule if case.holds(rule.when))


def _finding(rule: Rule, case: _Case) -> Finding:
    values = case.values(rule.when)
    fix = (case.is_tegra and rule.jetson_fix) or rule.fix
    return Finding(
        code=f"feature-{rule.name}",
        severity=Severity(rule.severity),
        message=rule.message.format_map(values),
        feature=rule.feature,
        fix=fix.format_map(values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A build on a host. ``failing`` are the paths of files that do not load there."""

    build: Build
    host: Host
    cuda: tuple[int, int] | None
    is_tegra: bool
    failing: frozenset[str]

    def holds(self, when: Conditions) -> bool:
        """Return whether all conditions hold."""
        return (
            (not when.version or _in_range(when.version, self.build.version))
            and (not when.machine or any(self._machine_is(name) for name in when.machine))
            and (not when.has_file or self._has_file(when.has_file))
            and (not when.lacks_file or not self._has_file(when.lacks_file))
            and (not when.fails_to_load or self._fails(when.fails_to_load))
            and (not when.exports or self._exports(when.exports))
            and (not when.lacks_exports or not self._exports(when.lacks_exports))
            and (when.returns is None or self._returns(when.returns.functions, when.returns.number))
            and (not when.toolkit or _toolkit_in_range(when.toolkit, self.build.toolkit))
            and (not when.host_cuda or _in_range(when.host_cuda, dotted(self.cuda or ())))
            and (when.has_driver is None or self._has_driver() is when.has_driver)
            and (when.is_jetson is None or self.is_tegra is when.is_jetson)
            and (not when.gpu or bool(self._gpus(when.gpu)))
            and (not when.host_lacks or self._lacks_libraries(when.host_lacks))
            and (not when.cpu_lacks or bool(self._missing_cpu_features(when.cpu_lacks)))
        )

    def values(self, when: Conditions) -> dict[str, str]:
        """Return the values of a rule's placeholders."""
        driver = self.host.cuda_driver
        return {
            "version": self.build.version,
            "toolkit": dotted(self.build.toolkit) or "an unknown version",
            "driver": dotted(driver) if driver else "none",
            "cuda": dotted(self.cuda) if self.cuda else "none",
            "gpus": ", ".join(self._gpus(when.gpu)),
            "missing": ", ".join(self._missing_cpu_features(when.cpu_lacks)),
        }

    def _machine_is(self, machine: str) -> bool:
        return any(facts.machine == machine for facts in self.build.files.values())

    def _has_file(self, pattern: str) -> bool:
        return any(fnmatch.fnmatchcase(str(path), pattern) for path in self.build.files)

    def _fails(self, pattern: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for path in self.failing)

    def _exports(self, names: Sequence[str]) -> bool:
        return any(name in facts.exports for facts in self.build.files.values() for name in names)

    def _returns(self, names: Sequence[str], number: int) -> bool:
        return any(
            facts.results.get(name) == number
            for facts in self.build.files.values()
            for name in names
        )

    def _has_driver(self) -> bool | None:
        """Return None if unknown, because the host was not examined."""
        if self.cuda is not None or self.host.cuda_driver is not None:
            return True
        return False if self.host.is_complete else None

    def _gpus(self, specifier: str) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                gpu.name
                for gpu in self.host.gpus
                if gpu.compute_capability and _in_range(specifier, dotted(gpu.compute_capability))
            )
        )

    def _lacks_libraries(self, patterns: Sequence[str]) -> bool:
        if not self.host.is_complete:
            return False
        names = {library.soname for library in self.host.libraries}
        names |= self.host.other_libraries | {path.name for path in self.build.files}
        return not any(fnmatch.filter(names, pattern) for pattern in patterns)

    def _missing_cpu_features(self, wanted: Sequence[str]) -> tuple[str, ...]:
        features = self.host.cpu_features
        return () if features is None else tuple(name for name in wanted if name not in features)


@functools.lru_cache(maxsize=4096)
def _in_range(specifier: str, version: str) -> bool:
    """Return whether a version is in the range; an unknown version is in none."""
    if not version:
        return False
    return SpecifierSet(specifier, prereleases=True).contains(Version(version))


_MINORS = (0, 99)
"""The first minor version, and one beyond that of any toolkit."""


def _toolkit_in_range(specifier: str, toolkit: tuple[int, ...]) -> bool:
    """Return whether a toolkit is in the range; if only its major version is known, all of its
    minor versions have to be.
    """
    if len(toolkit) == 1:
        return all(_in_range(specifier, f"{toolkit[0]}.{minor}") for minor in _MINORS)
    return _in_range(specifier, dotted(toolkit))
