"""The dynamic segment: its tagged entries, the names that they refer to, and symbol versions."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from potluck.errors import ElfError
from potluck.portability.elf.file import VersionNeed
from potluck.portability.elf.image import PT_DYNAMIC, ElfData, ElfImage

DT_NEEDED = 1
DT_PLTRELSZ = 2
DT_HASH = 4
DT_STRTAB = 5
DT_SYMTAB = 6
DT_RELA = 7
DT_RELASZ = 8
DT_STRSZ = 10
DT_SYMENT = 11
DT_SONAME = 14
DT_RPATH = 15
DT_REL = 17
DT_RELSZ = 18
DT_PLTREL = 20
DT_JMPREL = 23
DT_RUNPATH = 29
DT_FLAGS = 30
DT_GNU_HASH = 0x6FFFFEF5
DT_VERSYM = 0x6FFFFFF0
DT_VERDEF = 0x6FFFFFFC
DT_VERNEED = 0x6FFFFFFE

DF_STATIC_TLS = 0x10

_DT_NULL = 0
_MAX_ENTRIES = 2**16
"""Limit of entries of the dynamic segment; most files have 30, and one that needs a thousand
libraries has 1,030.
"""

MAX_NAME_BYTES = 2**27
"""Limit of all names of a file together. libtorch_cpu.so of PyTorch 2.13 has 5 MB; without a limit,
names that are suffixes of each other could take the square of the file's size.
"""


class StringTable:
    """A string table, with names by offset. Bytes that are not UTF-8 are written as backslash
    escapes.

    The names are the bytes ``[start, end)`` of ``data``, which has to stay open: they are not
    copied, since they may be a tenth of a large library.
    """

    def __init__(self, data: ElfData, start: int, end: int) -> None:
        if end - start > MAX_NAME_BYTES:
            raise ElfError(f"its string table has {end - start} bytes")
        if isinstance(data, memoryview):  # which cannot be searched
            data, start, end = bytes(data[start:end]), 0, end - start
        self._data = data
        self._start = start
        self._end = end
        self._bytes_left = MAX_NAME_BYTES

    def text(self, offset: int) -> str:
        """Return the name at ``offset``. Raise ``ElfError`` if there is none."""
        start = self._start + offset
        if not self._start <= start < self._end:
            raise ElfError(f"its string table has no name at {offset}")
        end = self._data.find(b"\0", start, self._end)
        if end < 0:
            raise ElfError(f"its string table ends before the end of the name at {offset}")
        self._take(end - start)
        return bytes(self._data[start:end]).decode("utf-8", "backslashreplace")

    def _take(self, num_bytes: int) -> None:
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise ElfError(f"its names take more than {MAX_NAME_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """The entries by tag (the last one counts, as for the linker), the offsets of the names of
    needed libraries in their order, and the names. All are empty for statically linked files.
    """

    entries: Mapping[int, int]
    needed: tuple[int, ...]
    strings: StringTable

    def text(self, tag: int) -> str:
        """Return the name that the entry refers to; empty without one."""
        offset = self.entries.get(tag)
        return "" if offset is None else self.strings.text(offset)

    def address(self, tag: int, what: str) -> int:
        """Return the entry's value. Raise ``ElfError`` if there is none."""
        if tag not in self.entries:
            raise ElfError(f"it does not say where {what} is")
        return self.entries[tag]

    @property
    def is_rpath(self) -> bool:
        """Whether the search path is DT_RPATH, which counts only without DT_RUNPATH."""
        return DT_RUNPATH not in self.entries and DT_RPATH in self.entries

    def search_path(self) -> tuple[str, ...]:
        """Return the elements of DT_RUNPATH, or else of DT_RPATH, that are not empty."""
        path = self.text(DT_RPATH if self.is_rpath else DT_RUNPATH)
        return tuple(each for each in path.split(":") if each)


def read_words(image: ElfImage, data: bytes, *, has_8_bytes: bool = False) -> array[int]:
    """Return the words of four or eight bytes that ``data`` of the file consists of."""
    words = array("Q" if has_8_bytes else "I", data)
    if (image.header.byte_order == "<") != (sys.byteorder == "little"):
        words.byteswap()
    return words


def read_dynamic(image: ElfImage) -> Dynamic:
    """Read the dynamic segment and its string table. Raise ``ElfError`` if they are malformed."""
    segments = image.of_type(PT_DYNAMIC)
    if not segments:
        return Dynamic(entries=MappingProxyType({}), needed=(), strings=StringTable(b"", 0, 0))
    is_64_bit = image.header.is_64_bit
    entry_bytes = 16 if is_64_bit else 8
    num_entries = segments[0].filesz // entry_bytes
    data = image.read(segments[0].offset, num_entries * entry_bytes, "the dynamic segment")
    words = read_words(image, data[: (_MAX_ENTRIES + 1) * entry_bytes], has_8_bytes=is_64_bit)
    tags, values = words[::2], words[1::2]
    if _DT_NULL in tags:
        end = tags.index(_DT_NULL)
        tags, values = tags[:end], values[:end]
    if len(tags) > _MAX_ENTRIES:
        raise ElfError(f"the dynamic segment has {num_entries} entries")
    entries = dict(zip(tags, values, strict=True))
    names = (0, 0)
    if DT_STRTAB in entries:
        names = image.span(entries[DT_STRTAB], entries.get(DT_STRSZ, 0), "the string table")
    return Dynamic(
        entries=MappingProxyType(entries),
        needed=tuple(value for tag, value in zip(tags, values, strict=True) if tag == DT_NEEDED),
        strings=StringTable(image.data, *names),
    )


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
class Versions:
    """``by_index`` maps version indexes of symbols to a version and the library that must define it
    (empty if the object itself does); indexes without a version (0, 1, the base definition) are
    absent.

    The format: Linux Standard Base Core 5.0, chapter 10.7 (symbol versioning). The tables are
    chains of records; like the dynamic linker, this follows them to their end and ignores the
    counts.
    """

    needs: tuple[VersionNeed, ...]
    definitions: tuple[str, ...]
    by_index: Mapping[int, tuple[str, str]]


def read_versions(image: ElfImage, dynamic: Dynamic) -> Versions:
    """Read both tables, in the order of the file. Raise ``ElfError`` if they are malformed."""
    definitions = list(read_definitions(image, dynamic))
    needs = list(_needs(image, dynamic))
    return Versions(
        needs=tuple(need for _, need in needs),
        definitions=tuple(name for _, name in definitions),
        by_index={
            **{index: (name, "") for index, name in definitions},
            **{index: (need.version, need.library) for index, need in needs},
        },
    )


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


def read_definitions(image: ElfImage, dynamic: Dynamic) -> Iterator[tuple[int, str]]:
    """Yield the versions that the file defines, with their indexes, in the order of the file."""
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
