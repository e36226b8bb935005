"""The provider for the resolver (resolvelib, which pip uses): candidates of a package, and their
dependencies.

A candidate is one version of a package for all hosts that need it: for each, the wheel that
installers choose there. Whether these load is checked last, after their dependencies are known to
be compatible with what is chosen so far, since reading a wheel costs most.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from resolvelib import (
    AbstractProvider,
    BaseReporter,
    ResolutionImpossible,
    ResolutionTooDeep,
    Resolver,
)

from potluck.errors import PotluckError, WheelFileError
from potluck.portability.planning.index import IndexFile, Rejections, Release, Releases
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.refusals import release_refusal
from potluck.portability.planning.release_variants import VariantFacts, resolved_variant_markers
from potluck.portability.planning.target import Want, wants_of
from potluck.portability.wheels.requirements import parsed_requirements

MAX_BISECTED = 6
"""Number of wheels that are read to find the newest that loads: bisection over 63 releases."""

Key = tuple[str, str]
"""A package and one of its extras, or an empty one."""

UNUSABLE = "!"
"""The name of a package that does not exist: candidates that do not load depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version of a package, or of one of its extras. ``files`` are its wheels by host."""

    name: str
    extra: str
    version: Version
    files: tuple[tuple[str, IndexFile], ...]

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that it is for."""
        return frozenset(host for host, _ in self.files)


