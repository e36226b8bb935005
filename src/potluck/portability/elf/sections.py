"""Sections of an ELF file, by name. Link editors need them, the dynamic linker does not: a file
without section headers is valid, and has no sections here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from potluck.errors import ElfError
from potluck.portability.elf.image import (
    PF_R,
    PF_W,
    PF_X,
    PT_LOAD,
    ElfImage,
    release_pages,
)
from potluck.portability.elf.tables import read_table, record_type

_SHT_NULL = 0
_SHT_NOBITS = 8
_SHF_ALLOC = 2
_SHF_EXECINSTR = 4
_SHN_XINDEX = 0xFFFF

_MAX_SECTIONS = 2**16
"""Limit per file. Linked files have about 40; object files, which are not read here, have more."""
_MAX_NAME_BYTES = 2**8

_FIELDS = {
    "name": "u4",
    "type": "u4",
    "flags": "address",
    "addr": "address",
    "offset": "address",
    "size": "address",
    "link": "u4",
    "info": "u4",
    "addralign": "address",
    "entsize": "address",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section that has bytes in the file: ``[offset, offset + num_bytes)``, which is within the
    file.

    Names are truncated to 256 bytes.
    """

    name: str
    offset: int
    num_bytes: int
    is_loaded: bool
    is_code: bool


def section(image: ElfImage, name: str) -> memoryview | None:
    """Return a view of the first section of this name; None without one. If the file is mapped, the
    caller has to release the view before closing it.
    """
    for each in read_sections(image):
        if each.name == name:
            return memoryview(image.data)[each.offset : each.offset + each.num_bytes]
    return None


