"""Read programs and libraries of a host for its description, in plain Python.

New machines without installed packages describe themselves with it (``cluster.invitations``), so it
imports only the standard library. ``elf.reader`` reads more of each file, with NumPy, and reads the
files of wheels. Only the symbol tables are read in two ways, whose results agree.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.dynamic import (
    DT_SONAME,
    DT_SYMTAB,
    DT_VERSYM,
    HIDDEN,
    INDEX_MASK,
    Dynamic,
    read_definitions,
    read_dynamic,
)
from potluck.portability.elf.hash_table import (
    FOUND_BINDINGS,
    FOUND_TYPES,
    SHN_ABS,
    STT_TLS,
    VISIBLE,
    read_hashed,
)
from potluck.portability.elf.image import ElfImage, open_image
from potluck.portability.hosts.symbol_set import MAX_SYMBOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFile:
    """An executable or a shared object, with the fields of ``ElfFile`` that a host's description
    needs.

    ``defined`` is None if it has too many symbols to describe.
    """

    machine: str
    soname: str
    interpreter: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    is_rpath: bool
    version_definitions: tuple[str, ...]
    defined: tuple[DefinedSymbol, ...] | None


def read_library_file(data: bytes | mmap.mmap) -> LibraryFile:
    """Read it from the bytes of the whole file. Raise ``ElfError`` if it is malformed, or of a kind
    that linkers do not load.
    """
    image = open_image(data)
    dynamic = read_dynamic(image)
    versions = dict(read_definitions(image, dynamic))
    return LibraryFile(
        machine=image.header.machine,
        soname=dynamic.text(DT_SONAME),
        interpreter=image.interpreter(),
        needed=tuple(map(dynamic.strings.text, dynamic.needed)),
        search_path=dynamic.search_path(),
        is_rpath=dynamic.is_rpath,
        version_definitions=tuple(versions.values()),
        defined=_defined(image, dynamic, versions),
    )


def _defined(
    image: ElfImage, dynamic: Dynamic, versions: Mapping[int, str]
) -> tuple[DefinedSymbol, ...] | None:
    """Return the symbols that a lookup finds: see ``elf.symbols``."""
    first, end = read_hashed(image, dynamic)
    if end - first > MAX_SYMBOLS:
        return None
    if end <= first:
        return ()
    is_64_bit = image.header.is_64_bit
    address = dynamic.address(DT_SYMTAB, "the table of symbols")
    symbols = _rows(image, "IBBHQQ" if is_64_bit else "IIIBBH", address, end)
    indexes = (
        (each for (each,) in _rows(image, "H", dynamic.entries[DT_VERSYM], end))
        if DT_VERSYM in dynamic.entries
        else iter((1,) * end)
    )
    found = []
    for number, (symbol, index) in enumerate(zip(symbols, indexes, strict=True)):
        if number < first:
            continue
        if is_64_bit:
            name, info, other, section, value, _ = symbol
        else:
            name, value, _, info, other, section = symbol
        kind = info & 0xF
        if (
            section
            and (value or section == SHN_ABS or kind == STT_TLS)
            and kind in FOUND_TYPES
            and info >> 4 in FOUND_BINDINGS
            and other & 3 in VISIBLE
        ):
            found.append(
                DefinedSymbol(
                    name=dynamic.strings.text(name),
                    version=versions.get(index & INDEX_MASK, ""),
                    is_default=not index & HIDDEN,
                )
            )
    return tuple(found)


def _rows(image: ElfImage, layout: str, address: int, count: int) -> Iterator[tuple[Any, ...]]:
    form = struct.Struct(image.header.byte_order + layout)
    return form.iter_unpack(image.loaded(address, count * form.size, "a table of symbols"))