class Provider(AbstractProvider[Want, Candidate, Key]):
    """Provides candidates for the targets of a judge. ``rejections`` are collected in the
    process.
    """

    def __init__(self, judge: Judge, releases: Releases, rejections: Rejections) -> None:
        self._judge = judge
        self._releases = releases
        self._rejections = rejections
        self._dependencies: dict[Candidate, tuple[Want, ...]] = {}

    def identify(self, requirement_or_candidate: Want | Candidate) -> Key:
        """See resolvelib."""
        return requirement_or_candidate.name, requirement_or_candidate.extra

    def get_preference(
        self,
        identifier: Key,
        resolutions: Mapping[Key, Candidate],
        candidates: Mapping[Key, Iterator[Candidate]],
        information: Mapping[Key, Iterator[Any]],
        backtrack_causes: Sequence[Any],
    ) -> tuple[bool, bool, bool, bool, Key]:
        """Prefer packages with one allowed version, those that just conflicted, and those that the
        user requested.
        """
        wants = [each.requirement for each in information[identifier]]
        specifiers = [each for want in wants for each in want.specifier]
        is_pinned = any(each.operator in ("==", "===") for each in specifiers)
        is_cause = any(self.identify(each.requirement) == identifier for each in backtrack_causes)
        is_requested = any(not each.parent for each in wants)
        return not is_pinned, not is_cause, not is_requested, not specifiers, identifier

    def find_matches(
        self,
        identifier: Key,
        requirements: Mapping[Key, Iterator[Want]],
        incompatibilities: Mapping[Key, Iterator[Candidate]],
    ) -> Callable[[], Iterator[Candidate]]:
        """See resolvelib. Candidates are newest first, and created when they are tried."""
        name, extra = identifier
        if name == UNUSABLE:
            return lambda: iter(())
        wants = list(requirements[identifier])
        hosts = frozenset[str]().union(*(each.hosts for each in wants))
        if extra and (name, "") in requirements:
            wants += requirements[name, ""]
        specifier = functools.reduce(lambda a, b: a & b, (each.specifier for each in wants))
        without = {each.version for each in incompatibilities[identifier]}
        found = [
            release
            for release in self._releases.allowed(name, specifier)
            if release.version not in without and self._fits_by_tags(name, release, hosts)
        ]
        candidate = functools.cache(functools.partial(self._candidate, identifier, hosts=hosts))
        return lambda: self._tried(found, candidate)

    def is_satisfied_by(self, requirement: Want, candidate: Candidate) -> bool:
        """See resolvelib. Versions were already filtered, including pre-releases."""
        is_allowed = requirement.specifier.contains(candidate.version, prereleases=True)
        return is_allowed and requirement.hosts <= candidate.hosts

    def get_dependencies(self, candidate: Candidate) -> Iterable[Want]:
        """See resolvelib. The last dependency is that of a candidate that does not load."""
        yield from self.dependencies(candidate)
        if not candidate.extra and not self._loads(candidate):
            yield Want(
                name=UNUSABLE,
                specifier=SpecifierSet(),
                hosts=candidate.hosts,
                parent=candidate.name,
            )

    def dependencies(self, candidate: Candidate) -> tuple[Want, ...]:
        """Return the dependencies in the metadata of a candidate's wheels; none for malformed
        wheels.
        """
        if candidate not in self._dependencies:
            self._dependencies[candidate] = tuple(self._read_dependencies(candidate))
        return self._dependencies[candidate]

    def _fits_by_tags(self, name: str, release: Release, hosts: frozenset[str]) -> bool:
        fits = True
        for host in sorted(hosts):
            if not self._judge.fits_by_tags(release, host):
                why = release_refusal(release, self._judge.targets[host])
                self._rejections.add(name, host, release.version, (why,))
                fits = False
        return fits

    def _candidate(
        self, identifier: Key, release: Release, hosts: frozenset[str]
    ) -> Candidate | None:
        """Return the candidate of a release whose tags fit; None if no variant of it fits a host.
        The properties of variants are read.
        """
        name, extra = identifier
        files = {host: self._judge.fitting(release, host) for host in sorted(hosts)}
        for host, file in files.items():
            if file is None:
                unused = self._judge.variants(release, host).unused
                why = release_refusal(release, self._judge.targets[host], unused)
                self._rejections.add(name, host, release.version, (why,))
        chosen = tuple((host, file) for host, file in files.items() if file is not None)
        if len(chosen) < len(files):
            return None
        return Candidate(name=name, extra=extra, version=release.version, files=chosen)

    def _tried(
        self, releases: Sequence[Release], candidate_of: Callable[[Release], Candidate | None]
    ) -> Iterator[Candidate]:
        """Yield candidates in order; after one that does not load, continue from the newest that
        does.
        """
        left = list(releases)
        while left:
            candidate = candidate_of(left[0])
            if candidate is None:
                left = left[1:]
                continue
            if self._is_known_to_fail(candidate):
                left = self._from_newest_usable(left[1:], candidate_of)
                continue
            yield candidate
            if not self._is_known_to_fail(candidate):
                left = left[1:]

    def _from_newest_usable(
        self, releases: list[Release], candidate_of: Callable[[Release], Candidate | None]
    ) -> list[Release]:
        """Bisect: older releases usually need less of a host."""
        first: int | None = None
        low, high = 0, len(releases)
        for _ in range(MAX_BISECTED):
            if low >= high:
                break
            middle = (low + high) // 2
            candidate = candidate_of(releases[middle])
            if candidate is not None and self._loads(candidate):
                first, high = middle, middle
            else:
                low = middle + 1
        return [] if first is None else releases[first:]

    def _is_known_to_fail(self, candidate: Candidate) -> bool:
        return any(
            self._judge.is_judged(file, host) and not self._judge.judge(file, host).is_usable
            for host, file in candidate.files
        )

    def _loads(self, candidate: Candidate) -> bool:
        loads = True
        for host, file in candidate.files:
            judgement = self._judge.judge(file, host)
            if not judgement.is_usable:
                self._rejections.add(candidate.name, host, candidate.version, judgement.reasons)
                loads = False
        return loads

    def _read_dependencies(self, candidate: Candidate) -> Iterator[Want]:
        alike: dict[tuple[IndexFile, VariantFacts], list[str]] = {}
        for host, file in candidate.files:
            alike.setdefault((file, self._judge.variant_facts(file, host)), []).append(host)
        if candidate.extra:
            yield Want(
                name=candidate.name,
                specifier=SpecifierSet(f"=={candidate.version}"),
                hosts=candidate.hosts,
                parent=f"{candidate.name}[{candidate.extra}]",
            )
        wants: dict[tuple[str, str, str], Want] = {}
        for (file, facts), hosts in alike.items():
            targets = [self._judge.targets[host] for host in hosts]
            for requirement in self._requires(file, facts):
                # Other requirements belong to the package itself, which is wanted too.
                if candidate.extra and "extra" not in str(requirement.marker or ""):
                    continue
                for want in wants_of(
                    requirement, targets, parent=candidate.name, extra=candidate.extra
                ):
                    _merge(wants, want)
        yield from wants.values()

    def _requires(self, file: IndexFile, facts: VariantFacts) -> Iterator[Requirement]:
        try:
            lines = self._judge.reader.requires(file)
        except WheelFileError:
            return  # the check says the same
        resolved = (resolved_variant_markers(line, facts) for line in lines)
        yield from (each for each in parsed_requirements(resolved) if not each.url)


