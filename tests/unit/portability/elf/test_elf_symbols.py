"""Which symbols count: what relocations ask for, and what the hash table leads to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.portability.elf_bytes import Elf, Symbol

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf


def undefined(elf: ElfFile) -> list[str]:
    return [symbol.name for symbol in elf.undefined]


def defined(elf: ElfFile) -> list[str]:
    return [symbol.name for symbol in elf.defined]


def test_what_no_relocation_names_is_not_needed() -> None:
    elf = Elf(
        symbols=[
            Symbol(name="used"),
            Symbol(name="never_looked_up", is_referenced=False),
            Symbol(name="called", is_called=True),
        ]
    )
    assert undefined(read_elf(open_image(elf.build()))) == ["used", "called"]


def test_a_reference_is_needed_whatever_its_type() -> None:
    elf = Elf(
        symbols=[
            Symbol(name="called", kind=0, is_called=True),
            Symbol(name="address_taken", kind=2),
            Symbol(name="data", kind=1),
            Symbol(name="untyped", kind=0),
        ]
    )
    assert undefined(read_elf(open_image(elf.build()))) == [
        "called",
        "address_taken",
        "data",
        "untyped",
    ]


@pytest.mark.parametrize(
    "symbol",
    [
        Symbol(name="local", binding=0),
        Symbol(name="hidden", visibility=2),
        Symbol(name="internal", visibility=1),
    ],
)
def test_what_binds_within_the_object_is_not_needed_of_others(symbol: Symbol) -> None:
    assert undefined(read_elf(open_image(Elf(symbols=[symbol]).build()))) == []


@pytest.mark.parametrize(
    ("symbol", "is_found"),
    [
        (Symbol(name="s", is_defined=True), True),
        (Symbol(name="s", is_defined=True, binding=2), True),
        (Symbol(name="s", is_defined=True, binding=10), True),
        (Symbol(name="s", is_defined=True, visibility=3), True),
        (Symbol(name="s", is_defined=True, kind=10), True),
        (Symbol(name="s", is_defined=True, kind=6, value=0), True),
        (Symbol(name="s", is_defined=True, section=0xFFF1, value=0), True),
        (Symbol(name="s", is_defined=True, value=0), False),
        (Symbol(name="s", is_defined=True, binding=0), False),
        (Symbol(name="s", is_defined=True, visibility=2), False),
        (Symbol(name="s", is_defined=True, kind=3), False),
        (Symbol(name="s", is_defined=True, kind=4), False),
        (Symbol(name="s", is_defined=True, section=0), False),
    ],
)
@pytest.mark.parametrize("hash_table", ["gnu", "sysv"])
def test_definitions_that_a_lookup_returns(symbol: Symbol, is_found: bool, hash_table: str) -> None:
    elf = Elf(symbols=[symbol], hash_table=hash_table)
    assert defined(read_elf(open_image(elf.build()))) == (["s"] if is_found else [])


def test_definitions_that_the_hash_table_passes_over_are_not_found() -> None:
    symbols = [
        Symbol(name="found", is_defined=True),
        Symbol(name="passed_over", is_defined=True, is_found=False),
    ]
    assert defined(read_elf(open_image(Elf(symbols=symbols).build()))) == ["found"]
    assert defined(read_elf(open_image(Elf(symbols=symbols[1:]).build()))) == []


def test_without_a_hash_table_nothing_is_found_and_needs_are_the_same() -> None:
    elf = Elf(symbols=[Symbol(name="f"), Symbol(name="g", is_defined=True)], hash_table="")
    assert undefined(read_elf(open_image(elf.build()))) == ["f"]
    assert defined(read_elf(open_image(elf.build()))) == []


def test_many_definitions_are_counted_by_their_chain() -> None:
    names = [f"f{number}" for number in range(3000)]
    symbols = [Symbol(name=name, is_defined=True, is_referenced=False) for name in names]
    for hash_table in ("gnu", "sysv"):
        elf = Elf(symbols=symbols, hash_table=hash_table)
        assert defined(read_elf(open_image(elf.build()))) == names


def test_relocations_of_no_kind_ask_for_nothing() -> None:
    data = Elf(symbols=[Symbol(name="f")]).build()
    info = (1 << 32 | 1).to_bytes(8, "little")
    assert data.count(info) == 1
    assert (
        undefined(read_elf(open_image(data.replace(info, (1 << 32).to_bytes(8, "little"))))) == []
    )


def test_mips_needs_what_its_table_lists() -> None:
    elf = Elf(machine=8, symbols=[Symbol(name="f", is_referenced=False)], hash_table="sysv")
    assert undefined(read_elf(open_image(elf.build()))) == ["f"]
    assert undefined(read_elf(open_image(replace(elf, machine=62).build()))) == []


def test_s390x_has_wide_words_in_its_old_hash_table() -> None:
    elf = Elf(
        machine=22,
        byte_order=">",
        symbols=[Symbol(name="g", is_defined=True)],
        hash_table="sysv-wide",
    )
    assert defined(read_elf(open_image(elf.build()))) == ["g"]
