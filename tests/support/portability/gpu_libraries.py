"""Shared objects and fat binaries made by hand, byte by byte, for what reads GPU code.

Layouts are written here as the sources in ``potluck.portability.cuda.fat_binary`` give them, and
not taken from that module.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.portability.elf_bytes import BASE, Elf

from potluck.portability.elf.defined_symbols import DefinedSymbol, packed_symbols
from potluck.portability.elf.file import ElfFile

X86_64 = 62
AARCH64 = 183

_SYMBOL = struct.Struct("<IBBHQQ")
FIRST_FUNCTION = BASE + 64 + 2 * 56
"""Its address: after the header of the file and those of its two segments."""

PTX = 1
SASS = 2
LTO_IR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One code in a fat binary: ``architecture`` is 86 for ``sm_86``."""

    kind: int
    architecture: int
    version: tuple[int, int] = (1, 7)
    flags: int = 0x11
    header_bytes: int = 64
    code: bytes = b"\x7fELF code"


def fat_binary(*entries: Entry) -> bytes:
    """A header and the entries, each padded to eight bytes."""
    body = b"".join(map(_entry, entries))
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def _entry(entry: Entry) -> bytes:
    code = entry.code + bytes(-len(entry.code) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        entry.kind,
        0x0101,
        entry.header_bytes,
        len(code),
        0,
        0,
        entry.version[1],
        entry.version[0],
        entry.architecture,
        0,
        0,
        entry.flags,
        0,
        0,
    )
    return header + bytes(entry.header_bytes - len(header)) + code


def shared_object(
    sections: Mapping[str, bytes],
    functions: Mapping[str, bytes] | None = None,
    *,
    machine: int = X86_64,
) -> bytes:
    """A library with these sections, and these functions among its dynamic symbols."""
    code, strings, symbols = b"", b"\0", bytes(_SYMBOL.size)
    for name, body in (functions or {}).items():
        address = FIRST_FUNCTION + len(code)
        symbols += _SYMBOL.pack(len(strings), 0x12, 0, 1, address, len(body))
        strings += name.encode() + b"\0"
        code += body + bytes(-len(body) % 16)
    tables = {".dynstr": strings, ".dynsym": symbols}
    return Elf(machine=machine, constants=code, sections={**tables, **sections}).build()


def elf_file(
    *, machine: str = "x86_64", needed: Sequence[str] = (), exports: Sequence[str] = ()
) -> ElfFile:
    """What the reader would say of a library that needs and exports these."""
    return ElfFile(
        machine=machine,
        soname="",
        interpreter="",
        needed=tuple(needed),
        search_path=(),
        is_rpath=False,
        version_needs=(),
        version_definitions=(),
        undefined=(),
        defined=packed_symbols(DefinedSymbol(name=name) for name in exports),
    )
