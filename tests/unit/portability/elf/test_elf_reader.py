"""What the reader gets out of files whose every byte is known."""

from __future__ import annotations

import mmap
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from support.portability.elf_bytes import HIDDEN, WEAK_NEED, Definition, Elf, Need, Segment, Symbol

from potluck.errors import ElfError
from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.file import UndefinedSymbol, VersionNeed
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf

LIBRARY = Elf(
    needed=["libdl.so.2", "libc.so.6"],
    soname="libthis.so.1",
    runpath="$ORIGIN/../lib:/opt/lib",
    interpreter="/lib64/ld-linux-x86-64.so.2",
    symbols=[
        Symbol(name="printf", version=2, is_called=True),
        Symbol(name="environ", version=3, kind=1),
        Symbol(name="hook", binding=2, kind=0),
        Symbol(name="answer", is_defined=True, version=5),
        Symbol(name="answer", is_defined=True, version=4 | HIDDEN),
        Symbol(name="plain", is_defined=True, version=1),
    ],
    needs=[
        Need(library="libdl.so.2", versions=[("GLIBC_2.0", 6, 0)]),
        Need(library="libc.so.6", versions=[("GLIBC_2.17", 2, 0), ("GLIBC_2.34", 3, WEAK_NEED)]),
    ],
    definitions=[
        Definition(name="libthis.so.1", index=1, flags=1),
        Definition(name="THIS_1", index=4),
        Definition(name="THIS_2", index=5),
    ],
)


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("is_64_bit", [True, False])
@pytest.mark.parametrize("hash_table", ["gnu", "sysv"])
@pytest.mark.parametrize("has_addends", [True, False])
def test_all_that_a_file_says(
    is_64_bit: bool, byte_order: str, hash_table: str, has_addends: bool
) -> None:
    data = replace(
        LIBRARY,
        is_64_bit=is_64_bit,
        byte_order=byte_order,
        hash_table=hash_table,
        has_addends=has_addends,
    ).build()
    elf = read_elf(open_image(data))
    assert elf.needed == ("libdl.so.2", "libc.so.6")
    assert elf.soname == "libthis.so.1"
    assert elf.search_path == ("$ORIGIN/../lib", "/opt/lib")
    assert not elf.is_rpath
    assert elf.interpreter == "/lib64/ld-linux-x86-64.so.2"
    assert elf.version_needs == (
        VersionNeed(library="libdl.so.2", version="GLIBC_2.0"),
        VersionNeed(library="libc.so.6", version="GLIBC_2.17"),
        VersionNeed(library="libc.so.6", version="GLIBC_2.34", is_weak=True),
    )
    assert elf.version_definitions == ("THIS_1", "THIS_2")
    assert elf.undefined == (
        UndefinedSymbol(name="printf", version="GLIBC_2.17", library="libc.so.6"),
        UndefinedSymbol(name="environ", version="GLIBC_2.34", library="libc.so.6"),
        UndefinedSymbol(name="hook", is_weak=True),
    )
    assert tuple(elf.defined) == (
        DefinedSymbol(name="answer", version="THIS_2"),
        DefinedSymbol(name="answer", version="THIS_1", is_default=False),
        DefinedSymbol(name="plain"),
    )


@pytest.mark.parametrize(
    ("machine", "is_64_bit", "byte_order", "name"),
    [
        (62, True, "<", "x86_64"),
        (62, False, "<", "x32"),
        (3, False, "<", "i686"),
        (183, True, "<", "aarch64"),
        (183, True, ">", "aarch64_be"),
        (40, False, "<", "armv7l"),
        (21, True, "<", "ppc64le"),
        (22, True, ">", "s390x"),
        (243, True, "<", "riscv64"),
        (190, True, "<", "EM_190"),
        (183, False, "<", "EM_183"),
    ],
)
def test_machines(machine: int, is_64_bit: bool, byte_order: str, name: str) -> None:
    data = Elf(machine=machine, is_64_bit=is_64_bit, byte_order=byte_order).build()
    assert read_elf(open_image(data)).machine == name


def test_a_file_may_say_nothing() -> None:
    elf = read_elf(open_image(Elf().build()))
    assert (elf.soname, elf.interpreter, elf.needed, elf.search_path) == ("", "", (), ())
    assert (elf.undefined, tuple(elf.defined), elf.version_needs) == ((), (), ())


