"""Whatever bytes a file has, it is read or refused, in bounded time and memory."""

from __future__ import annotations

import struct
import sysconfig
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.portability.elf_bytes import Definition, Elf, Need, Segment, Symbol, property_note

from potluck.errors import ElfError
from potluck.portability.elf.image import open_image
from potluck.portability.elf.notes import x86_level
from potluck.portability.elf.reader import read_elf
from potluck.portability.elf.sections import section
from potluck.portability.instructions.cpu_needs import cpu_needs
from potluck.portability.linking.opened_libraries import opened_libraries

MOST_BYTES = 2**22
"""Marks for as many symbols as are allowed take 1 MiB; files of 2 KB can ask for 2**64."""
MOST_SECONDS = 2.0
"""Reading one takes 1 ms."""

ELF = Elf(
    needed=["libc.so.6"],
    soname="libthis.so",
    runpath="$ORIGIN",
    interpreter="/lib/ld.so",
    symbols=[
        Symbol(name="dlopen", version=2, is_called=True),
        Symbol(name="hook", binding=2),
        Symbol(name="answer", is_defined=True, version=3),
        Symbol(name="other", is_defined=True),
    ],
    needs=[Need(library="libc.so.6", versions=[("GLIBC_2.17", 2, 0), ("GLIBC_2.34", 4, 2)])],
    definitions=[Definition(name="libthis.so", index=1, flags=1), Definition(name="V", index=3)],
    segments=[Segment(segment_type=4, content=property_note({0xC0008002: 2}))],
    sections={".rodata": b"\0libcuda.so.1\0", ".nv_fatbin": b"xyz"},
)


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


SEEDS = {
    "64 bits": ELF.build(),
    "32 bits, old hash table": Elf(
        is_64_bit=False,
        byte_order=">",
        hash_table="sysv",
        has_addends=False,
        machine=40,
        symbols=ELF.symbols,
        needs=ELF.needs,
        sections={".ARM.attributes": b"A\x13\0\0\0aeabi\0\1\x09\0\0\0\6\x0a\x0c\1"},
    ).build(),
}

LIBRARY = min(
    (path for path in Path(sysconfig.get_path("platlib")).glob("*/*.so") if is_elf(path)),
    key=lambda path: path.stat().st_size,
).read_bytes()
"""The smallest extension module that is installed here: what linkers really make."""

# Numbers that overflow, alternate in sign, or point at tables and at the end.
NUMBERS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 4096),
    st.integers(0x10000, 0x10000 + 4096),
    st.sampled_from([2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 8]),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from([*SEEDS.values(), LIBRARY])))
    last = draw(st.sampled_from([len(data), min(len(data), 2**13)]))  # tables come before code
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.sampled_from([1, 2, 4, 8]))
        place = draw(st.integers(0, (last - size) // size)) * size
        value = draw(NUMBERS) % (1 << 8 * size)
        data[place : place + size] = value.to_bytes(size, draw(st.sampled_from(["little", "big"])))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


def look_at_everything(data: bytes) -> None:
    try:
        elf = read_elf(open_image(data))
        x86_level(open_image(data))
    except ElfError as error:
        require_a_line(error)
        return
    cpu_needs(elf, open_image(data), path="a.so")
    opened_libraries(elf, open_image(data))
    section(open_image(data), ".nv_fatbin")


@pytest.fixture(scope="module", autouse=True)
def _tables() -> None:
    """Have tables read before memory is measured: they are read once."""
    look_at_everything(LIBRARY)


def require_a_line(error: ElfError) -> None:
    assert error.message
    assert "\n" not in error.message


def assert_bounded(look: Callable[[], None]) -> None:
    start = time.thread_time()
    tracemalloc.start()
    try:
        look()
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert time.thread_time() - start < MOST_SECONDS


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=mutated())
def test_mutated_files(data: bytes) -> None:
    assert_bounded(lambda: look_at_everything(data))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_every_word_of_the_headers_and_tables(name: str) -> None:
    """Each aligned word in turn becomes numbers that are likely to do harm."""
    data = SEEDS[name]
    read_elf(open_image(data))
    for place in range(16, len(data) - 4, 4):
        for value in (0, 2**31, 2**32 - 1):
            changed = bytearray(data)
            struct.pack_into("<I", changed, place, value)
            look_at_everything(bytes(changed))


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_every_length(name: str) -> None:
    data = SEEDS[name]
    for length in range(len(data)):
        look_at_everything(data[:length])