def _merge(wants: dict[tuple[str, str, str], Want], want: Want) -> None:
    """Wheels of one release mostly have the same dependencies: combine them for several hosts."""
    key = want.name, want.extra, str(want.specifier)
    other = wants.get(key)
    hosts = want.hosts if other is None else want.hosts | other.hosts
    wants[key] = replace(want, hosts=hosts)


_MAX_ROUNDS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A version of a package, with the wheel for each host that needs it. ``parents`` are the
    packages that require it; empty if only the user does.
    """

    name: str
    version: Version
    files: Mapping[str, IndexFile]
    parents: tuple[str, ...]


class UnresolvableError(PotluckError):
    """There is no solution. ``causes`` are the conflicting requirements."""

    def __init__(self, causes: Sequence[Want]) -> None:
        super().__init__(f"no versions satisfy {', '.join(map(str, causes))}")
        self.causes = tuple(causes)


def resolve(
    wants: Sequence[Want], judge: Judge, releases: Releases, rejections: Rejections
) -> tuple[Choice, ...]:
    """Return the newest versions that satisfy ``wants``, by name; each is for all hosts that need
    it.

    Raise ``UnresolvableError`` if there are none, and ``WheelDownloadError`` if the index does not
    respond.
    """
    provider = Provider(judge, releases, rejections)
    resolver: Resolver[Want, Candidate, Key] = Resolver(provider, BaseReporter())
    try:
        result = resolver.resolve(wants, max_rounds=_MAX_ROUNDS)
    except ResolutionImpossible as error:
        raise UnresolvableError([each.requirement for each in error.causes]) from None
    except ResolutionTooDeep:
        raise UnresolvableError(wants) from None
    return _choices(wants, result.mapping, provider)


def _choices(
    wants: Sequence[Want], chosen: Mapping[Key, Candidate], provider: Provider
) -> tuple[Choice, ...]:
    """Return what is reachable from ``wants``, host by host: the resolver keeps packages that it no
    longer needs.
    """
    files: dict[str, dict[str, IndexFile]] = {}
    parents: dict[str, dict[str, None]] = {}
    seen: set[tuple[Key, str]] = set()
    queue = list(wants)
    for want in queue:
        candidate = chosen[want.name, want.extra]
        if want.parent and want.parent.partition("[")[0] != want.name:
            parents.setdefault(want.name, {})[want.parent] = None
        new = frozenset(host for host in want.hosts if ((want.name, want.extra), host) not in seen)
        if not new:
            continue
        seen.update(((want.name, want.extra), host) for host in new)
        of_hosts = dict(candidate.files)
        files.setdefault(want.name, {}).update((host, of_hosts[host]) for host in sorted(new))
        for each in provider.dependencies(candidate):
            if hosts := each.hosts & new:
                queue.append(replace(each, hosts=hosts))
    return tuple(
        Choice(
            name=name,
            version=chosen[name, ""].version,
            files=files[name],
            parents=tuple(parents.get(name, ())),
        )
        for name in sorted(files)
    )
