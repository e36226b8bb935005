"""A host as JSON of schema ``potluck.host/1``.

A document has at most ``MAX_DOCUMENT_BYTES``, so that a node can send its own. This module imports
only the standard library: new machines without installed packages describe themselves with it
(``cluster.invitations``). ``hosts.document`` declares and reads the documents.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from typing import Any

from potluck.portability.hosts.host import Host, HostLibrary, Symbols
from potluck.portability.hosts.symbol_set import (
    CodedSymbols,
    SymbolSet,
    SymbolsOfVersions,
    coded_symbols,
)

MAX_DOCUMENT_BYTES = 1 << 16


def host_document(host: Host) -> dict[str, Any]:
    """Return the document as ``json.loads`` would.

    The symbols of the last libraries are omitted if it would grow too long otherwise, and so are
    the symbols of shipped hosts, which are in a shared file.
    """
    names = "\n".join(sorted(host.other_libraries)).encode("utf-8", "backslashreplace")
    features = host.cpu_features
    libraries = [_library(each) for each in host.libraries]
    document = {
        "schema": "potluck.host/1",
        **_fields(host),
        "libraries": libraries,
        "other_libraries": base64.b64encode(zlib.compress(names, 9)).decode(),
        "cpu_features": None if features is None else sorted(features),
    }
    if host.tegra_release is None:
        del document["tegra_release"]
    if not host.amd_architectures:
        del document["amd_architectures"]
    data = encoded(document)
    for library in reversed(libraries):
        if len(data) <= MAX_DOCUMENT_BYTES:
            break
        library["symbols"] = None
        data = encoded(document)
    parsed: dict[str, Any] = json.loads(data)
    return parsed


def encoded(document: object) -> bytes:
    """Return a document without whitespace, as it is sent."""
    text = json.dumps(
        document, ensure_ascii=False, separators=(",", ":"), default=dataclasses.asdict
    )
    return text.encode("utf-8", "backslashreplace")


def _library(library: HostLibrary) -> dict[str, Any]:
    return {
        **_fields(library),
        "versions": sorted(library.versions),
        "symbols": _written_symbols(library.symbols),
    }


def _fields(value: Host | HostLibrary) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _written_symbols(symbols: Symbols | None) -> CodedSymbols | str | None:
    match symbols:
        case SymbolSet() if symbols.span == len(symbols.fingerprints):
            return coded_symbols(symbols)
        case SymbolsOfVersions():
            return "by-version"
        case _:
            return None
