"""A host with the Python for which packages are installed, and requirements for packages on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from potluck.errors import UsageError
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.planning.index import IndexFile, ParsedName, parse_filename
from potluck.portability.wheels.requirements import holds, marker_environment
from potluck.portability.wheels.tags import platforms, tag_ranks, tags_refusal

_MICROS = (0, 99)
"""Descriptions of hosts lack the micro version of their Python: requirements of any of these are
planned for.
"""


class Target:
    """A host with a Python: its own, or ``default_python`` if that is unknown."""

    def __init__(self, host: Host, default_python: HostPython) -> None:
        self.python = host.python or default_python
        self.host = replace(host, python=self.python)
        named = platforms(host.machine, host.libc, host.libc_version)
        self._ranks = tag_ranks(self.python, named)

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    def _rank(self, file: IndexFile) -> tuple[int, ParsedName] | None:
        """Return the rank of a wheel in the installers' order of preference, and its name; None if
        they do not accept it.
        """
        parsed = parse_filename(file.filename)
        if parsed is None:
            return None
        ranks = [self._ranks[each] for each in parsed.tags if each in self._ranks]
        return (min(ranks), parsed) if ranks and not self.refusal(file) else None

    def accepts(self, file: IndexFile) -> bool:
        """Return whether installers accept a wheel, by its name and the index's data."""
        return self._rank(file) is not None

    def preferred(self, files: Iterable[IndexFile]) -> IndexFile | None:
        """Return the wheel that installers prefer by its tags, and among those with the best tags
        by its build number; None if they accept none of these.
        """
        found = [(*ranked, file) for file in files if (ranked := self._rank(file)) is not None]
        best = min((rank for rank, _, _ in found), default=None)
        builds = ((parsed.build, file) for rank, parsed, file in found if rank == best)
        return max(builds, key=lambda each: each[0], default=(None, None))[1]

    def refusal(self, file: IndexFile) -> str:
        """Return why installers refuse a wheel, by its name and the index's data; empty if they
        accept it.
        """
        parsed = parse_filename(file.filename)
        if parsed is None or not parsed.tags:
            return "it is not a wheel"
        return tags_refusal(parsed.tags, file.requires_python, self.host)

    def holds(self, marker: Marker | None, extra: str) -> bool:
        """Return whether a requirement with this marker applies here, for an extra or for none."""
        # If an installer would fail, an extra package does less harm than a missing one.
        return marker is None or any(
            holds(marker, each) is not False for each in self._environments(extra)
        )

    def _environments(self, extra: str) -> Iterator[dict[str, str]]:
        for micro in _MICROS:
            environment = marker_environment(self.host.machine, self.python, micro=micro)
            yield {**environment, "extra": extra, "platform_release": "", "platform_version": ""}


def holding(targets: Iterable[Target], marker: Marker | None, extra: str = "") -> frozenset[str]:
    """Return the names of the targets for which a marker is true."""
    return frozenset(each.name for each in targets if each.holds(marker, extra))


_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A package, or one of its extras, that some hosts need. ``parent`` is the package that
    requires it; empty for what the user requested.
    """

    name: str
    extra: str = ""
    specifier: SpecifierSet
    hosts: frozenset[str]
    parent: str = ""

    def __str__(self) -> str:
        extra = f"[{self.extra}]" if self.extra else ""
        return f"{self.name}{extra}{self.specifier}"


def parse_requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """Parse requirements. Raise ``UsageError`` for one that is invalid or has a URL."""
    return tuple(_parsed(each) for each in texts)


def read_requirements_file(path: Path) -> tuple[str, ...]:
    """Return the requirements in a file in pip's format that contains only requirements and
    comments. Raise ``UsageError`` for anything else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"-r {path}: {error}", hint="give a requirements file") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"-r {path}: it has more than {_MAX_FILE_BYTES} bytes")
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        requirement = line.partition(" #")[0].partition(" --hash")[0].strip()
        if not requirement or requirement.startswith("#"):
            continue
        if requirement.startswith("-"):
            raise UsageError(
                f"-r {path}: {requirement!r} is an option, but only requirements are supported",
                hint="put indexes into pip's configuration, and give constraints as requirements",
            )
        found.append(requirement)
    return tuple(found)


def wants_of(
    requirement: Requirement, targets: Iterable[Target], *, parent: str = "", extra: str = ""
) -> Iterator[Want]:
    """Return what a requirement requires for the targets for which its marker is true: the package,
    and each of its extras. ``extra`` is the extra of ``parent`` that it belongs to.
    """
    hosts = holding(targets, requirement.marker, extra)
    if not hosts:
        return
    name = canonicalize_name(requirement.name)
    for part in ("", *sorted(map(canonicalize_name, requirement.extras))):
        yield Want(
            name=name, extra=part, specifier=requirement.specifier, hosts=hosts, parent=parent
        )


def all_wants(requirements: Iterable[Requirement], targets: Sequence[Target]) -> list[Want]:
    """Return what the requirements of the user require for the targets."""
    return [want for each in requirements for want in wants_of(each, targets)]


def _parsed(text: str) -> Requirement:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url:
        raise UsageError(
            f"{text} is not a requirement for a package in an index",
            hint="for example warp-lang, numpy>=2,<3 or uvicorn[standard], or the path of a wheel",
        )
    return requirement
