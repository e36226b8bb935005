"""The page size of a jemalloc, read from code that is put together word by word."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from support.portability.elf_bytes import BASE, Elf, Segment

from potluck.portability.elf.image import open_image
from potluck.portability.instructions.jemalloc_pages import jemalloc_page_bytes

MESSAGE = b"<jemalloc>: Unsupported system page size\n\0"
AARCH64 = 183
NOP = 0xD503201F
RET = 0xD65F03C0
HI, LS, CS = 8, 9, 2

Code = Callable[[int, int], list[int]]
"""Words at an address that refer to another address."""


def adrp(register: int, here: int, target: int) -> int:
    pages = (target >> 12) - (here >> 12) & 0x1FFFFF
    return 0x90000000 | (pages & 3) << 29 | pages >> 2 << 5 | register


def adr(register: int, here: int, target: int) -> int:
    distance = target - here & 0x1FFFFF
    return 0x10000000 | (distance & 3) << 29 | distance >> 2 << 5 | register


def add(register: int, target: int) -> int:
    return 0x91000000 | (target & 0xFFF) << 10 | register << 5 | register


def compare(pages: int) -> int:
    """``cmp x0, #pages, lsl #12``."""
    return 0xF140001F | pages << 10


def branch(condition: int, words: int) -> int:
    return 0x54000000 | (words & 0x7FFFF) << 5 | condition


def elf_with(code: Code, *, message: bytes = MESSAGE, machine: int = AARCH64) -> bytes:
    """A file with the message among its constants, and with code."""

    def build(words: list[int]) -> bytes:
        content = struct.pack(f"<{len(words)}I", *words)
        segment = Segment(segment_type=1, flags=5, content=content)
        return Elf(machine=machine, constants=message, segments=[segment]).build()

    words = [RET, *code(0, 0)]
    draft = build(words)
    here = BASE + draft.index(struct.pack(f"<{len(words)}I", *words)) + 4
    return build([RET, *code(here, BASE + draft.index(message))])


def jumping(pages: int) -> Code:
    """What GCC emits: the code for the message is elsewhere."""

    def code(here: int, message: int) -> list[int]:
        words = [compare(pages), NOP, branch(HI, 40), *[NOP] * 39]
        return [*words, adrp(3, here + 4 * 42, message), NOP, add(3, message), RET]

    return code


def falling(pages: int, past: int = 4) -> Code:
    """What Clang emits: a branch goes past the code for the message."""

    def code(here: int, message: int) -> list[int]:
        return [compare(pages), branch(LS, past), adrp(0, here + 8, message), add(0, message), RET]

    return code


@pytest.mark.parametrize("pages", [1, 4, 16])
def test_a_page_size_that_the_message_depends_on(pages: int) -> None:
    assert jemalloc_page_bytes(open_image(elf_with(jumping(pages)))) == pages << 12
    assert jemalloc_page_bytes(open_image(elf_with(falling(pages)))) == pages << 12
    assert jemalloc_page_bytes(open_image(elf_with(falling(pages, past=-3)))) == pages << 12


def test_a_message_that_is_near() -> None:
    def code(here: int, message: int) -> list[int]:
        return [compare(4), branch(HI, 2), RET, adr(0, here + 12, message), RET]

    assert jemalloc_page_bytes(open_image(elf_with(code))) == 0x4000


def test_the_smallest_of_two_counts() -> None:
    def code(here: int, message: int) -> list[int]:
        first = falling(16)(here, message)
        return [*first, *falling(1)(here + 4 * len(first), message)]

    assert jemalloc_page_bytes(open_image(elf_with(code))) == 0x1000


@pytest.mark.parametrize(
    "code",
    [
        lambda here, message: [RET],
        lambda here, message: [adrp(0, here, message), add(0, message), RET],
        lambda here, message: [compare(4), adrp(0, here + 4, message), add(0, message), RET],
        falling(3),
        lambda here, message: [
            *(compare(4), branch(CS, 2), RET),
            *(adrp(0, here + 12, message), add(0, message), RET),
        ],
        lambda here, message: [
            *(compare(4), branch(HI, 2), RET),
            *(adrp(0, here + 12, message), add(1, message), add(0, message + 4), RET),
        ],
    ],
)
def test_a_page_size_that_is_unknown(code: Code) -> None:
    assert jemalloc_page_bytes(open_image(elf_with(code))) == 0


def test_addresses_that_no_process_has() -> None:
    data = bytearray(elf_with(falling(4)))
    for program_header in range(int(struct.unpack_from("<H", data, 56)[0])):
        struct.pack_into("<Q", data, 64 + 56 * program_header + 16, 2**64 - 1)
    assert jemalloc_page_bytes(open_image(data)) == 0


def test_a_file_without_jemalloc() -> None:
    other = b"<jemalloc>: Error in munmap(): %s\n\0"
    assert jemalloc_page_bytes(open_image(elf_with(jumping(1), message=other))) is None


def test_other_machines_have_one_page_size() -> None:
    assert jemalloc_page_bytes(open_image(elf_with(jumping(1), machine=62))) is None
