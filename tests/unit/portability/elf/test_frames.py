"""Functions are found by the index of unwind tables, and nothing that is malformed is one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from support.portability.elf_bytes import Elf, Segment, code_segments

from potluck.portability.elf.frames import read_functions
from potluck.portability.elf.image import open_image

RET, NOPS = b"\xc3", b"\x90" * 20 + b"\xc3"


def found(segments: list[Segment]) -> list[bytes]:
    data = Elf(segments=segments).build()
    starts, ends = read_functions(open_image(data))
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def test_functions_are_found_in_their_order() -> None:
    assert found(code_segments(NOPS, RET, NOPS)) == [NOPS, RET, NOPS]
    assert found(code_segments()) == []


def test_a_file_without_an_index_has_no_functions() -> None:
    code, _ = code_segments(RET)
    assert found([code]) == []


def test_data_is_not_code() -> None:
    code, index = code_segments(RET)
    assert found([replace(code, flags=4), index]) == []


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, b"\x02"),  # another version
        (3, b"\x1b"),  # another encoding
        (8, struct.pack("<I", 2**31)),  # more functions than any file has
        (8, struct.pack("<I", 5000)),  # more than there are bytes
        (16, struct.pack("<i", 2**30)),  # a frame beyond the file
        (16, struct.pack("<i", -(2**31))),
        (12, struct.pack("<i", 2**30)),  # a function beyond the file
        (12 + 8 + 8, struct.pack("<i", 0)),  # the frame of another function
        (12 + 8 + 12, struct.pack("<I", 0)),  # without a size
        (12 + 8 + 12, struct.pack("<I", 2**31 - 1)),
        (12 + 8 + 12, struct.pack("<I", 2**32 - 1)),
    ],
)
def test_malformed_indexes_have_no_functions(offset: int, value: bytes) -> None:
    code, index = code_segments(RET)
    content = index.content[:offset] + value + index.content[offset + len(value) :]
    assert found([code, replace(index, content=content)]) == []


def test_functions_do_not_overlap() -> None:
    code, index = code_segments(NOPS, RET)
    size_of_first = 12 + 16 + 12
    content = bytearray(index.content)
    content[size_of_first : size_of_first + 4] = struct.pack("<I", 25)
    data = Elf(segments=[code, replace(index, content=bytes(content))]).build()
    starts, ends = read_functions(open_image(data))
    assert ends[0] == starts[1]


def test_a_file_with_very_many_segments_of_code_has_no_functions() -> None:
    code, index = code_segments(RET)
    more = [replace(code, content=b"")] * 20
    assert found([*more, code, index]) == []


HIGH = 2**64 - 2**20


def test_a_file_at_addresses_that_no_process_has_has_no_functions() -> None:
    image = open_image(Elf(segments=code_segments(RET)).build())
    moved = tuple(each._replace(vaddr=each.vaddr + HIGH) for each in image.segments)
    starts, _ = read_functions(replace(image, segments=moved))
    assert not len(starts)


def test_a_segment_at_addresses_that_no_process_has_is_passed_over() -> None:
    image = open_image(Elf(segments=code_segments(RET)).build())
    code = next(each for each in image.segments if each.flags == 5)
    starts, _ = read_functions(
        replace(image, segments=(*image.segments, code._replace(vaddr=HIGH)))
    )
    assert len(starts) == 1
