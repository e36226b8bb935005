"""Read the results of functions that only return a constant from their instructions, without
running them.

Libraries often report how they were built by functions such as ``int wp_is_cuda_enabled()``, whose
body is one constant. Compilers emit two or three instructions for it at any optimization level;
functions that look different are omitted, so that a number given here is the one that a call would
return.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (MOV, XOR, RET,
ENDBR64); Arm Architecture Reference Manual for A-profile (MOVZ, MOVK, MOVN, RET, BTI).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from potluck.errors import ElfError
from potluck.portability.elf.image import ElfHeader, ElfImage
from potluck.portability.elf.machines import EM_AARCH64, EM_X86_64
from potluck.portability.elf.sections import read_sections
from potluck.portability.elf.symbols import SYMBOL_FIELDS
from potluck.portability.elf.tables import Table, read_table, record_type

_LONGEST = 32
"""Number of bytes that are examined: the longest form below has 19."""

_X86_64 = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?"  # endbr64
    rb"(?:\x55\x48\x89\xe5)?"  # push %rbp; mov %rsp,%rbp
    rb"(?:[\x31\x33]\xc0|\xb8(?P<number>.{4}))"  # xor %eax,%eax, or mov $number,%eax
    rb"(?:\x5d)?"  # pop %rbp
    rb"(?:\xf3)?\xc3",  # ret
    re.DOTALL,
)

_AARCH64_BTI_C = 0xD503245F
_AARCH64_RET = 0xD65F03C0
_AARCH64_MOV_W0_WZR = 0x2A1F03E0
_AARCH64_MOVE_MASK = 0xFF80001F
"""The bits of MOVZ, MOVN and MOVK into w0 other than the half (bits 22:21) and the number
(20:5).
"""
_AARCH64_MOVN_W0 = 0x12800000
_AARCH64_MOVZ_W0 = 0x52800000
_AARCH64_MOVK_W0 = 0x72800000


def constant_results(image: ElfImage, names: Iterable[str]) -> dict[str, int]:
    """Return the numbers (as C's ``int``) of those exported functions that only return one.

    The result is empty for files without a section table.
    """
    tables = _SymbolTables.read(image)
    results: dict[str, int] = {}
    for name in names:
        number = _returned(image.header, _code(image, tables.address(name)))
        if number is not None:
            results[name] = number
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _SymbolTables:
    """The dynamic symbols, as records, and the bytes of their names."""

    symbols: Table
    names: bytes

    @classmethod
    def read(cls, image: ElfImage) -> Self:
        """Return empty tables if there are none, or if the file has 32 bits."""
        copies = {each.name: each for each in reversed(read_sections(image))}
        symbols, names = copies.get(".dynsym"), copies.get(".dynstr")
        record = record_type(image.header, **SYMBOL_FIELDS[True])
        if symbols is None or names is None or not image.header.is_64_bit:
            return cls(symbols=np.zeros(0, dtype=record), names=b"")
        count = symbols.num_bytes // record.itemsize
        return cls(
            symbols=read_table(image, record, symbols.offset, count, "the dynamic symbols"),
            names=image.read(names.offset, names.num_bytes, "the names of dynamic symbols"),
        )

    def address(self, name: str) -> int | None:
        """Return the address of the symbol that is defined here, or None."""
        # A name may share the end of a longer one, so every occurrence counts.
        pattern = re.escape(name.encode("ascii")) + rb"\0"
        places = [match.start() for match in re.finditer(pattern, self.names)]
        is_match = np.isin(self.symbols["name"], places) & (self.symbols["shndx"] != 0)
        found = self.symbols["value"][is_match]
        return int(found[0]) if found.size else None


def _code(image: ElfImage, address: int | None) -> bytes:
    """Return the first instructions at an address, none if no part of the file is loaded there."""
    if address is None:
        return b""
    what = "a function"
    try:
        offset, most_bytes = image.locate(address, what)
        return image.read(offset, min(_LONGEST, most_bytes), what)
    except ElfError:
        return b""


def _returned(header: ElfHeader, code: bytes) -> int | None:
    if header.machine_number == EM_X86_64:
        match = _X86_64.match(code)
        if match is None:
            return None
        return int.from_bytes(match["number"] or b"", "little", signed=True)
    if header.machine_number == EM_AARCH64 and header.byte_order == "<":
        return _returned_by_aarch64(code)
    return None


def _returned_by_aarch64(code: bytes) -> int | None:
    number: int | None = None
    for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4]):
        half = (word >> 21 & 3) * 16
        immediate = (word >> 5 & 0xFFFF) << half
        operation = word & _AARCH64_MOVE_MASK
        if word == _AARCH64_BTI_C and number is None:
            continue
        if word == _AARCH64_RET:
            return None if number is None else _signed(number)
        if word == _AARCH64_MOV_W0_WZR:
            number = 0
        elif half > 16:
            return None  # a half that 32-bit registers do not have
        elif operation == _AARCH64_MOVZ_W0:
            number = immediate
        elif operation == _AARCH64_MOVN_W0:
            number = ~immediate & 0xFFFFFFFF
        elif operation == _AARCH64_MOVK_W0 and number is not None:
            number = number & ~(0xFFFF << half) | immediate
        else:
            return None
    return None


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number
