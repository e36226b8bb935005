"""The dynamic symbols of a library in about two and a half bytes each.

A C++ library defines some 6,000 symbols, whose names alone take 300 KB. The only question asked is
whether a symbol exists, so a fingerprint of each name is kept, and the number of its version. The
sorted fingerprints use Elias-Fano coding: low bits verbatim, high bits in unary.

It imports only the standard library: new machines without installed packages describe themselves
with it (``cluster.invitations``). ``symbol_decoding`` reads the text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.host import Definition

FINGERPRINT_BITS = 14
"""The rate of false positives for a name is 2**-14; with a version it is lower, since versions are
compared exactly.
"""

MAX_SYMBOLS = 1 << (32 - FINGERPRINT_BITS)
"""Fingerprints have 32 bits. The largest described library has some 10,000 symbols."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedSymbols:
    """The symbols of a library as base64 text."""

    count: int
    """At most 2**18."""
    fingerprints: str
    """The fingerprint of a name is its 64-bit BLAKE2b (little endian) times ``count << 14``,
    shifted right by 64. The low 14 bits of all of them, sorted, are followed by 2 * ``count`` bits
    that start at a whole byte: for each, the bit with the number (high bits + index) is set."""
    kinds: str
    """16 bits for each fingerprint: twice the number of the symbol's version among the sorted
    versions (from 1; 0: none), plus 1 if references without a version find it. All low bytes are
    followed by all high bytes, and compressed with zlib."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolSet:
    """Symbols by fingerprint, sorted; ``kinds`` has an entry for each fingerprint.

    A kind is twice the number of the symbol's version (0: none), plus 1 if a reference without a
    version finds the symbol. ``span`` is the number of symbols over which fingerprints are
    distributed: those of the set, or of the larger set that it is a part of.
    """

    span: int
    version_numbers: Mapping[str, int]
    fingerprints: array[int]
    kinds: array[int]

    def defines(self, name: str, version: str) -> Definition:
        """Return whether the dynamic linker would find ``name`` here when it requires ``version``.

        This follows glibc's ``elf/dl-lookup.c``: a symbol without a version satisfies any, and a
        reference without a version is not satisfied by every version of a symbol.
        """
        fingerprint = _placed(_remembered_hash(name), self.span)
        number = self.version_numbers.get(version, 0)
        index = bisect_left(self.fingerprints, fingerprint)
        while index < len(self.fingerprints) and self.fingerprints[index] == fingerprint:
            kind = self.kinds[index]
            if kind & 1 if not version else kind >> 1 in (0, number):
                return Definition.PRESENT
            index += 1
        return Definition.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolsOfVersions:
    """All symbols of some versions: a policy promises versions, not symbols.

    This works because a version's symbols never change after its release.
    """

    versions: frozenset[str]

    def defines(self, name: str, version: str) -> Definition:
        """Return whether its version is promised; a name without a version is unknown."""
        if not version:
            return Definition.UNKNOWN
        return Definition.PRESENT if version in self.versions else Definition.ABSENT


@functools.lru_cache(maxsize=512)  # as for sets: one object for all descriptions of a policy
def symbols_of_versions(versions: frozenset[str]) -> SymbolsOfVersions:
    """Return all symbols of these versions."""
    return SymbolsOfVersions(versions=versions)


def symbol_set(symbols: Sequence[DefinedSymbol], versions: Sequence[str]) -> SymbolSet:
    """Return the set of a library's symbols. ``versions`` are its version definitions in the order
    of the file; the first is also found by references without a version, default or not.

    Raise ``ValueError`` if there are more than ``MAX_SYMBOLS`` symbols.
    """
    return plain_symbol_set(tuple(found_symbols(symbols, versions)), versions)


def found_symbols(
    symbols: Iterable[DefinedSymbol], versions: Sequence[str]
) -> Iterator[DefinedSymbol]:
    """Return the symbols of a library, with those of the first version marked as defaults."""
    first = versions[0] if versions else ""
    for each in symbols:
        is_default = each.is_default or each.version == first
        yield DefinedSymbol(name=each.name, version=each.version, is_default=is_default)


def plain_symbol_set(symbols: Sequence[DefinedSymbol], versions: Iterable[str]) -> SymbolSet:
    """Return the set of symbols unchanged. Raise ``ValueError`` as ``symbol_set`` does."""
    if len(symbols) > MAX_SYMBOLS:
        raise ValueError(f"{len(symbols)} symbols exceed the limit of {MAX_SYMBOLS}")
    numbers = version_numbers(versions)
    entries = sorted(fingerprint_and_kind(each, len(symbols), numbers) for each in symbols)
    return SymbolSet(
        span=len(symbols),
        version_numbers=numbers,
        fingerprints=array("I", (fingerprint for fingerprint, _ in entries)),
        kinds=array("H", (kind for _, kind in entries)),
    )


def fingerprint_and_kind(
    symbol: DefinedSymbol, span: int, numbers: Mapping[str, int]
) -> tuple[int, int]:
    """Return a symbol as an entry of a ``SymbolSet`` of ``span`` symbols. ``numbers`` maps versions
    to their numbers.
    """
    kind = 2 * numbers.get(symbol.version, 0) + symbol.is_default
    return _placed(_hash(symbol.name), span), kind


def coded_symbols(symbols: SymbolSet) -> CodedSymbols:
    """Return the set as text. Raise ``ValueError`` for a part of a larger set."""
    if len(symbols.fingerprints) != symbols.span:
        raise ValueError("a part of a larger set cannot be encoded")
    mask = (1 << FINGERPRINT_BITS) - 1
    low = "".join(f"{each & mask:0{FINGERPRINT_BITS}b}" for each in symbols.fingerprints)
    high = ["0"] * (2 * len(symbols.fingerprints))
    for index, each in enumerate(symbols.fingerprints):
        high[(each >> FINGERPRINT_BITS) + index] = "1"
    fingerprints = _packed(low) + _packed("".join(high))
    # The high bytes of all kinds follow the low ones: most libraries have under 128 versions.
    kinds = bytes(each & 0xFF for each in symbols.kinds) + bytes(
        each >> 8 for each in symbols.kinds
    )
    return CodedSymbols(
        count=len(symbols.fingerprints),
        fingerprints=base64.b64encode(fingerprints).decode(),
        kinds=base64.b64encode(zlib.compress(kinds, 9)).decode(),
    )


def _packed(bits: str) -> bytes:
    """Return the bits, most significant first, padded with zeros to whole bytes."""
    num_bytes = -(-len(bits) // 8)
    return int(bits.ljust(8 * num_bytes, "0") or "0", 2).to_bytes(num_bytes, "big")


def version_numbers(versions: Iterable[str]) -> dict[str, int]:
    """Return the number of each version definition of a library, as used in its symbols' kinds."""
    return {version: number for number, version in enumerate(sorted(versions), start=1)}


def _placed(hashed: int, count: int) -> int:
    """Return the fingerprint of a hash among ``count``: distributed evenly over ``count <<
    FINGERPRINT_BITS``, which makes the high bits as short as possible.
    """
    return (hashed * (count << FINGERPRINT_BITS)) >> 64


def _hash(name: str) -> int:
    """64 bits."""
    digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


_remembered_hash = functools.lru_cache(maxsize=1 << 14)(_hash)
"""Cached, since the same names are looked up on many hosts, and hashing takes most of the time."""
