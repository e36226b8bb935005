"""A file's declarations about its instructions: GNU properties, and 32-bit ARM attributes.

The format of the properties: Linux Extensions to gABI, "Program Property"
(https://gitlab.com/x86-psABIs/Linux-ABI); the bits of x86: x86-64 psABI 1.0, "Program Property".
Like the dynamic linker, this ignores malformed notes.

The format of the attributes: Addenda to, and Errata in, the ABI for the Arm Architecture, 2023Q3,
chapter 3 (https://github.com/ARM-software/abi-aa). 64-bit ARM has no attributes that describe
instructions: CPUs without the features of its properties (BTI, PAC, GCS) ignore them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from potluck.portability.elf.image import PT_GNU_PROPERTY, PT_NOTE, ElfImage
from potluck.portability.elf.machines import EM_386, EM_X86_64
from potluck.portability.elf.sections import read_sections

_NT_GNU_PROPERTY_TYPE_0 = 5
_X86_ISA_1_NEEDED = 0xC0008002
_MAX_NOTE_BYTES = 2**20
"""Limit of the bytes read from all segments together. Properties take about 100, and linkers put
them at the start of the first segment.
"""


CPU_ARCH = 6
FP_ARCH = 10
ADVANCED_SIMD_ARCH = 12
DIV_USE = 44

_SECTION = ".ARM.attributes"
_MAX_BYTES = 2**16
"""Typical files have 60 bytes."""
_VENDOR = b"aeabi\0"
_TAG_FILE = 1
_TAG_COMPATIBILITY = 32
_TEXT_TAGS = (4, 5)  # Tag_CPU_raw_name, Tag_CPU_name; from 33 on, odd tags have text values


def arm_attributes(image: ElfImage) -> Mapping[int, int]:
    """Return the numeric attributes of the whole file, by tag. The result is empty if there are
    none, and stops at the first malformed one: the linker does not read these either.
    """
    for section in read_sections(image):
        if section.name == _SECTION and section.num_bytes <= _MAX_BYTES:
            data = image.read(section.offset, section.num_bytes, "the attributes")
            return _Reader(data, image.header.byte_order).numbers()
    return {}


class _Reader:
    def __init__(self, data: bytes, byte_order: str) -> None:
        self._data = data
        self._length = struct.Struct(byte_order + "I")

    def numbers(self) -> dict[int, int]:
        numbers: dict[int, int] = {}
        start = 1  # after the version, the letter A
        while (length := self._word(start)) > len(_VENDOR) + 4 and self._data[:1] == b"A":
            end = min(start + length, len(self._data))
            if self._data[start + 4 : start + 4 + len(_VENDOR)] == _VENDOR:
                self._read_scopes(start + 4 + len(_VENDOR), end, numbers)
            start = end
        return numbers

    def _read_scopes(self, start: int, end: int, numbers: dict[int, int]) -> None:
        """Attributes belong to the file, to sections or to symbols; only those of the file are
        read.
        """
        while start < end and (length := self._word(start + 1)) > 5:
            if self._data[start] == _TAG_FILE:
                self._read_attributes(start + 5, min(start + length, end), numbers)
            start += length

    def _read_attributes(self, start: int, end: int, numbers: dict[int, int]) -> None:
        while start < end:
            tag, start = self._uleb(start)
            if tag == _TAG_COMPATIBILITY:
                _, start = self._uleb(start)
                start = self._after_text(start, end)
            elif tag in _TEXT_TAGS or (tag > _TAG_COMPATIBILITY and tag % 2):
                start = self._after_text(start, end)
            else:
                numbers[tag], start = self._uleb(start)

    def _word(self, start: int) -> int:
        """Return four bytes as a number; 0 past the end."""
        if start + self._length.size > len(self._data):
            return 0
        length: int = self._length.unpack_from(self._data, start)[0]
        return length

    def _uleb(self, start: int) -> tuple[int, int]:
        """Return a number of seven bits per byte (ULEB128), and where it ends."""
        value = 0
        for position in range(start, min(start + 5, len(self._data))):
            value |= (self._data[position] & 0x7F) << (7 * (position - start))
            if self._data[position] < 0x80:
                return value, position + 1
        return value, start + 5

    def _after_text(self, start: int, end: int) -> int:
        found = self._data.find(b"\0", start, end)
        return found + 1 if found >= 0 else end


def x86_level(image: ElfImage) -> str:
    """Return the x86-64 level (``x86-64-v3``) that the file needs; empty if it does not declare
    any. glibc 2.33 and later refuse a file on CPUs below that level.
    """
    if image.header.machine_number not in (EM_386, EM_X86_64):
        return ""
    bits = _properties(image).get(_X86_ISA_1_NEEDED, 0)
    # Bit 0 is the baseline, bit 1 stands for x86-64-v2 …
    return f"x86-64-v{bits.bit_length()}" if bits else ""


def _properties(image: ElfImage) -> Mapping[int, int]:
    """Return four-byte properties by type; those of several notes are combined."""
    segments = image.of_type(PT_GNU_PROPERTY)
    if not segments:
        segments = image.of_type(PT_NOTE)
    properties: dict[int, int] = {}
    bytes_left = _MAX_NOTE_BYTES
    for segment in segments:
        data = image.read(segment.offset, min(segment.filesz, bytes_left), "a note")
        bytes_left -= len(data)
        for description in _property_notes(image, data, 8 if segment.align == 8 else 4):
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
