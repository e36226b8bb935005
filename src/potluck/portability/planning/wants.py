"""Requirements for packages, each for some of the hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from potluck.errors import UsageError
from potluck.portability.planning.target import Target, holding

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
