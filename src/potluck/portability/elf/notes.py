"""GNU program properties: notes about the instructions in a file.

The format: Linux Extensions to gABI, "Program Property" (https://gitlab.com/x86-psABIs/Linux-ABI);
the bits of x86: x86-64 psABI 1.0, "Program Property". Like the dynamic linker, this ignores
malformed notes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from potluck.portability.elf.image import PT_GNU_PROPERTY, PT_NOTE, ElfImage
from potluck.portability.elf.machines import EM_386, EM_X86_64

_NT_GNU_PROPERTY_TYPE_0 = 5
_X86_ISA_1_NEEDED = 0xC0008002
_X86_ISA_1_USED = 0xC0010002
_MAX_NOTE_BYTES = 2**20
"""Bytes read from the start of a segment, where linkers put properties, which take about 100."""


def x86_levels(image: ElfImage) -> tuple[str, str]:
    """Return the x86-64 levels (``x86-64-v3``) that the file needs, and those that anything in it
    uses; empty if it does not declare any. glibc 2.33 and later refuse a file on CPUs below the
    level that it needs.

    Code for the used levels may be selected at run time.
    """
    if image.header.machine_number not in (EM_386, EM_X86_64):
        return "", ""
    properties = _properties(image)
    return (
        _level(properties.get(_X86_ISA_1_NEEDED, 0)),
        _level(properties.get(_X86_ISA_1_USED, 0)),
    )


def _level(bits: int) -> str:
    """Bit 0 is the baseline, bit 1 stands for x86-64-v2 …"""
    return f"x86-64-v{bits.bit_length()}" if bits else ""


def _properties(image: ElfImage) -> Mapping[int, int]:
    """Return four-byte properties by type; those of several notes are combined."""
    segments = image.of_type(PT_GNU_PROPERTY)
    if not len(segments):
        segments = image.of_type(PT_NOTE)
    properties: dict[int, int] = {}
    for segment in segments:
        num_bytes = min(int(segment["filesz"]), _MAX_NOTE_BYTES)
        data = image.read(int(segment["offset"]), num_bytes, "a note")
        for description in _property_notes(image, data, 8 if segment["align"] == 8 else 4):
            for kind, value in _entries(image, description):
                properties[kind] = properties.get(kind, 0) | value
    return properties


def _property_notes(image: ElfImage, data: bytes, alignment: int) -> Iterator[bytes]:
    head = struct.Struct(image.header.byte_order + "III")
    position = 0
    while position + head.size <= len(data):
        name_bytes, description_bytes, kind = head.unpack_from(data, position)
        name_start = position + head.size
        start = _aligned(name_start + name_bytes, alignment)
        end = start + description_bytes
        if end > len(data):
            return
        is_gnu = data[name_start : name_start + name_bytes] == b"GNU\0"
        if is_gnu and kind == _NT_GNU_PROPERTY_TYPE_0:
            yield data[start:end]
        position = _aligned(end, alignment)


def _entries(image: ElfImage, description: bytes) -> Iterator[tuple[int, int]]:
    head = struct.Struct(image.header.byte_order + "II")
    word = struct.Struct(image.header.byte_order + "I")
    alignment = 8 if image.header.is_64_bit else 4
    position = 0
    while position + head.size <= len(description):
        kind, num_bytes = head.unpack_from(description, position)
        start = position + head.size
        if start + num_bytes > len(description):
            return
        if num_bytes == word.size:
            yield kind, word.unpack_from(description, start)[0]
        position = _aligned(start + num_bytes, alignment)


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
