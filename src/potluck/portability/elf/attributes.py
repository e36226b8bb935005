"""Build attributes of 32-bit ARM: which kinds of instructions a file was compiled for.

The format: Addenda to, and Errata in, the ABI for the Arm Architecture, 2023Q3, chapter 3
(https://github.com/ARM-software/abi-aa). 64-bit ARM has no attributes that describe instructions:
CPUs without the features of its properties (BTI, PAC, GCS) ignore them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.sections import read_sections

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
