"""Hosts that are shipped with Potluck: what policies promise, and distributions as released.

The descriptions in ``hosts/data/`` are made by ``tools/hosts`` from auditwheel's policies and from
the distributions' own packages. Symbols are in one shared file.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import functools
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np

from potluck.errors import HostError
from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.document import read_host
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.hosts.symbol_decoding import decoded_symbols
from potluck.portability.hosts.symbol_set import (
    CodedSymbols,
    SymbolSet,
    coded_symbols,
    fingerprint_and_kind,
    found_symbols,
    plain_symbol_set,
)
from potluck.portability.shipped_toml import read_rows

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class SharedLibrary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All symbols that any host has in a library. ``versions`` are their versions.

    Releases of a library differ in a tenth of their symbols, and distributions of one release in
    none. The symbols of a set are ordered by version, so that the bits of a host form long runs.
    """

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
    """The definitions of a host's library. ``versions`` are its version definitions in the file's
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


class _Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Another name for a host, and why that host's description applies to it.

    ``is_base``: it has more than that host, so the description is incomplete for it; ``adds`` are
    additional libraries. ``tegra_release`` is that of Jetson Linux on a Jetson; ``python`` is the
    version of CPython if it differs from that of the other host; ``page_bytes`` is the size of the
    pages of its kernel, if that is known.
    """

    host: _Text
    because: _Text
    is_base: bool = False
    tegra_release: tuple[int, ...] | None = None
    adds: tuple[_Text, ...] = ()
    python: tuple[int, int] | None = None
    page_bytes: int | None = None


@functools.cache
def shipped_hosts() -> Mapping[str, str]:
    """Return the names that ``load_shipped_host`` accepts, each with the file that it is
    read from.
    """
    files = resources.files(__package__) / "data"
    described = {
        each.name.removesuffix(".json"): each.name
        for each in files.iterdir()
        if each.name.endswith(".json")
    }
    aliases = {name: described[alias.host] for name, alias in _aliases().items()}
    return MappingProxyType(dict(sorted({**described, **aliases}.items())))


def load_shipped_host(name: str) -> Host:
    """Return the host with this name. Raise ``HostError`` if there is none."""
    file = shipped_hosts().get(name)
    if file is None:
        close = difflib.get_close_matches(name, shipped_hosts(), n=3, cutoff=0.3)
        raise HostError(
            f"no host named {name!r} comes with Potluck",
            hint=f"similar names: {', '.join(close)}" if close else "name a file",
        )
    data = (resources.files(__package__) / "data" / file).read_bytes()
    host = _with_symbols(read_host(msgspec.json.decode(data)))
    alias = _aliases().get(name)
    if alias is None:
        return host
    python = host.python
    if alias.python is not None:
        python = HostPython(implementation="cpython", version=alias.python)
    return replace(
        host,
        name=name,
        python=python,
        origin=f"{host.origin}; {alias.because}",
        is_complete=host.is_complete and not alias.is_base,
        page_bytes=alias.page_bytes,
        tegra_release=alias.tegra_release,
        other_libraries=host.other_libraries | set(alias.adds),
    )


def _with_symbols(host: Host) -> Host:
    """Return the host with its symbols, which are in the shared file."""
    symbols = _shared_symbols().of(host.name)
    libraries = tuple(
        replace(each, symbols=symbols[each.soname]) if each.soname in symbols else each
        for each in host.libraries
    )
    return replace(host, libraries=libraries)


@functools.cache
def _shared_symbols() -> SharedSymbols:
    data = (resources.files(__package__) / "data/shared/symbols.json").read_bytes()
    return msgspec.json.decode(data, type=SharedSymbols)


@functools.cache
def _aliases() -> Mapping[str, _Alias]:
    return read_rows(__package__, "data/aliases.toml", "aliases", dict[_Text, _Alias])