def test_rpath_counts_without_runpath() -> None:
    assert read_elf(open_image(Elf(rpath="/a::/b").build())).search_path == ("/a", "/b")
    assert read_elf(open_image(Elf(rpath="/a").build())).is_rpath
    both = read_elf(open_image(Elf(rpath="/a", runpath="/b").build()))
    assert (both.search_path, both.is_rpath) == (("/b",), False)
    emptied = read_elf(open_image(Elf(rpath="/a", runpath="").build()))
    assert (emptied.search_path, emptied.is_rpath) == ((), False)


def test_entries_after_the_end_do_not_count() -> None:
    elf = Elf(soname="libthis.so", entries_after_end={30: 0x10, 14: 0}).build()
    assert read_elf(open_image(elf)).soname == "libthis.so"


def test_names_that_are_not_utf_8_can_be_printed() -> None:
    data = Elf(soname=b"lib\xff.so", symbols=[Symbol(name=b"caf\xe9"), Symbol(name="é")]).build()
    elf = read_elf(open_image(data))
    assert elf.soname == "lib\\xff.so"
    assert [symbol.name for symbol in elf.undefined] == ["caf\\xe9", "é"]


def test_what_is_linked_statically_needs_nothing() -> None:
    data = bytearray(Elf(interpreter="", needed=["libc.so.6"], file_type=2).build())
    dynamic_header = 64 + 56  # the second of two program headers
    data[dynamic_header : dynamic_header + 4] = bytes(4)  # PT_NULL
    assert read_elf(open_image(data)).needed == ()


@pytest.mark.parametrize(
    ("align", "page_bytes"), [(0x1000, 4096), (0x10000, 65536), (0x3000, 4096), (0, 0)]
)
def test_largest_page(align: int, page_bytes: int) -> None:
    assert read_elf(open_image(Elf(align=align).build())).max_page_bytes == page_bytes


R, RX, RW = 4, 5, 6


@pytest.mark.parametrize(
    ("segments", "page_bytes"),
    [
        ([(0, 0, 0x100, R)], 0x10000),
        ([(0, 0, 0x100, R), (0x4000, 0x8000, 0x100, RW)], 0x4000),
        ([(0, 0, 0x100, R), (0x1000, 0x2000, 0x100, RW)], 0x1000),
        ([(0, 0x10000, 0x1100, RX), (0x2000, 0x12000, 0x100, RW)], 0x2000),
        ([(0, 0x10000, 0x1100, R), (0x2000, 0x12000, 0x100, R)], 0x10000),
        ([(0, 0, 0x3000, RX), (0x4000, 0x4000, 0x100, RW)], 0x4000),
        ([(0, 8, 0x100, RX)], 8),
        ([], 0),
    ],
)
def test_largest_page_by_the_places_of_segments(
    segments: list[tuple[int, int, int, int]], page_bytes: int
) -> None:
    """Each has an offset, an address, a size and permissions."""
    data = bytearray(64)
    data[:7] = b"\x7fELF\2\1\1"
    struct.pack_into("<HHIQQQIHHH", data, 16, 3, 183, 1, 0, 64, 0, 0, 64, 56, len(segments))
    for offset, address, size, flags in segments:
        data += struct.pack("<IIQQQQQQ", 1, flags, offset, address, 0, 0, size, 0x1000)
    assert read_elf(open_image(bytes(data))).mappable_page_bytes == page_bytes


@pytest.mark.parametrize(
    ("machine", "flags", "needs_executable_stack"),
    [
        (62, 6, False),
        (62, 7, True),
        (62, None, True),
        (183, 6, False),
        (183, 7, True),
        (183, None, False),
    ],
)
def test_executable_stack(machine: int, flags: int | None, needs_executable_stack: bool) -> None:
    segments = [] if flags is None else [Segment(segment_type=0x6474E551, flags=flags)]
    elf = read_elf(open_image(Elf(machine=machine, segments=segments).build()))
    assert elf.needs_executable_stack is needs_executable_stack


def test_static_thread_local_storage() -> None:
    tls = [Segment(segment_type=7, memory_bytes=1234)]
    assert (
        read_elf(open_image(Elf(segments=tls, entries={30: 0x10}).build())).static_tls_bytes == 1234
    )
    assert read_elf(open_image(Elf(segments=tls).build())).static_tls_bytes == 0


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer(wrap: type) -> None:
    assert read_elf(open_image(wrap(LIBRARY.build()))) == read_elf(open_image(LIBRARY.build()))


def test_a_mapped_file_can_be_closed_while_an_error_is_handled(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(replace(LIBRARY, entries={6: 0x7FFF0000}).build())
    with path.open("rb") as file, pytest.raises(ElfError):  # noqa: PT012
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            read_elf(open_image(mapped))
        finally:
            mapped.close()
