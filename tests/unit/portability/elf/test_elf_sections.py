"""Sections are found by name, and broken ones are as good as none."""

from __future__ import annotations

import struct

import pytest
from support.portability.elf_bytes import Elf

from potluck.errors import ElfError
from potluck.portability.elf.image import open_image
from potluck.portability.elf.sections import joined_ranges, read_sections, section

ELF = Elf(sections={".rodata": b"constants", ".nv_fatbin": b"\x50\xed\x55\xba" * 4})


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("is_64_bit", [True, False])
def test_a_section_by_its_name(is_64_bit: bool, byte_order: str) -> None:
    data = Elf(is_64_bit=is_64_bit, byte_order=byte_order, sections=ELF.sections).build()
    found = section(open_image(data), ".nv_fatbin")
    assert found is not None
    assert bytes(found) == b"\x50\xed\x55\xba" * 4
    assert section(open_image(data), ".nv_fat") is None
    rows = read_sections(open_image(data))
    assert [(row.name, row.num_bytes) for row in rows][:2] == [(".rodata", 9), (".nv_fatbin", 16)]
    assert [row.is_loaded for row in rows] == [True, True, False]


def test_the_bytes_are_not_copied() -> None:
    data = bytearray(ELF.build())
    found = section(open_image(data), ".rodata")
    assert found is not None
    data[data.index(b"constants")] = ord("C")
    assert bytes(found) == b"Constants"


def test_a_file_without_section_headers_has_none() -> None:
    assert section(open_image(Elf().build()), ".rodata") is None


def test_only_elf_files_have_sections() -> None:
    with pytest.raises(ElfError):
        section(open_image(b"not one"), ".rodata")


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (40, "<Q", 2**63),  # where the headers are
        (58, "<H", 63),  # the size of one
        (60, "<H", 0xFFFF),  # how many there are
        (62, "<H", 200),  # which one has the names
    ],
)
def test_broken_headers_are_as_good_as_none(offset: int, layout: str, value: int) -> None:
    data = bytearray(ELF.build())
    struct.pack_into(layout, data, offset, value)
    assert read_sections(open_image(data)) == ()


def test_a_section_that_leaves_the_file_is_left_out() -> None:
    data = bytearray(ELF.build())
    (headers,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<Q", data, headers + 64 + 32, len(data))  # size of the first one
    assert section(open_image(data), ".rodata") is None
    assert section(open_image(data), ".nv_fatbin") is not None


def test_many_sections_are_counted_in_the_first_header() -> None:
    data = bytearray(ELF.build())
    (headers,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    struct.pack_into("<HH", data, 60, 0, 0xFFFF)
    struct.pack_into("<Q", data, headers + 32, count)
    struct.pack_into("<I", data, headers + 40, names)
    assert section(open_image(data), ".nv_fatbin") is not None
    struct.pack_into("<Q", data, headers + 32, 2**40)
    assert section(open_image(data), ".nv_fatbin") is None


def test_joined_ranges_have_every_byte_once() -> None:
    ranges = [(5, 9), (0, 3), (1, 2), (7, 12), (12, 14), (5, 6)]
    joined = list(joined_ranges(ranges))
    covered = [place for start, end in joined for place in range(start, end)]
    assert covered == [0, 1, 2, *range(5, 14)]
