"""Find versions that work on all given hosts, or the conflicting requirements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version
from resolvelib import BaseReporter, ResolutionImpossible, ResolutionTooDeep, Resolver

from potluck.errors import PotluckError
from potluck.portability.planning.index import IndexFile
from potluck.portability.planning.judge import Judge
from potluck.portability.planning.provider import Candidate, Key, Provider
from potluck.portability.planning.releases import Rejections, Releases
from potluck.portability.planning.wants import Want

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

    def __init__(self, causes: Sequence[Want], *, is_too_deep: bool = False) -> None:
        super().__init__(f"no versions satisfy {', '.join(map(str, causes))}")
        self.causes = tuple(causes)
        self.is_too_deep = is_too_deep


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
        raise UnresolvableError(wants, is_too_deep=True) from None
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
            if each.hosts & new:
                queue.append(
                    Want(
                        name=each.name,
                        extra=each.extra,
                        specifier=each.specifier,
                        hosts=each.hosts & new,
                        parent=each.parent,
                    )
                )
    return tuple(
        Choice(
            name=name,
            version=chosen[name, ""].version,
            files=files[name],
            parents=tuple(parents.get(name, ())),
        )
        for name in sorted(files)
    )
