"""Symbols that hosts share are those that each of them has."""

from __future__ import annotations

import msgspec
import pytest

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.host import Definition
from potluck.portability.hosts.shipped import LibrarySymbols, SharedSymbols, share
from potluck.portability.hosts.symbol_set import symbol_set

OLD = LibrarySymbols(
    symbols=(
        *(DefinedSymbol(name=f"f{number}", version="V1") for number in range(300)),
        DefinedSymbol(name="moved", version="V1"),
        DefinedSymbol(name="plain"),
    ),
    versions=("libx.so.1", "V1"),
)
NEW = LibrarySymbols(
    symbols=(
        *(DefinedSymbol(name=f"f{number}", version="V1") for number in range(1, 300)),
        *(DefinedSymbol(name=f"g{number}", version="V2") for number in range(20)),
        DefinedSymbol(name="moved", version="V1", is_default=False),
        DefinedSymbol(name="moved", version="V2"),
    ),
    versions=("libx.so.1", "V1", "V2"),
)
SHARED = share({"old": {"libx.so.1": OLD}, "new": {"libx.so.1": NEW}, "none": {}})


@pytest.mark.parametrize(("host", "library"), [("old", OLD), ("new", NEW)])
def test_a_host_gets_back_what_it_had(host: str, library: LibrarySymbols) -> None:
    shared = SHARED.of(host)["libx.so.1"]
    alone = symbol_set(library.symbols, library.versions)
    names = {each.name for each in (*OLD.symbols, *NEW.symbols)} | {"nowhere"}
    for name in names:
        for version in ("", "V1", "V2", "V3"):
            assert shared.defines(name, version) == alone.defines(name, version), (name, version)


def test_hosts_differ_in_what_they_differ_in() -> None:
    old, new = (SHARED.of(host)["libx.so.1"] for host in ("old", "new"))
    assert old.defines("f0", "V1") is Definition.PRESENT
    assert new.defines("f0", "V1") is Definition.ABSENT
    assert new.defines("moved", "V2") is Definition.PRESENT
    assert old.defines("moved", "V2") is Definition.ABSENT


def test_a_host_that_is_not_there_has_none() -> None:
    assert SHARED.of("none") == SHARED.of("another") == {}


def test_it_is_the_same_after_it_was_json() -> None:
    read = msgspec.json.decode(msgspec.json.encode(SHARED), type=SharedSymbols)
    assert read.of("old") == SHARED.of("old")


@pytest.mark.parametrize("bits", ["", "!", "AAAA", "eJwDAAAAAAE="])
def test_broken_bits_are_refused(bits: str) -> None:
    broken = msgspec.structs.replace(SHARED, hosts={"old": {"libx.so.1": bits}})
    with pytest.raises(ValueError, match="bits"):
        broken.of("old")
