"""Libraries that a file opens when it runs, as far as its constants name them.

No table of an ELF file lists them. A file that opens libraries at all asks for ``dlopen`` or one of
its kin; the names are looked for among its strings. So what is said here is likely, no more: a name
may never be opened, another may be put together at run time.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Annotated

import msgspec

from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_image import ElfData
from potluck.portability.elf_strings import library_names
from potluck.portability.finding import Finding, Severity

_OPENERS = ("dlopen", "g_module_open", "SDL_LoadObject")
"""Parts of names: ``dlmopen`` aside, libuv's, libtool's and glibc's own contain ``dlopen``."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class LibraryKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Libraries of one purpose; the fields are explained in ``opened_libraries.toml``."""

    name: _Text
    stems: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    what: _Text
    without: _Text
    way_out: _Text
    source: Annotated[str, msgspec.Meta(pattern="^https://")]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: tuple[LibraryKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLibrary:
    """A library by the name that it is opened by. ``kind`` is that of a row of the table
    (``cuda-driver``), or ``other``.
    """

    soname: str
    kind: str

    @property
    def stem(self) -> str:
        """The name without its version: ``libcuda`` of ``libcuda.so.1``."""
        return _stem(self.soname)


def opened_libraries(elf: ElfFile, data: ElfData) -> tuple[OpenedLibrary, ...]:
    """What ``elf``, read from ``data``, opens by name; what it needs anyway is left out.

    Raises ``ElfError`` for what ``read_elf`` would not read.
    """
    names = [symbol.name for symbol in elf.undefined]
    if not any(name == "dlmopen" or any(part in name for part in _OPENERS) for name in names):
        return ()
    known = {elf.soname, *elf.needed}
    return tuple(
        OpenedLibrary(soname=name, kind=kind_of(name))
        for name in library_names(data)
        if name not in known
    )


def opened_library_findings(
    opened: Iterable[OpenedLibrary], is_found: Callable[[str], bool], *, file: str
) -> tuple[Finding, ...]:
    """What may be missing later, where ``is_found`` says which names a host or a wheel has.

    Programs try a library under several names (``libcuda.so.1``, ``libcuda.so``): it is missing if
    none of those with one stem is found.
    """
    by_stem: dict[str, list[OpenedLibrary]] = {}
    for each in opened:
        by_stem.setdefault(each.stem, []).append(each)
    return tuple(
        _finding(same, file)
        for same in by_stem.values()
        if not any(is_found(each.soname) for each in same)
    )


def kind_of(soname: str) -> str:
    """The kind of a library by its name: the row of the table that has its stem, or ``other``."""
    stem = _stem(soname)
    if exact := _kinds_by_stem().get(stem):
        return exact
    for kind in library_kinds().values():
        if any(fnmatchcase(stem, pattern) for pattern in kind.stems if pattern.endswith("*")):
            return kind.name
    return "other"


@functools.cache
def library_kinds() -> dict[str, LibraryKind]:
    """The table of this package by the names of its rows, read at its first use."""
    file = resources.files(__package__).joinpath("opened_libraries.toml")
    table = msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Table)
    return {kind.name: kind for kind in table.kind}


@functools.cache
def _kinds_by_stem() -> dict[str, str]:
    return {stem: kind.name for kind in library_kinds().values() for stem in kind.stems}


def _finding(same: list[OpenedLibrary], file: str) -> Finding:
    names = " or ".join(each.soname for each in same)
    kind = library_kinds().get(same[0].kind)
    if kind is None:
        return Finding(
            code="opened-library",
            severity=Severity.NOTE,
            message=f"it names {names}, which is not there, and may open it when it runs",
            file=file,
            library=same[0].soname,
        )
    return Finding(
        code="opened-library",
        severity=Severity.LIKELY,
        message=f"it opens {names} ({kind.what}) when it runs, and it is not there: {kind.without}",
        file=file,
        library=same[0].soname,
        way_out=kind.way_out,
    )


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]
