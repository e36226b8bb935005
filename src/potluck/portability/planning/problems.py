"""Explain why there is no solution: minimal sets of conflicting requirements and hosts, and the
fewest reasons that cover every release that was considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from potluck.portability.planning.index import Incompatibility, Rejections, Releases
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.nearest import NearestFinder
from potluck.portability.planning.plan import Nearest, Problem, Reason
from potluck.portability.planning.provider import UNUSABLE, UnresolvableError, resolve
from potluck.portability.planning.refusals import PYTHON_KINDS
from potluck.portability.planning.target import Target, Want, wants_of

Item = TypeVar("Item")


class Explainer:
    """Explains why ``resolve`` failed, from what it has read."""

    def __init__(self, judge: Judge, releases: Releases, rejections: Rejections) -> None:
        self._judge = judge
        self._releases = releases
        self._rejections = rejections
        self._nearest = NearestFinder(judge, releases)

    def problems(
        self,
        error: UnresolvableError,
        requirements: Sequence[Requirement],
        targets: Sequence[Target],
    ) -> list[Problem]:
        """Return at least one problem. ``error`` was raised for ``requirements`` and
        ``targets``.
        """
        causes = {"": error.causes}

        def fails(needed: Sequence[Requirement], hosts: Sequence[Target]) -> bool:
            found = self._causes(needed, hosts)
            if found is not None:
                causes[""] = found
            return found is not None

        least = smallest_failing(requirements, lambda each: fails(each, targets))
        hosts = smallest_failing(targets, lambda each: fails(least, each))
        fails(least, hosts)
        return [
            self._problem(package, causes[""], least, hosts) for package in _packages(causes[""])
        ]

    def _causes(
        self, requirements: Sequence[Requirement], targets: Sequence[Target]
    ) -> tuple[Want, ...] | None:
        """Return why these requirements cannot be satisfied; None if they can."""
        wants = [want for each in requirements for want in wants_of(each, targets)]
        try:
            resolve(wants, self._judge, self._releases, self._rejections)
        except UnresolvableError as error:
            return error.causes
        return None

    def _problem(
        self,
        package: str,
        causes: Sequence[Want],
        requirements: Sequence[Requirement],
        targets: Sequence[Target],
    ) -> Problem:
        names = tuple(each.name for each in targets)
        wants = [each for each in causes if each.name == package]
        specifier = SpecifierSet()
        for want in wants:
            specifier &= want.specifier
        by_kind = self._reasons(package, names, specifier)
        kinds = {kind for kind, _ in by_kind}
        requested = [each for each in requirements if canonicalize_name(each.name) == package]
        nearest: list[Nearest] = []
        if len(targets) == 1:
            nearest += self._nearest.find(
                package,
                targets[0],
                requirements,
                is_requested=bool(requested),
                may_be_python=bool(kinds & PYTHON_KINDS),
                libraries=self._missing_libraries(package, targets[0].name),
            )
        reasons = [reason for _, reason in by_kind]
        if not self._releases.of(package):
            reasons = [Reason(message="the index has no such package", versions=())]
        elif not reasons:
            reasons = [Reason(message=each, versions=()) for each in _conflict(wants)]
        return Problem(
            package=package,
            hosts=names,
            wanted=tuple(dict.fromkeys(_wanted(each) for each in wants)),
            reasons=tuple(reasons),
            nearest=tuple(nearest),
        )

    def _missing_libraries(self, package: str, host: str) -> frozenset[str]:
        """Return the libraries that the newest release that was read misses, if nothing else is
        missing.
        """
        rejected = self._rejections.of(package, host)
        read = [
            version for version, found in rejected.items() if any(each.library for each in found)
        ]
        newest = rejected[max(read)] if read else ()
        if not all(each.library for each in newest):
            return frozenset()
        return frozenset(each.library for each in newest)

    def _reasons(
        self, package: str, hosts: Sequence[str], specifier: SpecifierSet
    ) -> list[tuple[str, Reason]]:
        """Return the fewest pairs of host and kind of reason that cover every rejected version
        among those requested.
        """
        cases: dict[tuple[str, str], dict[Version, Incompatibility]] = {}
        for host in hosts:
            for version, found in self._rejections.of(package, host).items():
                for each in found if specifier.contains(version, prereleases=True) else ():
                    cases.setdefault((host, each.kind), {}).setdefault(version, each)
        reasons = []
        for host, kind in fewest_covering(cases):
            versions = cases[host, kind]
            message = versions[min(versions)].message
            prefix = f"on {host}, " if len(hosts) > 1 else ""
            reasons.append(
                (
                    kind,
                    Reason(
                        message=f"{prefix}{_range(versions)}: {message}",
                        versions=tuple(map(str, sorted(versions, reverse=True))),
                    ),
                )
            )
        return reasons


def smallest_failing(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]
) -> tuple[Item, ...]:
    """Return a minimal failing subset of ``items``: items that are not needed for the failure are
    removed, from the last one.
    """
    left = list(items)
    for item in reversed(items):
        if len(left) == 1:
            break
        without = [each for each in left if each is not item]
        if fails(without):
            left = without
    return tuple(left)


def fewest_covering(
    cases: Mapping[tuple[str, str], Mapping[Version, Incompatibility]],
) -> Iterator[tuple[str, str]]:
    """Yield keys that together cover all versions. Each time, the key that covers most of the
    remaining versions is chosen (greedy: at most a logarithmic factor more than the minimum).
    """
    left = {version for versions in cases.values() for version in versions}
    while left:
        key = max(cases, key=lambda each: (len(left & cases[each].keys()), each))
        yield key
        left -= cases[key].keys()


def _packages(causes: Iterable[Want]) -> list[str]:
    named = [each.parent if each.name == UNUSABLE else each.name for each in causes]
    return list(dict.fromkeys(named))[:3] or ["?"]


def _conflict(wants: Sequence[Want]) -> list[str]:
    specifiers = dict.fromkeys(_wanted(each) for each in wants)
    return (
        [f"no release satisfies all of {', '.join(specifiers)}"] if specifiers else ["nothing fits"]
    )


def _wanted(want: Want) -> str:
    requested = f"{want.specifier}" or "any release"
    return f"{requested} (for {want.parent})" if want.parent else requested


def _range(versions: Mapping[Version, Incompatibility]) -> str:
    oldest, newest = min(versions), max(versions)
    return str(newest) if oldest == newest else f"{oldest} to {newest}"
