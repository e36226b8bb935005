"""The dynamic symbols of a library in about two and a half bytes each.

A C++ library defines some 6,000 symbols, whose names alone take 300 KB. What is asked of them is
whether one is there, so a fingerprint of each name is kept, and the number of its version. The
fingerprints, sorted, are coded as Elias and Fano did: low bits as they are, high bits in unary.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potluck.portability.elf_file import DefinedSymbol
from potluck.portability.host import Definition

FINGERPRINT_BITS = 14
"""A name that is not in a set is taken for one that is there once in 2**14 times; with a version,
rarer still, for the versions are kept as they are."""

MAX_SYMBOLS = 1 << (32 - FINGERPRINT_BITS)
"""Fingerprints have 32 bits. The largest library that is described has some 10,000 symbols."""

_LOW_SHIFTS = np.arange(FINGERPRINT_BITS - 1, -1, -1, dtype=np.uint64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedSymbols:
    """A ``SymbolSet`` as text in base64: fingerprints by their low and high bits, and kinds."""

    count: int
    fingerprints: str
    kinds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolSet:
    """Symbols by fingerprint, sorted; ``kinds`` has an entry beside each fingerprint.

    A kind is twice the number of the symbol's version (0: none), plus 1 if a reference without a
    version finds the symbol.
    """

    version_numbers: Mapping[str, int]
    fingerprints: array[int]
    kinds: array[int]

    def defines(self, name: str, version: str) -> Definition:
        """Whether the dynamic linker would find ``name`` here when it wants ``version``.

        As glibc's ``elf/dl-lookup.c`` does: a symbol that has no version satisfies any, and a
        reference without a version is not satisfied by every version of a symbol.
        """
        fingerprint = _placed(_remembered_hash(name), len(self.fingerprints))
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
    """All symbols of some versions, as a policy promises them: it names versions, no symbols.

    That holds because a version's symbols never change after its release.
    """

    versions: frozenset[str]

    def defines(self, name: str, version: str) -> Definition:
        """Present if its version is promised; of a name without a version nothing is known."""
        if not version:
            return Definition.UNKNOWN
        return Definition.PRESENT if version in self.versions else Definition.ABSENT


@functools.lru_cache(maxsize=512)  # as for sets: one for all descriptions of a policy
def symbols_of_versions(versions: frozenset[str]) -> SymbolsOfVersions:
    """All symbols of these versions."""
    return SymbolsOfVersions(versions=versions)


def symbol_set(symbols: Sequence[DefinedSymbol], versions: Sequence[str]) -> SymbolSet:
    """The set of a library's symbols. ``versions`` are its version definitions in the order of the
    file; the first is also found by references without a version, default or not.

    Raises ValueError if there are more than ``MAX_SYMBOLS`` symbols.
    """
    if len(symbols) > MAX_SYMBOLS:
        raise ValueError(f"{len(symbols)} symbols are more than {MAX_SYMBOLS}")
    numbers = _version_numbers(versions)
    first = versions[0] if versions else ""
    entries = sorted(
        (
            _placed(_hash(each.name), len(symbols)),
            2 * numbers.get(each.version, 0) + (each.is_default or each.version == first),
        )
        for each in symbols
    )
    return SymbolSet(
        version_numbers=numbers,
        fingerprints=array("I", (fingerprint for fingerprint, _ in entries)),
        kinds=array("H", (kind for _, kind in entries)),
    )


def coded_symbols(symbols: SymbolSet) -> CodedSymbols:
    """The set as text."""
    count = len(symbols.fingerprints)
    values = np.asarray(symbols.fingerprints, np.uint64)
    low_bits = (values[:, None] >> _LOW_SHIFTS) & np.uint64(1)
    high_bits = np.zeros(2 * count, np.uint8)
    high_bits[(values >> np.uint64(FINGERPRINT_BITS)).astype(np.intp) + np.arange(count)] = 1
    low = np.packbits(low_bits.astype(np.uint8).reshape(-1))
    fingerprints = low.tobytes() + np.packbits(high_bits).tobytes()
    # The high bytes of all kinds after the low ones: most libraries have under 128 versions.
    kinds = np.asarray(symbols.kinds, "<u2").view(np.uint8).reshape(-1, 2).T.tobytes()
    return CodedSymbols(
        count=count,
        fingerprints=base64.b64encode(fingerprints).decode(),
        kinds=base64.b64encode(zlib.compress(kinds, 9)).decode(),
    )


# Machines that run one system share its libraries; 60 systems have some 1,500, of 10 KB each.
@functools.lru_cache(maxsize=2048)
def decoded_symbols(coded: CodedSymbols, versions: frozenset[str]) -> SymbolSet:
    """The set that a text stands for, of a library with these version definitions.

    Raises ValueError if it stands for none.
    """
    if not 0 <= coded.count <= MAX_SYMBOLS:
        raise ValueError(f"a set of {coded.count} symbols")
    fingerprints = _decoded_fingerprints(_from_base64(coded.fingerprints), coded.count)
    kinds = _decoded_kinds(_from_base64(coded.kinds), coded.count)
    if kinds.size and int(kinds.max()) >> 1 > len(versions):
        raise ValueError("a symbol of a version that the library does not define")
    return SymbolSet(
        version_numbers=_version_numbers(versions),
        fingerprints=array("I", fingerprints.astype(np.uint32).tobytes()),
        kinds=array("H", kinds.astype(np.uint16).tobytes()),
    )


def _decoded_fingerprints(data: bytes, count: int) -> npt.NDArray[np.uint64]:
    num_low_bits = FINGERPRINT_BITS * count
    num_low_bytes, num_high_bytes = -(-num_low_bits // 8), -(-2 * count // 8)
    if len(data) != num_low_bytes + num_high_bytes:
        raise ValueError(f"{len(data)} bytes of fingerprints for {count} symbols")
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    low_bits = bits[:num_low_bits].reshape(count, FINGERPRINT_BITS).astype(np.uint64)
    low = (low_bits << _LOW_SHIFTS).sum(axis=1, dtype=np.uint64)
    places = np.flatnonzero(bits[8 * num_low_bytes :])
    if len(places) != count or (count and places[-1] >= 2 * count):
        raise ValueError(f"the fingerprints are not those of {count} symbols")
    high = (places - np.arange(count)).astype(np.uint64)
    return np.sort((high << np.uint64(FINGERPRINT_BITS)) | low)


def _decoded_kinds(data: bytes, count: int) -> npt.NDArray[np.uint16]:
    try:
        kinds = zlib.decompressobj().decompress(data, 2 * count + 1)
    except zlib.error as error:
        raise ValueError("the versions of the symbols cannot be unpacked") from error
    if len(kinds) != 2 * count:
        raise ValueError(f"versions of {len(kinds) // 2} symbols, where there are {count}")
    return np.frombuffer(kinds, np.uint8).reshape(2, count).T.copy().view("<u2").reshape(count)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("a text that is no base64") from error


def _version_numbers(versions: Iterable[str]) -> dict[str, int]:
    return {version: number for number, version in enumerate(sorted(versions), start=1)}


def _placed(hashed: int, count: int) -> int:
    """The fingerprint of a hash among ``count``: spread evenly over ``count << FINGERPRINT_BITS``,
    which is what makes the high bits as short as can be.
    """
    return (hashed * (count << FINGERPRINT_BITS)) >> 64


def _hash(name: str) -> int:
    """64 bits."""
    digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


_remembered_hash = functools.lru_cache(maxsize=1 << 14)(_hash)
"""For questions, which many hosts are asked alike: hashing is most of the time of one."""
