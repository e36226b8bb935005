"""Dynamic symbols, classified as the dynamic linker does.

An object *defines* the symbols that its hash table finds, and *needs* those that its relocations
refer to: an undefined symbol without a relocation is never looked up. Neither requires section
headers, and neither gives the length of the symbol table; it is read as far as they refer to it.

After glibc 2.41, ``elf/dl-lookup.c`` (``do_lookup_x``, ``check_match``) and
``elf/dynamic-link.h``; the GNU hash table has no specification, see
https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.errors import ElfError
from potluck.portability.elf.defined_symbols import (
    DefinedSymbol,
    DefinedSymbols,
    packed_symbols,
)
from potluck.portability.elf.dynamic import (
    DT_GNU_HASH,
    DT_HASH,
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
    SymbolVersion,
    Versions,
)
from potluck.portability.elf.file import UndefinedSymbol
from potluck.portability.elf.image import ElfImage, Table
from potluck.portability.elf.machines import EM_MIPS, WIDE_HASH_MACHINES

MAX_SYMBOLS = 2**20
"""Limit per file. libtorch_cpu.so of PyTorch 2.13 has 75,000; the maximum, with names of 100 bytes,
takes 2 s and 270 MB.
"""

_SHN_UNDEF = 0
_SHN_ABS = 0xFFF1
_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE = 1, 2, 10
_STT_FUNC, _STT_TLS, _STT_GNU_IFUNC = 2, 6, 10
_FOUND_TYPES = (0, 1, _STT_FUNC, 5, _STT_TLS, _STT_GNU_IFUNC)
"""Types of symbols that a lookup may return: no type, object, function, common, TLS, indirect."""
_VISIBLE = (0, 3)
"""STV_DEFAULT and STV_PROTECTED; the others bind within the object."""

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

_CHAIN_WORDS = 2**10
_RELOCATIONS_AT_ONCE = 2**17
"""Symbols per batch: a copy of the millions in a large library would take 24 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The symbols of a file. ``undefined`` is in the order of the symbol table, and ``defined`` in
    that of the string table, so that few of its pages are in memory at a time.
    """

    undefined: tuple[UndefinedSymbol, ...]
    defined: DefinedSymbols


def read_symbols(image: ElfImage, dynamic: Dynamic, versions: Versions) -> Symbols:
    """Return the symbols of both kinds. Raise ``ElfError`` if a table is malformed."""
    first_found, end_found = _hashed(image, dynamic)
    is_referenced = _find_references(image, dynamic, end_found)
    count = max(end_found, len(is_referenced))
    if not count:
        return Symbols(undefined=(), defined=DefinedSymbols())
    table = _table(image, dynamic, count)
    indexes = _version_indexes(image, dynamic, count)
    rows = _undefined_rows(table, is_referenced)
    undefined = _undefined(
        names=dynamic.strings.texts(table["name"][rows].astype(np.int64)),
        versions=_versions_of(indexes[rows], versions),
        is_weak=(table["info"] >> 4)[rows] == _STB_WEAK,
    )
    rows = _defined_rows(table)
    rows[:first_found] = False
    rows[end_found:] = False
    order = np.flatnonzero(rows)
    order = order[np.argsort(table["name"][order], kind="stable")]
    defined = _defined(
        names=dynamic.strings.texts(table["name"][order].astype(np.int64)),
        versions=_versions_of(indexes[order], versions),
        is_default=indexes[order] & HIDDEN == 0,
    )
    return Symbols(undefined=undefined, defined=defined)


def _table(image: ElfImage, dynamic: Dynamic, count: int) -> Table:
    record = image.header.record(**SYMBOL_FIELDS[image.header.is_64_bit])
    if dynamic.entries.get(DT_SYMENT, record.itemsize) != record.itemsize:
        raise ElfError(f"the size of its symbol table entries is not {record.itemsize} bytes")
    what = "the table of symbols"
    table: Table = image.loaded_table(record, dynamic.address(DT_SYMTAB, what), count, what)
    return table


def _version_indexes(image: ElfImage, dynamic: Dynamic, count: int) -> npt.NDArray[np.uint16]:
    """Return the version index of each symbol; all 1, the base definition, in a file without
    versions.
    """
    if DT_VERSYM not in dynamic.entries:
        return np.ones(count, np.uint16)
    number = np.dtype(image.header.byte_order + "u2")
    what = "the table of symbols' versions"
    indexes: npt.NDArray[np.uint16] = image.loaded_table(
        number, dynamic.entries[DT_VERSYM], count, what
    )
    return indexes


def _undefined_rows(table: Table, is_referenced: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    rows: npt.NDArray[np.bool_] = np.zeros(len(table), np.bool_)
    rows[: len(is_referenced)] = is_referenced
    rows &= table["shndx"] == _SHN_UNDEF
    rows &= np.isin(table["other"] & 3, _VISIBLE)
    rows &= np.isin(table["info"] >> 4, (_STB_GLOBAL, _STB_WEAK))
    return rows


def _defined_rows(table: Table) -> npt.NDArray[np.bool_]:
    kind = table["info"] & 0xF
    rows: npt.NDArray[np.bool_] = table["shndx"] != _SHN_UNDEF
    rows &= (table["value"] != 0) | (table["shndx"] == _SHN_ABS) | (kind == _STT_TLS)
    rows &= np.isin(kind, _FOUND_TYPES)
    rows &= np.isin(table["other"] & 3, _VISIBLE)
    rows &= np.isin(table["info"] >> 4, (_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE))
    return rows


def _versions_of(indexes: npt.NDArray[np.uint16], versions: Versions) -> list[SymbolVersion]:
    by_index, none = versions.by_index, SymbolVersion(version="")
    return [by_index.get(index, none) for index in (indexes & INDEX_MASK).tolist()]


def _undefined(
    *, names: Iterable[str], versions: Iterable[SymbolVersion], is_weak: npt.NDArray[np.bool_]
) -> tuple[UndefinedSymbol, ...]:
    columns = zip(names, versions, is_weak.tolist(), strict=True)
    return tuple(
        UndefinedSymbol(name=name, version=need.version, library=need.library, is_weak=weak)
        for name, need, weak in columns
    )


def _defined(
    *, names: Iterable[str], versions: Iterable[SymbolVersion], is_default: npt.NDArray[np.bool_]
) -> DefinedSymbols:
    columns = zip(names, versions, is_default.tolist(), strict=True)
    return packed_symbols(
        DefinedSymbol(name=name, version=definition.version, is_default=default)
        for name, definition, default in columns
    )


def _hashed(image: ElfImage, dynamic: Dynamic) -> tuple[int, int]:
    """Return the half-open range of symbols that a lookup can find. If a file has both tables, the
    GNU table is used, as the linker does.
    """
    if DT_GNU_HASH in dynamic.entries:
        first, end = _gnu_hashed(image, dynamic.entries[DT_GNU_HASH])
    elif DT_HASH in dynamic.entries:
        is_wide = image.header.is_64_bit and image.header.machine_number in WIDE_HASH_MACHINES
        word = np.dtype(image.header.byte_order + ("u8" if is_wide else "u4"))
        head = image.loaded_table(word, dynamic.entries[DT_HASH], 2, "the hash table")
        first, end = 1, int(head[1])
    else:
        first, end = 0, 0
    if end > MAX_SYMBOLS:
        raise ElfError(f"it claims to have {end} dynamic symbols")
    return first, end


def _gnu_hashed(image: ElfImage, address: int) -> tuple[int, int]:
    """Chains are stored in the order of symbols, and each ends with a word whose lowest bit is set:
    the end of the last chain is the last symbol.
    """
    what = "the hash table"
    word = np.dtype(image.header.byte_order + "u4")
    head = image.loaded_table(word, address, 4, what)
    num_buckets, first, num_bloom_words, _ = (int(value) for value in head)
    buckets_address = address + 16 + num_bloom_words * (8 if image.header.is_64_bit else 4)
    buckets = image.loaded_table(word, buckets_address, num_buckets, what)
    last = int(buckets.max(initial=0))
    if last < first or not last:
        return first, first
    chain_address = buckets_address + 4 * num_buckets + 4 * (last - first)
    offset, most_bytes = image.locate(chain_address, what)
    for start in range(0, min(most_bytes // 4, MAX_SYMBOLS), _CHAIN_WORDS):
        num_words = min(_CHAIN_WORDS, most_bytes // 4 - start)
        chain = image.table(word, offset + 4 * start, num_words, what)
        ends = np.flatnonzero(chain & 1)
        if len(ends):
            return first, last + start + int(ends[0]) + 1
    raise ElfError(f"{what} has an unterminated chain")


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
    record = image.header.record(**fields)
    count = num_bytes // record.itemsize
    shift, type_mask = (32, 0xFFFFFFFF) if image.header.is_64_bit else (8, 0xFF)
    found = [np.zeros(0, np.int64)]
    for first in range(0, count, _RELOCATIONS_AT_ONCE):
        table: Any = image.loaded_table(
            record,
            address + first * record.itemsize,
            min(count - first, _RELOCATIONS_AT_ONCE),
            "a table of relocations",
        )
        info = table["info"][table["info"] & type_mask != 0]
        found.append(np.unique(info >> shift).astype(np.int64))
    indexes: npt.NDArray[np.int64] = np.unique(np.concatenate(found))
    return indexes
