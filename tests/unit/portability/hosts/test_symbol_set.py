"""Sets of symbols answer as the dynamic linker would, from two and a half bytes a symbol."""

from __future__ import annotations

import base64
import ctypes
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.host import Definition
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.symbol_decoding import decoded_symbols
from potluck.portability.hosts.symbol_set import (
    FINGERPRINT_BITS,
    CodedSymbols,
    SymbolSet,
    SymbolsOfVersions,
    coded_symbols,
    symbol_set,
)

VERSIONS = ("LIB_1", "LIB_2", "LIB_3")
SYMBOLS = (
    DefinedSymbol(name="plain"),
    DefinedSymbol(name="moved", version="LIB_1", is_default=False),
    DefinedSymbol(name="moved", version="LIB_3"),
    DefinedSymbol(name="first", version="LIB_1", is_default=False),
    DefinedSymbol(name="second", version="LIB_2", is_default=False),
    DefinedSymbol(name="new", version="LIB_3"),
)

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
libraries = st.lists(
    st.builds(
        DefinedSymbol,
        name=names,
        version=st.sampled_from(["", *VERSIONS]),
        is_default=st.booleans(),
    ),
    max_size=40,
)


def large(count: int) -> SymbolSet:
    return symbol_set(
        [DefinedSymbol(name=f"_ZN4name{n}Ev", version=VERSIONS[n % 7 % 3]) for n in range(count)],
        VERSIONS,
    )


@pytest.mark.parametrize(
    ("name", "version", "is_found"),
    [
        ("new", "LIB_3", True),
        ("new", "LIB_2", False),
        ("new", "", True),
        ("moved", "LIB_1", True),
        ("moved", "LIB_2", False),
        ("moved", "", True),
        # What glibc does for references without a version: see check_match in elf/dl-lookup.c.
        ("first", "", True),
        ("second", "", False),
        ("second", "LIB_2", True),
        ("plain", "", True),
        ("plain", "LIB_2", True),
        ("plain", "OTHER_9", True),
        ("new", "OTHER_9", False),
        ("absent", "", False),
        ("absent", "LIB_1", False),
    ],
)
def test_a_reference_finds_what_the_linker_would(name: str, version: str, is_found: bool) -> None:
    expected = Definition.PRESENT if is_found else Definition.ABSENT
    made = symbol_set(SYMBOLS, VERSIONS)
    assert made.defines(name, version) is expected
    assert decoded_symbols(coded_symbols(made), frozenset(VERSIONS)).defines(name, version) is (
        expected
    )


@settings(max_examples=60)
@given(libraries)
def test_text_and_back_is_the_same_set(symbols: list[DefinedSymbol]) -> None:
    made = symbol_set(symbols, VERSIONS)
    assert decoded_symbols(coded_symbols(made), frozenset(VERSIONS)) == made
    for each in symbols:
        assert made.defines(each.name, each.version or "LIB_2") is Definition.PRESENT


def test_a_set_takes_some_three_characters_for_each_symbol() -> None:
    coded = coded_symbols(large(6000))
    # (FINGERPRINT_BITS + 2 + log2 3) bits, in base64.
    assert len(coded.fingerprints) + len(coded.kinds) < 6000 * 3.1


def test_what_is_not_there_is_rarely_taken_for_there() -> None:
    made = large(6000)
    count = 40_000
    wrong = sum(made.defines(f"other{n}", "") is Definition.PRESENT for n in range(count))
    expected = count / 2**FINGERPRINT_BITS
    assert wrong < 6 * expected  # of a Poisson distribution around 2.4: once in ten million
    assert wrong > 0  # or the rate that is stated would not be what is kept


def test_the_c_library_says_the_same() -> None:
    """``dlvsym`` is the oracle, for all of libm's versions and a tenth of its names."""
    host = describe_host()
    (math,) = (each for each in host.libraries if each.soname == "libm.so.6")
    opened = ctypes.CDLL(math.soname)
    dlvsym = ctypes.CDLL(None).dlvsym
    dlvsym.restype = ctypes.c_void_p
    dlvsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    function_names = (
        "pow",
        "exp",
        "log",
        "expf",
        "fmodf",
        "fmod",
        "sin",
        "totalorder",
        "roundeven",
        "nope",
    )
    assert math.symbols is not None
    answers = set()
    for name in function_names:
        for version in sorted(math.versions):
            answer = math.symbols.defines(name, version)
            found = dlvsym(opened._handle, name.encode(), version.encode()) is not None
            assert (answer is Definition.PRESENT) == found, (name, version)
            answers.add(answer)
    assert answers == {Definition.PRESENT, Definition.ABSENT}


def test_a_policy_promises_versions_and_says_nothing_of_other_names() -> None:
    promised = SymbolsOfVersions(versions=frozenset(["LIB_1"]))
    assert promised.defines("any", "LIB_1") is Definition.PRESENT
    assert promised.defines("any", "LIB_2") is Definition.ABSENT
    assert promised.defines("any", "") is Definition.UNKNOWN


GOOD = coded_symbols(large(50))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "coded",
    [
        replace(GOOD, count=-1),
        replace(GOOD, count=51),
        replace(GOOD, count=1 << 40),
        replace(GOOD, fingerprints=GOOD.fingerprints[:-4]),
        replace(GOOD, fingerprints=base64_of(bytes(88 + 13))),
        replace(GOOD, fingerprints=base64_of(b"\xff" * (88 + 13))),
        replace(GOOD, fingerprints="*"),
        replace(GOOD, kinds=""),
        replace(GOOD, kinds=base64_of(b"no zlib")),
        replace(GOOD, kinds=base64_of(zlib.compress(bytes(99)))),
        replace(GOOD, kinds=base64_of(zlib.compress(bytes(1 << 24)))),
        replace(GOOD, kinds=base64_of(zlib.compress(b"\x08" + bytes(99)))),
    ],
)
def test_broken_text_is_refused(coded: CodedSymbols) -> None:
    decoded_symbols(GOOD, frozenset(VERSIONS))
    with pytest.raises(ValueError, match=r"\w"):
        decoded_symbols(coded, frozenset(VERSIONS))
