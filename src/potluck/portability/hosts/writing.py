"""A host as JSON of schema ``potluck.host/1`` (``cli/schemas/host.json``).

A document has at most ``MAX_DOCUMENT_BYTES``, so that a node can send its own. This module imports
only the standard library: new machines without installed packages describe themselves with it
(``cluster.invitations``). ``hosts.document`` reads the documents.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from typing import Any

from potluck.portability.hosts.host import Host, HostLibrary, Symbols
from potluck.portability.hosts.symbol_set import SymbolSet, SymbolsOfVersions, coded_symbols

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
        "name": host.name,
        "origin": host.origin,
        "machine": host.machine,
        "libc": host.libc,
        "libc_version": host.libc_version,
        "is_complete": host.is_complete,
        "libraries": libraries,
        "other_libraries": base64.b64encode(zlib.compress(names, 9)).decode(),
        "python": None if host.python is None else dataclasses.asdict(host.python),
        "cpu_features": None if features is None else sorted(features),
        "page_bytes": host.page_bytes,
        "cuda_driver": host.cuda_driver,
        "cuda_version": host.cuda_version,
        "gpus": [dataclasses.asdict(each) for each in host.gpus],
    }
    if host.tegra_release is not None:
        document["tegra_release"] = host.tegra_release
    if host.amd_architectures:
        document["amd_architectures"] = host.amd_architectures
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
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "backslashreplace"
    )


def _library(library: HostLibrary) -> dict[str, Any]:
    return {
        "soname": library.soname,
        "path": library.path,
        "versions": sorted(library.versions),
        "needed": library.needed,
        "symbols": _written_symbols(library.symbols),
    }


def _written_symbols(symbols: Symbols | None) -> dict[str, Any] | str | None:
    match symbols:
        case SymbolSet() if symbols.span == len(symbols.fingerprints):
            return dataclasses.asdict(coded_symbols(symbols))
        case SymbolsOfVersions():
            return "by-version"
        case _:
            return None
