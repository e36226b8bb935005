"""Sections of an ELF file, by name. Linkers' tools need them, the dynamic linker does not: a file
without section headers is sound, and has none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from potluck.errors import ElfError
from potluck.portability.elf_image import ElfData, ElfImage, open_image

_SHT_NULL = 0
_SHT_NOBITS = 8
_SHF_ALLOC = 2
_SHF_EXECINSTR = 4
_SHN_XINDEX = 0xFFFF

_MAX_SECTIONS = 2**16
"""Of one file. What is linked has 40; object files, which are not read here, have more."""
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
    """A section that has bytes in the file: ``[offset, offset + num_bytes)``, which is within it.

    Names are cut after 256 bytes.
    """

    name: str
    section_type: int
    offset: int
    num_bytes: int
    is_loaded: bool
    is_code: bool


def section(data: ElfData, name: str) -> memoryview | None:
    """The bytes of the first section of this name, not copied; None without one.

    Raises ``ElfError`` for what is no executable or shared object. Whoever maps ``data`` releases
    the view before closing the mapping.
    """
    for each in read_sections(open_image(data)):
        if each.name == name:
            return memoryview(data)[each.offset : each.offset + each.num_bytes]
    return None


def read_sections(image: ElfImage) -> tuple[Section, ...]:
    """The sections with bytes, in the order of the file. They may overlap.

    Headers that are broken are as good as none, since such a file loads; sections that leave the
    file are left out.
    """
    try:
        return _sections(image)
    except ElfError:
        return ()


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same bytes in ascending order and none twice, so that whoever reads them reads at most
    the file, whatever its headers say. Ranges are half-open.
    """
    last_end = 0
    for start, end in sorted(ranges):
        if end > last_end:
            yield max(start, last_end), end
            last_end = end


def _sections(image: ElfImage) -> tuple[Section, ...]:
    header = image.header
    record = header.record(**_FIELDS)
    if not header.section_offset:
        return ()
    if header.section_bytes != record.itemsize:
        raise ElfError(f"its section headers have {header.section_bytes} bytes")
    what = "the table of sections"
    first = image.table(record, header.section_offset, 1, what)[0]
    # Where the header has no room for a number, the first section header has it.
    count = header.num_sections or int(first["size"])
    names_index = int(
        first["link"] if header.names_section == _SHN_XINDEX else header.names_section
    )
    if count > _MAX_SECTIONS:
        raise ElfError(f"it says that it has {count} sections")
    if names_index >= count:
        raise ElfError(f"the names of its {count} sections would be in section {names_index}")
    table = image.table(record, header.section_offset, count, what)
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
        section_type=int(row["type"]),
        offset=int(row["offset"]),
        num_bytes=int(row["size"]),
        is_loaded=bool(flags & _SHF_ALLOC),
        is_code=bool(flags & _SHF_EXECINSTR),
    )
