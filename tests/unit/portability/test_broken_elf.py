"""Files that lie are refused in a sentence, without taking the memory that they ask for."""

from __future__ import annotations

import struct
import time
import tracemalloc
from dataclasses import replace

import pytest
from support.elf_bytes import BASE, Definition, Elf, Need, Segment, Symbol

from potluck.errors import ElfError, NotLoadableError
from potluck.portability import elf_dynamic, elf_symbols, elf_versions
from potluck.portability.elf_reader import read_elf

SOUND = Elf(
    needed=["libc.so.6"],
    symbols=[Symbol(name="f", version=2), Symbol(name="g", is_defined=True)],
    needs=[Need(library="libc.so.6", versions=[("GLIBC_2.17", 2, 0)])],
)
FAR = 0x7FFF_FFFF_0000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no ELF file"),
        (b"MZ" + bytes(100), "no ELF file"),
        (b"\x7fELF", "class"),
        (b"\x7fELF\x03\x01" + bytes(100), "class"),
        (b"\x7fELF\x02\x01" + bytes(10), "the header would be at"),
        (SOUND.build()[:100], "the table of segments would be at"),
        (replace(SOUND, file_type=9).build(), "no type of file 9"),
        (replace(SOUND, entries={5: FAR}).build(), "the table of names lies at"),
        (replace(SOUND, entries={10: FAR}).build(), "the table of names has"),
        (replace(SOUND, entries={6: FAR}).build(), "the table of symbols lies at"),
        (replace(SOUND, entries={11: 25}).build(), "symbols do not have 24 bytes"),
        (replace(SOUND, entries={7: FAR}).build(), "relocations lies at"),
        (replace(SOUND, entries={8: FAR}).build(), "relocations has"),
        (replace(SOUND, entries={14: FAR}).build(), "no name at"),
        (replace(SOUND, entries={0x6FFFFEF5: FAR}).build(), "the hash table lies at"),
        (replace(SOUND, entries={0x6FFFFFF0: FAR}).build(), "symbols' versions lies at"),
        (replace(SOUND, entries={0x6FFFFFFE: FAR}).build(), "versions needed lies at"),
        (replace(SOUND, entries={0x6FFFFFFC: FAR}).build(), "versions defined lies at"),
        (replace(SOUND, interpreter="x" * 5000).build(), "interpreter has 5001 bytes"),
    ],
)
def test_broken_files(data: bytes, message: str) -> None:
    with pytest.raises(ElfError, match=message):
        read_elf(data)


@pytest.mark.parametrize(("file_type", "what"), [(1, "an object file"), (4, "a core dump")])
def test_files_that_are_not_loaded(file_type: int, what: str) -> None:
    with pytest.raises(NotLoadableError, match=what):
        read_elf(replace(SOUND, file_type=file_type).build())


def test_absurd_number_of_segments() -> None:
    data = bytearray(SOUND.build())
    struct.pack_into("<H", data, 56, 0xFFFF)
    with pytest.raises(ElfError, match="65535 segments"):
        read_elf(data)


def test_absurd_size_of_program_headers() -> None:
    data = bytearray(SOUND.build())
    struct.pack_into("<H", data, 54, 57)
    with pytest.raises(ElfError, match="57 bytes, not 56"):
        read_elf(data)


def test_the_table_of_names_must_end_its_last_name() -> None:
    data = Elf(symbols=[Symbol(name="last")]).build()
    names_bytes = len(b"\0last\0")
    short = replace(Elf(symbols=[Symbol(name="last")]), entries={10: names_bytes - 1}).build()
    assert [each.name for each in read_elf(data).undefined] == ["last"]
    with pytest.raises(ElfError, match="ends before"):
        read_elf(short)


def test_an_absurd_number_of_symbols() -> None:
    head = struct.pack("<IIII", 1, 2**31, 1, 0)
    elf = Elf(symbols=[Symbol(name="g", is_defined=True)], hash_table="", constants=head)
    address = BASE + elf.build().index(head)
    with pytest.raises(ElfError, match="2147483648 dynamic symbols"):
        read_elf(replace(elf, entries={4: address}).build())


def test_a_relocation_of_an_absurd_symbol() -> None:
    elf = Elf(symbols=[Symbol(name="f")])
    data = elf.build().replace((1 << 32 | 1).to_bytes(8, "little"), b"\1\0\0\0\xff\xff\xff\x7f")
    with pytest.raises(ElfError, match="names symbol 2147483647"):
        read_elf(data)


def test_a_chain_without_an_end() -> None:
    """It begins in the zeros that the file ends with."""

    def table(last: int) -> bytes:
        return struct.pack("<IIII", 1, 1, 1, 0) + b"\xff" * 8 + struct.pack("<I", last)

    elf = Elf(symbols=[Symbol(name="g", is_defined=True)], hash_table="", constants=table(1))
    offset = elf.build().index(table(1))
    elf = replace(elf, entries={0x6FFFFEF5: BASE + offset})
    chain_offset = offset + len(table(1))
    last = 1 + (len(elf.build()) - 16 - chain_offset) // 4
    with pytest.raises(ElfError, match="a chain without an end"):
        read_elf(replace(elf, constants=table(last)).build())


def test_versions_that_lead_in_a_circle_of_tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_versions, "_MAX_RECORDS", 100)
    definitions = [Definition(name=f"V{number}", index=2) for number in range(101)]
    with pytest.raises(ElfError, match="does not end"):
        read_elf(Elf(symbols=SOUND.symbols, definitions=definitions).build())
    needs = [Need(library="l", versions=[(f"V{number}", 2, 0) for number in range(101)])]
    with pytest.raises(ElfError, match="does not end"):
        read_elf(Elf(symbols=SOUND.symbols, needs=needs).build())
    needs = [
        Need(library=f"l{library}", versions=[(f"V{number}", 2, 0) for number in range(20)])
        for library in range(6)
    ]
    assert len(read_elf(Elf(symbols=SOUND.symbols, needs=needs[:5]).build()).version_needs) == 100
    with pytest.raises(ElfError, match="does not end"):
        read_elf(Elf(symbols=SOUND.symbols, needs=needs).build())


def test_an_absurd_table_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_dynamic, "MAX_NAME_BYTES", 2000)
    symbols = [Symbol(name="n" * 100) for _ in range(20)]
    assert len(read_elf(Elf(symbols=symbols[1:]).build()).undefined) == 19
    with pytest.raises(ElfError, match="table of names has 2021 bytes"):
        read_elf(Elf(symbols=symbols).build())


def test_the_largest_table_of_symbols_is_read_in_bounded_time_and_memory() -> None:
    """As many symbols as are allowed, all of one long name."""
    count = elf_symbols.MAX_SYMBOLS
    marker, row = b"the tables", struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 1, 0)
    tables = marker + struct.pack("<II", 1, count) + bytes(24) + row * (count - 1)
    elf = Elf(
        symbols=[Symbol(name="x" * 200, is_defined=True)],
        hash_table="",
        segments=[Segment(segment_type=0, content=tables)],
    )
    address = BASE + elf.build().index(marker) + len(marker)
    data = replace(elf, entries={4: address, 6: address + 8}).build()
    tracemalloc.start()
    start = time.thread_time()
    with pytest.raises(ElfError, match="names take more than"):
        read_elf(data)
    assert time.thread_time() - start < 5
    assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    tracemalloc.stop()
