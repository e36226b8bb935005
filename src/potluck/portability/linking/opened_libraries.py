"""Libraries that a file opens at run time, as far as its constants name them.

No table of an ELF file lists them. A file that opens libraries at all imports ``dlopen`` or a
similar function; the names are searched for among its strings. So these findings are only likely: a
name may never be opened, and another may be constructed at run time.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Annotated, Literal

import msgspec

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfData
from potluck.portability.elf.strings import library_names
from potluck.portability.finding import Finding, Severity

_OPENERS = ("dlopen", "g_module_open", "SDL_LoadObject")
"""Parts of names: ``dlmopen`` aside, libuv's, libtool's and glibc's own contain ``dlopen``."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class LibraryKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Libraries for one purpose; the fields are explained in ``opened_libraries.toml``."""

    name: _Text
    stems: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    what: _Text
    without: _Text
    fix: _Text
    jetson_fix: str = ""
    belongs_to: Literal["", "driver", "system"] = ""
    source: Annotated[str, msgspec.Meta(pattern="^https://")]

    def fix_on(self, *, is_tegra: bool) -> str:
        """Return how to install it, on a Jetson or elsewhere."""
        return self.jetson_fix if is_tegra and self.jetson_fix else self.fix


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: tuple[LibraryKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLibrary:
    """A library by the name under which it is opened. ``kind`` is that of a row of the table
    (``cuda-driver``), or ``other``.
    """

    soname: str
    kind: str

    @property
    def stem(self) -> str:
        """The name without its version: ``libcuda`` for ``libcuda.so.1``."""
        return _stem(self.soname)


def opened_libraries(elf: ElfFile, data: ElfData) -> tuple[OpenedLibrary, ...]:
    """Return what ``elf``, read from ``data``, opens by name, without what it needs anyway.

    Raise ``ElfError`` as ``read_elf`` does.
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
    opened: Iterable[OpenedLibrary],
    is_found: Callable[[str], bool],
    *,
    file: str,
    is_tegra: bool = False,
) -> tuple[Finding, ...]:
    """Return what may be missing at run time; ``is_found`` says which names a host or a wheel has.

    Programs try a library under several names (``libcuda.so.1``, ``libcuda.so``): it is missing if
    none of those with the same stem is found.
    """
    by_stem: dict[str, list[OpenedLibrary]] = {}
    for each in opened:
        by_stem.setdefault(each.stem, []).append(each)
    return tuple(
        _finding(same, file, is_tegra)
        for same in by_stem.values()
        if not any(is_found(each.soname) for each in same)
    )


def kind_of(soname: str) -> str:
    """Return the kind of a library by its name: the row of the table that has its stem, or
    ``other``.
    """
    stem = _stem(soname)
    if exact := _kinds_by_stem().get(stem):
        return exact
    for kind in library_kinds().values():
        if any(fnmatchcase(stem, pattern) for pattern in kind.stems if pattern.endswith("*")):
            return kind.name
    return "other"


@functools.cache
def library_kinds() -> dict[str, LibraryKind]:
    """Return the table in this package by the names of its rows; it is read at the first use."""
    file = resources.files(__package__).joinpath("opened_libraries.toml")
    table = msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Table)
    return {kind.name: kind for kind in table.kind}


@functools.cache
def _kinds_by_stem() -> dict[str, str]:
    return {stem: kind.name for kind in library_kinds().values() for stem in kind.stems}


def _finding(same: list[OpenedLibrary], file: str, is_tegra: bool) -> Finding:
    names = " or ".join(each.soname for each in same)
    kind = library_kinds().get(same[0].kind)
    if kind is None:
        return Finding(
            code="opened-library",
            severity=Severity.NOTE,
            message=f"it may open {names} at run time, which is missing",
            file=file,
            library=same[0].soname,
        )
    return Finding(
        code="opened-library",
        severity=Severity.LIKELY,
        message=f"it opens {names} ({kind.what}) at run time, which is missing: {kind.without}",
        file=file,
        library=same[0].soname,
        fix=kind.fix_on(is_tegra=is_tegra),
    )


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]
