"""Choose the software for an invited machine: the running version of Potluck, and its requirements.

Versions are those that this node runs with, so that the machines of a cluster are alike, and wheels
are taken from this node. The index is asked only for the rest: for the same versions if they are
compatible with the machine, or otherwise for any compatible version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from potluck.cluster.invitations.software.installed_wheel import NAME, installed_distribution
from potluck.cluster.invitations.software.local_wheels import LocalWheels, Release
from potluck.errors import WheelDownloadError
from potluck.portability.planning.index import Index, WithLocalWheels, sha256_of
from potluck.portability.planning.planner import Planner, UnplannableError
from potluck.portability.wheels.requirements import (
    applies,
    marker_environment,
    parsed_requirements,
)
from potluck.types.quantities import format_few
from potluck.version import __version__

INSTALLER = "pip>=23.2"
"""pip runs from its wheel on machines that have none. Older versions fail on Python 3.12."""

_MAX_REASONS = 3

Note = Callable[[str], None]
OpenIndex = Callable[[], AbstractContextManager[Index]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenWheel:
    """A wheel for the machine."""

    project: str
    version: str
    path: Path
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """All wheels that the machine installs, including pip's."""

    version: str
    wheels: tuple[ChosenWheel, ...]


def choose_software(
    local: LocalWheels, open_index: OpenIndex, *, store: Path, needs: Path | None, note: Note
) -> Software:
    """Return the software for the machine for which ``local`` wheels are judged.

    Downloads go to ``store``; ``note`` is called before slow operations. Raise
    ``WheelDownloadError``, or ``UnplannableError`` if a requirement has no compatible version.
    """
    found, missing = _found_here(local)
    releases = [(each.name, each.version, each.path) for each in found.values()]
    if missing:
        names = format_few(sorted(missing), _MAX_REASONS)
        note(f"asking the index for wheels of {names} for {local.host.name}")
        with open_index() as index:
            releases = _planned(found, missing, local, index, store, needs)
    return Software(
        version=__version__,
        wheels=tuple(_wheel(*each) for each in sorted(releases)),
    )


def _found_here(local: LocalWheels) -> tuple[dict[str, Release], dict[str, str]]:
    """Return local releases by name, and the versions of what is missing: empty if not installed.

    Raise ``WheelDownloadError`` if there is no compatible wheel of Potluck itself.
    """
    environment = marker_environment(local.host.machine, local.python)
    found: dict[str, Release] = {}
    missing: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = deque([Requirement(NAME), Requirement(INSTALLER)])
    while queue:
        each = queue.popleft()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in found:
            version = _version_here(name, each.specifier)
            refusals: list[str] = []
            release = local.find(name, version, refusals) if version else None
            if release is None and name == NAME:
                raise _no_own_wheel(local, refusals)
            if release is None:
                missing[name] = version
                continue
            found[name] = release
        queue.extend(_requirements(found[name], extras, environment))
    return found, missing


def _version_here(name: str, wanted: SpecifierSet) -> str:
    """Return the version that this node runs with; empty if it has none that is wanted."""
    if name == NAME:
        return __version__
    installed = installed_distribution(name)
    if installed is None or not wanted.contains(installed.version, prereleases=True):
        return ""
    return installed.version


def _no_own_wheel(local: LocalWheels, refusals: list[str]) -> WheelDownloadError:
    host = local.host
    system = f"{host.machine}, {host.libc} {'.'.join(map(str, host.libc_version))}"
    # Wheels for its architecture were probably meant for it.
    refusals = sorted(refusals, key=lambda each: host.machine not in each.partition(":")[0])
    because = f": {format_few(refusals, 1)}" if refusals else ""
    return WheelDownloadError(
        f"no wheel of {NAME} {__version__} here is compatible with {host.name} "
        f"({system}, Python {local.python.version_text}){because}",
        hint="build one on the inviting node (docs/design/wheels.md), and name its folder: "
        "potluck invite --wheels FOLDER",
    )


def _planned(
    found: Mapping[str, Release],
    missing: Mapping[str, str],
    local: LocalWheels,
    index: Index,
    store: Path,
    needs: Path | None,
) -> list[tuple[str, str, Path]]:
    """Return names, versions and wheels of everything, missing ones from the index.

    Prefer this node's versions if they can be combined there, otherwise any.
    """
    pinned = [f"{name}=={version}" for name, version in missing.items() if version]
    own = [f"{NAME}=={__version__}", INSTALLER]
    try:
        return _fetched([*own, *pinned], tuple(found.values()), local, index, store, needs)
    except UnplannableError as error:
        try:
            return _fetched(own, (found[NAME],), local, index, store, needs)
        except UnplannableError:
            raise error from None  # which names what this node runs with


def _fetched(
    requirements: list[str],
    here: tuple[Release, ...],
    local: LocalWheels,
    index: Index,
    store: Path,
    needs: Path | None,
) -> list[tuple[str, str, Path]]:
    planner = Planner(
        WithLocalWheels(index, [each.path for each in here]),
        (local.host,),
        default_python=local.python,
        folder=store,
        needs_folder=needs,
    )
    plan = planner.plan_host(requirements, local.host.name)
    paths = {each.name: each.path for each in here}
    return [
        (each.name, each.version, paths.get(each.name) or planner.fetch(each, store))
        for each in plan.wheels
    ]


def _requirements(
    release: Release, extras: frozenset[str], environment: Mapping[str, str]
) -> Iterator[Requirement]:
    for requirement in parsed_requirements(release.requires):
        if any(applies(requirement, {**environment, "extra": extra}) for extra in ("", *extras)):
            yield requirement


def _wheel(name: str, version: str, path: Path) -> ChosenWheel:
    return ChosenWheel(
        project=name,
        version=version,
        path=path,
        sha256=sha256_of(path),
        num_bytes=path.stat().st_size,
    )
