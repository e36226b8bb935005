"""Files that lie are refused in a sentence, without taking the memory that they ask for."""

from __future__ import annotations

import struct
import time
import tracemalloc
from dataclasses import replace

import pytest
from support.portability.elf_bytes import BASE, Definition, Elf, Need, Segment, Symbol

from potluck.errors import ElfError, NotLoadableError
from potluck.portability.elf import dynamic as elf_dynamic
from potluck.portability.elf import dynamic as elf_versions
from potluck.portability.elf import hash_table
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf

SOUND = Elf(
    needed=["libc.so.6"],
    symbols=[Symbol(name="f", version=2), Symbol(name="g", is_defined=True)],
    needs=[Need(library="libc.so.6", versions=[("GLIBC_2.17", 2, 0)])],
)
FAR = 0x7FFF_FFFF_0000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file"),
        (b"MZ" + bytes(100), "not an ELF file"),
        (b"\x7fELF", "class"),
        (b"\x7fELF\x03\x01" + bytes(100), "class"),
        (b"\x7fELF\x02\x01" + bytes(10), "the header would be at"),
        (SOUND.build()[:100], "the table of segments would be at"),
        (replace(SOUND, file_type=9).build(), "unknown file type 9"),
        (replace(SOUND, entries={5: FAR}).build(), "the string table is at"),
        (replace(SOUND, entries={10: FAR}).build(), "string table has"),
        (replace(SOUND, entries={6: FAR}).build(), "the table of symbols is at"),
        (replace(SOUND, entries={11: 25}).build(), "entries is not 24 bytes"),
        (replace(SOUND, entries={7: FAR}).build(), "relocations is at"),
        (replace(SOUND, entries={8: FAR}).build(), "relocations has"),
        (replace(SOUND, entries={14: FAR}).build(), "no name at"),
        (replace(SOUND, entries={0x6FFFFEF5: FAR}).build(), "the hash table is at"),
        (replace(SOUND, entries={0x6FFFFFF0: FAR}).build(), "symbols' versions is at"),
        (replace(SOUND, entries={0x6FFFFFFE: FAR}).build(), "required versions is at"),
        (replace(SOUND, entries={0x6FFFFFFC: FAR}).build(), "defined versions is at"),
        (replace(SOUND, interpreter="x" * 5000).build(), "interpreter has 5001 bytes"),
    ],
)
def test_broken_files(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        read_elf(open_image(data))


@pytest.mark.parametrize(("file_type", "what"), [(1, "an object file"), (4, "a core dump")])
def test_files_that_are_not_loaded(file_type: int, what: str) -> None:
    with pytest.raises(NotLoadableError, match=what):
        read_elf(open_image(replace(SOUND, file_type=file_type).build()))


def test_absurd_number_of_segments() -> None:
    data = bytearray(SOUND.build())
    struct.pack_into("<H", data, 56, 0xFFFF)
    with pytest.raises(ElfError, match="65535 segments"):
        read_elf(open_image(data))


def test_absurd_size_of_program_headers() -> None:
    data = bytearray(SOUND.build())
    struct.pack_into("<H", data, 54, 57)
    with pytest.raises(ElfError, match="57 bytes, not 56"):
        read_elf(open_image(data))


def test_the_table_of_names_must_end_its_last_name() -> None:
    data = Elf(symbols=[Symbol(name="last")]).build()
    names_bytes = len(b"\0last\0")
    short = replace(Elf(symbols=[Symbol(name="last")]), entries={10: names_bytes - 1}).build()
    assert [each.name for each in read_elf(open_image(data)).undefined] == ["last"]
    with pytest.raises(ElfError, match="ends before the end of the name"):
        read_elf(open_image(short))


def test_an_absurd_number_of_symbols() -> None:
    head = struct.pack("<IIII", 1, 2**31, 1, 0)
    elf = Elf(symbols=[Symbol(name="g", is_defined=True)], hash_table="", constants=head)
    address = BASE + elf.build().index(head)
    with pytest.raises(ElfError, match="2147483648 dynamic symbols"):
        read_elf(open_image(replace(elf, entries={4: address}).build()))


def test_a_relocation_of_an_absurd_symbol() -> None:
    elf = Elf(symbols=[Symbol(name="f")])
    data = elf.build().replace((1 << 32 | 1).to_bytes(8, "little"), b"\1\0\0\0\xff\xff\xff\x7f")
    with pytest.raises(ElfError, match="refers to symbol 2147483647"):
        read_elf(open_image(data))


def test_a_chain_without_an_end() -> None:
    """It begins in the zeros that the file ends with."""

    def table(last: int) -> bytes:
        return struct.pack("<IIII", 1, 1, 1, 0) + b"\xff" * 8 + struct.pack("<I", last)

    elf = Elf(symbols=[Symbol(name="g", is_defined=True)], hash_table="", constants=table(1))
    offset = elf.build().index(table(1))
    elf = replace(elf, entries={0x6FFFFEF5: BASE + offset})
    chain_offset = offset + len(table(1))
    last = 1 + (len(elf.build()) - 16 - chain_offset) // 4
    with pytest.raises(ElfError, match="an unterminated chain"):
        read_elf(open_image(replace(elf, constants=table(last)).build()))


def test_versions_that_lead_in_a_circle_of_tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_versions, "_MAX_RECORDS", 100)
    definitions = [Definition(name=f"V{number}", index=2) for number in range(101)]
    with pytest.raises(ElfError, match="does not end"):
        read_elf(open_image(Elf(symbols=SOUND.symbols, definitions=definitions).build()))
    needs = [Need(library="l", versions=[(f"V{number}", 2, 0) for number in range(101)])]
    with pytest.raises(ElfError, match="does not end"):
        read_elf(open_image(Elf(symbols=SOUND.symbols, needs=needs).build()))
    needs = [
        Need(library=f"l{library}", versions=[(f"V{number}", 2, 0) for number in range(20)])
        for library in range(6)
    ]
    assert (
        len(read_elf(open_image(Elf(symbols=SOUND.symbols, needs=needs[:5]).build())).version_needs)
        == 100
    )
    with pytest.raises(ElfError, match="does not end"):
        read_elf(open_image(Elf(symbols=SOUND.symbols, needs=needs).build()))


