"""Symbol versions: those that an object requires of others, and those that it defines.

The format: Linux Standard Base Core 5.0, chapter 10.7 (symbol versioning). The tables are chains
of records; like the dynamic linker, this follows them to their end and ignores the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from potluck.errors import ElfError
from potluck.portability.elf.dynamic import DT_VERDEF, DT_VERNEED, Dynamic
from potluck.portability.elf.file import VersionNeed
from potluck.portability.elf.image import ElfImage

HIDDEN = 0x8000
"""In a symbol's version index: the version is not the default."""
INDEX_MASK = 0x7FFF

_BASE = 1
_WEAK = 2
_NEED = "HHIII"  # vn_version, vn_cnt, vn_file, vn_aux, vn_next
_NEED_AUX = "IHHII"  # vna_hash, vna_flags, vna_other, vna_name, vna_next
_DEFINITION = "HHHHIII"  # vd_version, vd_flags, vd_ndx, vd_cnt, vd_hash, vd_aux, vd_next
_DEFINITION_AUX = "II"  # vda_name, vda_next

_MAX_RECORDS = 2**15
"""Limit per table, including records of the second level: version indexes have 15 bits. libc.so.6
of glibc 2.36 defines 38 versions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolVersion:
    """``library`` must define it; empty if the object itself does."""

    version: str
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """``by_index`` maps the version indexes of symbols; indexes without a version (0, 1, the base
    definition) are absent.
    """

    needs: tuple[VersionNeed, ...]
    definitions: tuple[str, ...]
    by_index: Mapping[int, SymbolVersion]


def read_versions(image: ElfImage, dynamic: Dynamic) -> Versions:
    """Read both tables, in the order of the file. Raise ``ElfError`` if they are malformed."""
    by_index: dict[int, SymbolVersion] = {}
    definitions = []
    for index, name in _definitions(image, dynamic):
        definitions.append(name)
        by_index[index] = SymbolVersion(version=name)
    needs = []
    for index, need in _needs(image, dynamic):
        needs.append(need)
        by_index[index] = SymbolVersion(version=need.version, library=need.library)
    return Versions(needs=tuple(needs), definitions=tuple(definitions), by_index=by_index)


def _needs(image: ElfImage, dynamic: Dynamic) -> Iterator[tuple[int, VersionNeed]]:
    what = "the table of required versions"
    if DT_VERNEED not in dynamic.entries:
        return
    offset, _ = image.locate(dynamic.entries[DT_VERNEED], what)
    num_records = 0
    for start, (_, count, library_name, first, _) in _chain(image, _NEED, offset, what):
        if not count:
            continue
        library = dynamic.strings.text(library_name)
        for _, (_, flags, index, name, _) in _chain(image, _NEED_AUX, start + first, what):
            num_records += 1
            if num_records > _MAX_RECORDS:
                raise ElfError(f"{what} does not end")
            yield (
                index & INDEX_MASK,
                VersionNeed(
                    library=library,
                    version=dynamic.strings.text(name),
                    is_weak=bool(flags & _WEAK),
                ),
            )


def _definitions(image: ElfImage, dynamic: Dynamic) -> Iterator[tuple[int, str]]:
    what = "the table of defined versions"
    if DT_VERDEF not in dynamic.entries:
        return
    offset, _ = image.locate(dynamic.entries[DT_VERDEF], what)
    for start, (_, flags, index, _, _, first, _) in _chain(image, _DEFINITION, offset, what):
        if not flags & _BASE:
            name, _ = image.unpack(_DEFINITION_AUX, start + first, what)
            yield index & INDEX_MASK, dynamic.strings.text(name)


def _chain(
    image: ElfImage, layout: str, offset: int, what: str
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield records with their offsets. The last field is the distance to the next one, 0 at the
    end.
    """
    for _ in range(_MAX_RECORDS):
        record = image.unpack(layout, offset, what)
        yield offset, record
        if not record[-1]:
            return
        offset += record[-1]
    raise ElfError(f"{what} does not end")
