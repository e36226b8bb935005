"""Decode the text that ``symbol_set.coded_symbols`` makes from a set; the input is untrusted."""

from __future__ import annotations

import base64
import binascii
import functools
import zlib
from array import array

import numpy as np
import numpy.typing as npt

from potluck.portability.hosts.symbol_set import (
    FINGERPRINT_BITS,
    MAX_SYMBOLS,
    CodedSymbols,
    SymbolSet,
    version_numbers,
)

_LOW_SHIFTS = np.arange(FINGERPRINT_BITS - 1, -1, -1, dtype=np.uint64)


# Machines that run the same system share its libraries; 60 systems have some 1,500, of 10 KB each.
@functools.lru_cache(maxsize=2048)
def decoded_symbols(coded: CodedSymbols, versions: frozenset[str]) -> SymbolSet:
    """Return the set that a text encodes, for a library with these version definitions.

    Raise ``ValueError`` if it is invalid.
    """
    if not 0 <= coded.count <= MAX_SYMBOLS:
        raise ValueError(f"a set of {coded.count} symbols")
    fingerprints = _decoded_fingerprints(_from_base64(coded.fingerprints), coded.count)
    kinds = _decoded_kinds(_from_base64(coded.kinds), coded.count)
    if kinds.size and int(kinds.max()) >> 1 > len(versions):
        raise ValueError("a symbol has a version that the library does not define")
    return SymbolSet(
        span=coded.count,
        version_numbers=version_numbers(versions),
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
        raise ValueError(f"the fingerprints do not match {count} symbols")
    high = (places - np.arange(count)).astype(np.uint64)
    return np.sort((high << np.uint64(FINGERPRINT_BITS)) | low)


def _decoded_kinds(data: bytes, count: int) -> npt.NDArray[np.uint16]:
    try:
        kinds = zlib.decompressobj().decompress(data, 2 * count + 1)
    except zlib.error as error:
        raise ValueError("the versions of the symbols cannot be decompressed") from error
    if len(kinds) != 2 * count:
        raise ValueError(f"versions of {len(kinds) // 2} symbols instead of {count}")
    return np.frombuffer(kinds, np.uint8).reshape(2, count).T.copy().view("<u2").reshape(count)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the text is not base64") from error