def test_an_absurd_table_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_dynamic, "MAX_NAME_BYTES", 2000)
    symbols = [Symbol(name="n" * 100) for _ in range(20)]
    assert len(read_elf(open_image(Elf(symbols=symbols[1:]).build())).undefined) == 19
    with pytest.raises(ElfError, match="string table has 2021 bytes"):
        read_elf(open_image(Elf(symbols=symbols).build()))


def file_of_symbols(count: int) -> bytes:
    """A file of ``count`` symbols that all have one long name."""
    marker, row = b"the tables", struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 1, 0)
    tables = marker + struct.pack("<II", 1, count) + bytes(24) + row * (count - 1)
    elf = Elf(
        symbols=[Symbol(name="x" * 200, is_defined=True)],
        hash_table="",
        segments=[Segment(segment_type=0, content=tables)],
    )
    address = BASE + elf.build().index(marker) + len(marker)
    return replace(elf, entries={4: address, 6: address + 8}).build()


@pytest.mark.slow
def test_the_largest_table_of_symbols_is_read_in_bounded_time() -> None:
    data = file_of_symbols(hash_table.MAX_SYMBOLS)
    start = time.thread_time()
    with pytest.raises(ElfError, match="names take more than"):
        read_elf(open_image(data))
    assert time.thread_time() - start < 5


@pytest.mark.slow
def test_a_large_table_of_symbols_is_read_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a sixteenth of the limits, as tracing makes the reader ten times slower.

    What is held beside the table does not grow with it: a batch of names, and what is compressed.
    """
    monkeypatch.setattr(elf_dynamic, "MAX_NAME_BYTES", elf_dynamic.MAX_NAME_BYTES // 16)
    data = file_of_symbols(hash_table.MAX_SYMBOLS // 16)
    tracemalloc.start()
    with pytest.raises(ElfError, match="names take more than"):
        read_elf(open_image(data))
    assert tracemalloc.get_traced_memory()[1] < 3 * len(data) + 4 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("memory_bytes", "mapped_bytes"),
    [(100, 4096), (101, 100)],
    ids=["the rest of the page", "memory that is cleared"],
)
def test_the_last_page_of_a_segment_is_mapped_whole(memory_bytes: int, mapped_bytes: int) -> None:
    """As for the names of casadi's clp and cbc, which end after their segment and run."""
    data = bytearray(SOUND.build()) + bytes(8192)
    (first_header,) = struct.unpack_from("<Q", data, 32)
    for at in range(first_header, len(data), 56):
        kind, _, _, address = struct.unpack_from("<IIQQ", data, at)
        if kind == 1:
            break
    struct.pack_into("<QQ", data, at + 32, 100, memory_bytes)
    image = open_image(bytes(data))
    assert image.locate(address + 1, "it")[1] == mapped_bytes - address % 4096 - 1
    with pytest.raises(ElfError, match="no part of the file is loaded"):
        image.locate(address + 100, "it")