def read_sections(image: ElfImage) -> tuple[Section, ...]:
    """Return the sections with bytes, in the order of the file. They may overlap.

    Malformed headers are treated as missing, since such a file loads; sections that extend beyond
    the file are omitted.
    """
    try:
        return _sections(image)
    except ElfError:
        return ()


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return ranges that cover the same bytes in ascending order without overlaps, so that reading
    them reads at most the whole file, whatever its headers say. Ranges are half-open.
    """
    last_end = 0
    for start, end in sorted(ranges):
        if end > last_end:
            yield max(start, last_end), end
            last_end = end


def code_ranges(image: ElfImage, *, alignment: int = 1) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges of the file without overlaps, which begin at a multiple of
    ``alignment``: sections of code, or without sections the executable segments.
    """
    ranges = [
        (each.offset, each.offset + each.num_bytes)
        for each in read_sections(image)
        if each.is_loaded and each.is_code
    ]
    ranges = ranges or _segment_ranges(image, PF_X, PF_X)
    size = len(image.data)
    return tuple(
        (-(-start // alignment) * alignment, min(end, size)) for start, end in joined_ranges(ranges)
    )


def _segment_ranges(image: ElfImage, mask: int, flags: int) -> list[tuple[int, int]]:
    return [
        (each.offset, each.offset + each.filesz)
        for each in image.of_type(PT_LOAD)
        if each.flags & mask == flags
    ]


def _sections(image: ElfImage) -> tuple[Section, ...]:
    header = image.header
    record = record_type(header, **_FIELDS)
    if not header.section_offset:
        return ()
    if header.section_bytes != record.itemsize:
        raise ElfError(f"its section headers have {header.section_bytes} bytes")
    what = "the table of sections"
    first = read_table(image, record, header.section_offset, 1, what)[0]
    # Numbers that do not fit in the header are in the first section header.
    count = header.num_sections or int(first["size"])
    names_index = int(
        first["link"] if header.names_section == _SHN_XINDEX else header.names_section
    )
    if count > _MAX_SECTIONS:
        raise ElfError(f"its header claims {count} sections")
    if names_index >= count:
        raise ElfError(f"the names of its {count} sections would be in section {names_index}")
    table = read_table(image, record, header.section_offset, count, what)
    names = image.read(
        int(table[names_index]["offset"]), int(table[names_index]["size"]), "the names of sections"
    )
    ends = table["offset"].astype(np.float64) + table["size"]
    rows = (table["type"] != _SHT_NULL) & (table["type"] != _SHT_NOBITS) & (ends <= len(image.data))
    return tuple(_section(row, names) for row in table[rows])


def _section(row: Any, names: bytes) -> Section:
    start, flags = int(row["name"]), int(row["flags"])
    name = names[start : start + _MAX_NAME_BYTES].split(b"\0")[0]
    return Section(
        name=name.decode("utf-8", "backslashreplace"),
        offset=int(row["offset"]),
        num_bytes=int(row["size"]),
        is_loaded=bool(flags & _SHF_ALLOC),
        is_code=bool(flags & _SHF_EXECINSTR),
    )


_CONSTANTS = (".rodata", ".lrodata")
_NAME = re.compile(
    rb"(?:[^\0\s]*/)?(lib[A-Za-z0-9_+.-]+?\.so(?:\.[0-9]+)*)(?:\.%[0-9]*[a-z])*", re.ASCII
)
"""A version that is formatted at run time (``libnvrtc.so.%d.%d``) is removed."""

_MARK = b".so"
_MAX_STRING_BYTES = 2**8
_WINDOW_BYTES = 2**20
_MAX_TEXTS = 16
_MAX_MARKS = 2**16
"""Limit of strings with ``.so`` that are examined per file. libtorch_cpu.so of PyTorch 2.13 has 58;
a file with more than this limit is probably hostile.
"""


def library_names(image: ElfImage) -> tuple[str, ...]:
    """Return the names without duplicates, in the order of the file.

    For names, a whole C string counts, after any directories: ``libcuda.so.1``,
    ``/usr/lib/libfoo.so``. A name within a sentence does not, nor a format string (``lib%s.so``),
    nor strings without a terminator, such as Rust's.
    """
    names: dict[str, None] = {}
    for text in _marked_strings(image):
        match = _NAME.fullmatch(text)
        if match is not None:
            names[match[1].decode("ascii")] = None
    return tuple(names)


def find_constant(image: ElfImage, text: bytes) -> tuple[int, ...]:
    """Return the file offsets of a text, at most 16 of them."""
    data = image.data
    offsets: list[int] = []
    for start, end in _constants(image):
        for position in range(start, min(end, len(data)), _WINDOW_BYTES):
            window = bytes(data[position : min(end, position + _WINDOW_BYTES + len(text) - 1)])
            found = window.find(text)
            while found >= 0 and len(offsets) < _MAX_TEXTS:
                offsets.append(position + found)
                found = window.find(text, found + 1)
            release_pages(data)
    return tuple(offsets)


def _constants(image: ElfImage) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges of the file without overlaps. Without sections these are the
    read-only segments, or else also the executable ones: older linkers put constants next to code.
    """
    ranges = [
        (each.offset, each.offset + each.num_bytes)
        for each in read_sections(image)
        if each.is_loaded and not each.is_code and each.name.startswith(_CONSTANTS)
    ]
    for flags in (PF_R, PF_R | PF_X):
        ranges = ranges or _segment_ranges(image, PF_R | PF_W | PF_X, flags)
    return tuple(joined_ranges(ranges))


def _marked_strings(image: ElfImage) -> Iterator[bytes]:
    """Yield C strings that contain the mark, without their terminators."""
    data = image.data
    num_marks = 0
    for start, end in _constants(image):
        for position in range(start, min(end, len(data)), _WINDOW_BYTES):
            # A string at a boundary is complete in one of the two windows.
            window_start = max(start, position - _MAX_STRING_BYTES)
            window = bytes(data[window_start : min(end, position + _WINDOW_BYTES)])
            found = window.find(_MARK)
            while found >= 0:
                num_marks += 1
                last = window.find(b"\0", found)
                if num_marks > _MAX_MARKS or last < 0:
                    break
                before = window.rfind(b"\0", max(0, found - _MAX_STRING_BYTES), found)
                is_whole = before >= 0 or window_start == start
                if is_whole and last - before - 1 <= _MAX_STRING_BYTES:
                    yield window[before + 1 : last]
                found = window.find(_MARK, last)
            release_pages(data)
