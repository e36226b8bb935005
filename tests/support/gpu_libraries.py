"""Shared objects and fat binaries made by hand, byte by byte, for what reads GPU code.

Layouts are written here as the sources in ``potluck.portability.fat_binary`` give them, and not
taken from that module.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.portability.elf_file import DefinedSymbol, ElfFile

X86_64 = 62
AARCH64 = 183

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
    """A library with these sections, and these functions among its dynamic symbols.

    All of the file is one segment that is loaded at 0x10000.
    """
    base, start = 0x10000, 64 + 56
    functions = functions or {}
    code = b""
    strings = b"\0"
    symbols = bytes(24)
    text_offset = start
    for name, body in functions.items():
        address = base + text_offset + len(code)
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, address, len(body))
        strings += name.encode() + b"\0"
        code += body + bytes(-len(body) % 16)
    contents = {".text": code, ".dynstr": strings, ".dynsym": symbols, **sections}

    names, body, rows = b"\0", b"", [bytes(64)]
    for name, data in [*contents.items(), (".shstrtab", b"")]:
        offset = start + len(body)
        names += name.encode() + b"\0"
        data = data or (names if name == ".shstrtab" else b"")
        name_offset = len(names) - len(name) - 1
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ", name_offset, 1, 2, base + offset, offset, len(data), 0, 0, 8, 0
            )
        )
        body += data + bytes(-len(data) % 8)
    section_offset = start + len(body)
    num_bytes = section_offset + 64 * len(rows)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH",
        3,
        machine,
        1,
        0,
        64,
        section_offset,
        0,
        64,
        56,
        1,
        64,
        len(rows),
        len(rows) - 1,
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, num_bytes, num_bytes, 0x1000)
    return header + segment + body + b"".join(rows)


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
        defined=tuple(DefinedSymbol(name=name) for name in exports),
        features=(),
    )
