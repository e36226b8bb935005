"""Symbols shared by several hosts: for each library, the set of all symbols, and which of them each
host has.

Releases of a library differ in a tenth of their symbols, and distributions of one release in none.
The symbols of a set are ordered by version, so that the bits of a host form long runs.
"""

from __future__ import annotations

import base64
import binascii
import functools
import zlib
from array import array
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.symbol_decoding import decoded_symbols
from potluck.portability.hosts.symbol_set import (
    CodedSymbols,
    SymbolSet,
    coded_symbols,
    fingerprint_and_kind,
    found_symbols,
    plain_symbol_set,
)


class SharedLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All symbols that any host has in a library. ``versions`` are their versions."""

    versions: tuple[str, ...]
    symbols: CodedSymbols


class SharedSymbols(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Libraries by name, and for each host a bit per symbol that says whether it has it."""

    libraries: dict[str, SharedLibrary]
    hosts: dict[str, dict[str, str]]

    def of(self, host: str) -> Mapping[str, SymbolSet]:
        """Return the symbols of a host's libraries, by name. Raise ``ValueError`` if malformed."""
        return {
            name: _part(self.libraries[name], bits)
            for name, bits in self.hosts.get(host, {}).items()
        }


class LibrarySymbols(msgspec.Struct, frozen=True, kw_only=True):
    """What a library of a host defines. ``versions`` are its version definitions in the file's
    order.
    """

    symbols: tuple[DefinedSymbol, ...]
    versions: tuple[str, ...]


def share(hosts: Mapping[str, Mapping[str, LibrarySymbols]]) -> SharedSymbols:
    """Return what the libraries of hosts define, by host and library, in the shared form."""
    names = sorted({name for libraries in hosts.values() for name in libraries})
    shared: dict[str, SharedLibrary] = {}
    bits: dict[str, dict[str, str]] = {host: {} for host in hosts}
    for name in names:
        of_hosts = {
            host: frozenset(found_symbols(libraries[name].symbols, libraries[name].versions))
            for host, libraries in hosts.items()
            if name in libraries
        }
        symbols = tuple(frozenset[DefinedSymbol]().union(*of_hosts.values()))
        versions = tuple(sorted({each.version for each in symbols} - {""}))
        everything = plain_symbol_set(symbols, versions)
        shared[name] = SharedLibrary(versions=versions, symbols=coded_symbols(everything))
        ordered = sorted(symbols, key=lambda each: each.name)
        ordered.sort(key=functools.partial(_place, everything))
        for host, held in of_hosts.items():
            bits[host][name] = _coded_bits([each in held for each in ordered])
    return SharedSymbols(libraries=shared, hosts=bits)


def _place(everything: SymbolSet, symbol: DefinedSymbol) -> tuple[int, int]:
    """Return the key that orders the bits of a set."""
    fingerprint, kind = fingerprint_and_kind(symbol, everything.span, everything.version_numbers)
    return kind, fingerprint


def _coded_bits(bits: Sequence[bool]) -> str:
    packed = np.packbits(np.asarray(bits, np.uint8)).tobytes()
    return base64.b64encode(zlib.compress(packed, 9)).decode()


def _part(library: SharedLibrary, text: str) -> SymbolSet:
    everything = decoded_symbols(library.symbols, frozenset(library.versions))
    count = library.symbols.count
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), count + 8)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("the bits of a host's symbols cannot be decompressed") from error
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))[:count]
    if len(bits) < count:
        raise ValueError("the bits of a host's symbols are truncated")
    order = np.lexsort((np.asarray(everything.fingerprints), np.asarray(everything.kinds)))
    held = np.sort(order[bits == 1])
    return SymbolSet(
        span=everything.span,
        version_numbers=everything.version_numbers,
        fingerprints=array("I", np.asarray(everything.fingerprints, np.uint32)[held].tobytes()),
        kinds=array("H", np.asarray(everything.kinds, np.uint16)[held].tobytes()),
    )
