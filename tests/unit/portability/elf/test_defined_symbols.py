"""Many symbols in few bytes, and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.portability.elf.defined_symbols import DefinedSymbol, DefinedSymbols, packed_symbols

symbols = st.lists(
    st.builds(
        DefinedSymbol,
        name=st.text(st.characters(exclude_characters="\0"), max_size=12),
        version=st.sampled_from(["", "V_1", "V_2"]),
        is_default=st.booleans(),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(symbols)
def test_what_is_packed_comes_back(given_symbols: list[DefinedSymbol]) -> None:
    packed = packed_symbols(given_symbols)
    assert (len(packed), list(packed)) == (len(given_symbols), given_symbols)
    for name in {each.name for each in given_symbols}:
        assert list(packed.named([name, "another"])) == [
            each for each in given_symbols if each.name in (name, "another")
        ]


def test_pieces_end_within_names() -> None:
    many = [
        DefinedSymbol(name=f"_ZN{'x' * (n % 200)}{n}Ev", version=f"V{n % 3}") for n in range(9000)
    ]
    packed = packed_symbols(many)
    assert list(packed) == many
    assert [each.name for each in packed.named({many[8999].name, many[0].name})] == [
        many[0].name,
        many[8999].name,
    ]
    assert len(packed.names) < sum(len(each.name) for each in many) / 10


def test_they_are_kept_by_msgspec() -> None:
    packed = packed_symbols([DefinedSymbol(name="f", version="V_1", is_default=False)])
    data = msgspec.msgpack.encode(packed)
    assert msgspec.msgpack.decode(data, type=DefinedSymbols) == packed


def test_no_symbols() -> None:
    assert list(DefinedSymbols()) == list(packed_symbols([])) == []
    assert list(DefinedSymbols().named(["f"])) == []


def test_a_name_ends_at_a_zero_byte() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        packed_symbols([DefinedSymbol(name="a\0b")])
