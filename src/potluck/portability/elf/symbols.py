"""Dynamic symbols, classified as the dynamic linker does.

An object *defines* the symbols that its hash table finds, and *needs* those that its relocations
refer to: an undefined symbol without a relocation is never looked up. Neither requires section
headers, and neither gives the length of the symbol table; it is read as far as they refer to it.

After glibc 2.41, ``elf/dl-lookup.c`` (``do_lookup_x``, ``check_match``) and
``elf/dynamic-link.h``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from potluck.errors import ElfError
from potluck.portability.elf.defined_symbols import (
    DefinedSymbol,
    DefinedSymbols,
    packed_symbols,
)
from potluck.portability.elf.dynamic import (
    DT_JMPREL,
    DT_PLTREL,
    DT_PLTRELSZ,
    DT_REL,
    DT_RELA,
    DT_RELASZ,
    DT_RELSZ,
    DT_SYMENT,
    DT_SYMTAB,
    DT_VERSYM,
    HIDDEN,
    INDEX_MASK,
    Dynamic,
    Versions,
)
from potluck.portability.elf.file import UndefinedSymbol
from potluck.portability.elf.hash_table import (
    FOUND_BINDINGS,
    FOUND_TYPES,
    MAX_SYMBOLS,
    SHN_ABS,
    STB_GLOBAL,
    STB_WEAK,
    STT_TLS,
    VISIBLE,
    read_hashed,
)
from potluck.portability.elf.image import ElfImage, release_pages
from potluck.portability.elf.machines import EM_MIPS
from potluck.portability.elf.tables import Table, loaded_table, record_type

SYMBOL_FIELDS = {
    False: {
        "name": "u4",
        "value": "u4",
        "size": "u4",
        "info": "u1",
        "other": "u1",
        "shndx": "u2",
    },
    True: {
        "name": "u4",
        "info": "u1",
        "other": "u1",
        "shndx": "u2",
        "value": "u8",
        "size": "u8",
    },
}
"""The fields of a symbol, in 32-bit and in 64-bit files."""

_NAMES_AT_ONCE = 2**13
_RELOCATIONS_AT_ONCE = 2**17
"""Symbols per batch: a copy of the millions in a large library would take 24 bytes each."""


def read_symbols(
    image: ElfImage, dynamic: Dynamic, versions: Versions
) -> tuple[tuple[UndefinedSymbol, ...], DefinedSymbols]:
    """Return the undefined symbols in the order of the symbol table, and the defined ones in that
    of the string table, so that few of its pages are in memory at a time.

    Raise ``ElfError`` if a table is malformed.
    """
    first_found, end_found = read_hashed(image, dynamic)
    if end_found > MAX_SYMBOLS:
        raise ElfError(f"it claims to have {end_found} dynamic symbols")
    is_referenced = _find_references(image, dynamic, end_found)
    count = max(end_found, len(is_referenced))
    if not count:
        return (), DefinedSymbols()
    table = _table(image, dynamic, count)
    indexes = _version_indexes(image, dynamic, count)
    rows = np.flatnonzero(_undefined_rows(table, is_referenced))
    columns = zip(
        _names(image, dynamic, table["name"][rows]),
        _versions_of(indexes[rows], versions),
        (table["info"][rows] >> 4 == STB_WEAK).tolist(),
        strict=True,
    )
    undefined = tuple(
        UndefinedSymbol(name=name, version=version, library=library, is_weak=is_weak)
        for name, (version, library), is_weak in columns
    )
    is_defined = _defined_rows(table)
    is_defined[:first_found] = False
    is_defined[end_found:] = False
    order = np.flatnonzero(is_defined)
    order = order[np.argsort(table["name"][order], kind="stable")]
    columns = zip(
        _names(image, dynamic, table["name"][order]),
        _versions_of(indexes[order], versions),
        (indexes[order] & HIDDEN == 0).tolist(),
        strict=True,
    )
    defined = packed_symbols(
        DefinedSymbol(name=name, version=version, is_default=is_default)
        for name, (version, _), is_default in columns
    )
    return undefined, defined


def _table(image: ElfImage, dynamic: Dynamic, count: int) -> Table:
    record = record_type(image.header, **SYMBOL_FIELDS[image.header.is_64_bit])
    if dynamic.entries.get(DT_SYMENT, record.itemsize) != record.itemsize:
        raise ElfError(f"the size of its symbol table entries is not {record.itemsize} bytes")
    what = "the table of symbols"
    table: Table = loaded_table(image, record, dynamic.address(DT_SYMTAB, what), count, what)
    return table


def _names(image: ElfImage, dynamic: Dynamic, offsets: npt.NDArray[np.uint32]) -> Iterator[str]:
    """Yield the names at ``offsets`` with few pages of the file in memory at a time."""
    for first in range(0, len(offsets), _NAMES_AT_ONCE):
        yield from map(dynamic.strings.text, offsets[first : first + _NAMES_AT_ONCE].tolist())
        release_pages(image.data)


def _version_indexes(image: ElfImage, dynamic: Dynamic, count: int) -> npt.NDArray[np.uint16]:
    """Return the version index of each symbol; all 1, the base definition, in a file without
    versions.
    """
    if DT_VERSYM not in dynamic.entries:
        return np.ones(count, np.uint16)
    number = np.dtype(image.header.byte_order + "u2")
    what = "the table of symbols' versions"
    indexes: npt.NDArray[np.uint16] = loaded_table(
        image, number, dynamic.entries[DT_VERSYM], count, what
    )
    return indexes


def _undefined_rows(table: Table, is_referenced: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    rows: npt.NDArray[np.bool_] = np.zeros(len(table), np.bool_)
    rows[: len(is_referenced)] = is_referenced
    rows &= table["shndx"] == 0
    rows &= np.isin(table["other"] & 3, VISIBLE)
    rows &= np.isin(table["info"] >> 4, (STB_GLOBAL, STB_WEAK))
    return rows


def _defined_rows(table: Table) -> npt.NDArray[np.bool_]:
    kind = table["info"] & 0xF
    rows: npt.NDArray[np.bool_] = table["shndx"] != 0
    rows &= (table["value"] != 0) | (table["shndx"] == SHN_ABS) | (kind == STT_TLS)
    rows &= np.isin(kind, FOUND_TYPES)
    rows &= np.isin(table["other"] & 3, VISIBLE)
    rows &= np.isin(table["info"] >> 4, FOUND_BINDINGS)
    return rows


def _versions_of(indexes: npt.NDArray[np.uint16], versions: Versions) -> list[tuple[str, str]]:
    return [versions.by_index.get(each, ("", "")) for each in (indexes & INDEX_MASK).tolist()]


def _find_references(image: ElfImage, dynamic: Dynamic, end_found: int) -> npt.NDArray[np.bool_]:
    """Return whether a relocation refers to each symbol, by index, up to the last one referred to.

    MIPS has no relocations for its global offset table, so all symbols count there.
    """
    if image.header.machine_number == EM_MIPS:
        return np.ones(end_found, np.bool_)
    entries = dynamic.entries
    tables = [
        _relocated(image, entries.get(address, 0), entries.get(size, 0), has_addend=has_addend)
        for address, size, has_addend in (
            (DT_RELA, DT_RELASZ, True),
            (DT_REL, DT_RELSZ, False),
            (DT_JMPREL, DT_PLTRELSZ, entries.get(DT_PLTREL) == DT_RELA),
        )
    ]
    count = max((int(table.max(initial=-1)) + 1 for table in tables), default=0)
    if count > MAX_SYMBOLS:
        raise ElfError(f"a relocation refers to symbol {count - 1}")
    is_referenced = np.zeros(count, np.bool_)
    for table in tables:
        is_referenced[table] = True
    return is_referenced


def _relocated(
    image: ElfImage, address: int, num_bytes: int, *, has_addend: bool
) -> npt.NDArray[np.int64]:
    """Return the indexes of symbols in a relocation table, without duplicates; 0 stands for
    none.
    """
    fields = {"offset": "address", "info": "address"} | (
        {"addend": "address"} if has_addend else {}
    )
    record = record_type(image.header, **fields)
    count = num_bytes // record.itemsize
    shift, type_mask = (32, 0xFFFFFFFF) if image.header.is_64_bit else (8, 0xFF)
    found = [np.zeros(0, np.int64)]
    for first in range(0, count, _RELOCATIONS_AT_ONCE):
        table = loaded_table(
            image,
            record,
            address + first * record.itemsize,
            min(count - first, _RELOCATIONS_AT_ONCE),
            "a table of relocations",
        )
        info = table["info"][table["info"] & type_mask != 0]
        found.append(np.unique(info >> shift).astype(np.int64))
    indexes: npt.NDArray[np.int64] = np.unique(np.concatenate(found))
    return indexes
