"""A host as JSON of schema ``potluck.host/1`` (``cli/schemas/host.json``), and back.

A document has at most ``MAX_DOCUMENT_BYTES``, so that a node can send its own. What is read is
taken for a stranger's: everything is checked, and unpacks to a bounded size.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from potluck.errors import HostError
from potluck.portability.host import Host, HostGpu, HostLibrary, HostPython, Symbols
from potluck.portability.symbol_set import (
    CodedSymbols,
    SymbolSet,
    SymbolsOfVersions,
    coded_symbols,
    decoded_symbols,
    symbols_of_versions,
)

MAX_DOCUMENT_BYTES = 1 << 16

_MAX_FILE_BYTES = 1 << 22
"""Of a file that a user names: it may be indented, and be what ``potluck probe --json`` said."""

_MAX_NAMES_BYTES = 1 << 20
"""Unpacked names of other libraries: some 50,000, where a desktop has 3,000."""

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    soname: str
    path: str
    versions: tuple[str, ...]
    needed: tuple[str, ...]
    symbols: CodedSymbols | Literal["by-version"] | None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: Literal["potluck.host/1"] = "potluck.host/1"
    name: str
    origin: str
    machine: str
    libc: Annotated[str, msgspec.Meta(pattern="^(glibc|musl)$")]
    libc_version: tuple[Number, Number]
    is_complete: bool
    libraries: tuple[_Library, ...]
    other_libraries: str
    python: HostPython | None
    cpu_features: tuple[str, ...] | None
    page_bytes: Number | None
    cuda_driver: tuple[Number, ...] | None
    cuda_version: tuple[Number, Number] | None
    gpus: tuple[HostGpu, ...]


def host_document(host: Host) -> dict[str, Any]:
    """The document, as ``json.loads`` would give it.

    The symbols of the last libraries are left out if it would grow too long with them.
    """
    libraries = [_library(each) for each in host.libraries]
    data = msgspec.json.encode(_document(host, libraries))
    for index in reversed(range(len(libraries))):
        if len(data) <= MAX_DOCUMENT_BYTES:
            break
        libraries[index] = msgspec.structs.replace(libraries[index], symbols=None)
        data = msgspec.json.encode(_document(host, libraries))
    document: dict[str, Any] = msgspec.json.decode(data)
    return document


def read_host(document: object) -> Host:
    """The host that a document (parsed JSON) describes. Raises HostError if it is none."""
    try:
        read = msgspec.convert(document, _Document)
        return _host(read)
    except (msgspec.ValidationError, ValueError) as error:
        raise HostError(
            f"this is no description of a host: {error}",
            hint="make one with potluck probe --json on that machine",
        ) from error


def read_host_file(path: Path) -> Host:
    """The host in a file: a document, or all that ``potluck probe --json`` said.

    Raises HostError, which names the file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise HostError(f"it has more than {_MAX_FILE_BYTES} bytes")
        document = msgspec.json.decode(data)
        if isinstance(document, dict) and document.get("schema") == "potluck.probe/1":
            document = document.get("host")
        return read_host(document)
    except (OSError, msgspec.DecodeError, HostError) as error:
        raise HostError(
            f"{path}: {error}", hint="name what potluck probe --json said on that machine"
        ) from error


def _document(host: Host, libraries: Sequence[_Library]) -> _Document:
    names = "\n".join(sorted(host.other_libraries)).encode("utf-8", "backslashreplace")
    features = host.cpu_features
    return _Document(
        name=host.name,
        origin=host.origin,
        machine=host.machine,
        libc=host.libc,
        libc_version=host.libc_version,
        is_complete=host.is_complete,
        libraries=tuple(libraries),
        other_libraries=base64.b64encode(zlib.compress(names, 9)).decode(),
        python=host.python,
        cpu_features=None if features is None else tuple(sorted(features)),
        page_bytes=host.page_bytes,
        cuda_driver=host.cuda_driver,
        cuda_version=host.cuda_version,
        gpus=host.gpus,
    )


def _library(library: HostLibrary) -> _Library:
    return _Library(
        soname=library.soname,
        path=library.path,
        versions=tuple(sorted(library.versions)),
        needed=library.needed,
        symbols=_written_symbols(library.symbols),
    )


def _written_symbols(symbols: Symbols | None) -> CodedSymbols | Literal["by-version"] | None:
    match symbols:
        case SymbolSet():
            return coded_symbols(symbols)
        case SymbolsOfVersions():
            return "by-version"
        case _:
            return None


def _host(document: _Document) -> Host:
    """Raises ValueError where what is coded in the document is broken."""
    features = document.cpu_features
    return Host(
        name=document.name,
        origin=document.origin,
        machine=document.machine,
        libc=document.libc,
        libc_version=document.libc_version,
        is_complete=document.is_complete,
        libraries=tuple(_read_library(each) for each in document.libraries),
        other_libraries=_read_names(document.other_libraries),
        python=document.python,
        cpu_features=None if features is None else frozenset(features),
        page_bytes=document.page_bytes,
        cuda_driver=document.cuda_driver,
        cuda_version=document.cuda_version,
        gpus=document.gpus,
    )


def _read_library(library: _Library) -> HostLibrary:
    versions = frozenset(library.versions)
    return HostLibrary(
        soname=library.soname,
        path=library.path,
        versions=versions,
        needed=library.needed,
        symbols=_read_symbols(library.symbols, versions),
    )


def _read_symbols(
    symbols: CodedSymbols | Literal["by-version"] | None, versions: frozenset[str]
) -> Symbols | None:
    match symbols:
        case CodedSymbols():
            return decoded_symbols(symbols, versions)
        case "by-version":
            return symbols_of_versions(versions)
        case _:
            return None


def _read_names(text: str) -> frozenset[str]:
    unpacking = zlib.decompressobj()
    try:
        names = unpacking.decompress(base64.b64decode(text, validate=True), _MAX_NAMES_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError("the names of other libraries cannot be unpacked") from error
    if not unpacking.eof:
        raise ValueError("the names of other libraries are cut off, or too many")
    return frozenset(names.decode(errors="replace").split("\n")) - {""}
