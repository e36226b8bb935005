"""Reads hosts from JSON of schema ``potluck.host/1``.

Input is untrusted: everything is checked, and expands to a bounded size. ``hosts.writing`` makes
the documents.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from potluck.errors import HostError
from potluck.portability.hosts.host import Host, HostGpu, HostLibrary, HostPython, Symbols
from potluck.portability.hosts.symbol_decoding import decoded_symbols
from potluck.portability.hosts.symbol_set import CodedSymbols, symbols_of_versions
from potluck.types.document import Document, NonEmpty

_MAX_FILE_BYTES = 1 << 22
"""Limit for a file that a user names: it may be indented, and may be the whole output of ``potluck
probe --json``.
"""

_MAX_NAMES_BYTES = 1 << 20
"""Limit of the decompressed names of other libraries: about 50,000 names; a desktop has 3,000."""

_MAX_VERSION_NUMBER = 999
"""Limit for versions of C libraries and Python, and for compute capabilities: a host accepts tags
for every minor version up to its own, and all of them are listed.
"""

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Architecture = Annotated[str, msgspec.Meta(pattern="^gfx[0-9a-f]{3,8}$")]
DistinctNames = Annotated[
    tuple[NonEmpty, ...], msgspec.Meta(extra_json_schema={"uniqueItems": True})
]
Base64 = Annotated[str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})]


class HostLibraryDocument(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A library that the loader of a host finds by its name."""

    soname: NonEmpty
    path: str
    """Its path on that host; empty for policies."""
    versions: DistinctNames
    """Its version definitions."""
    needed: tuple[NonEmpty, ...]
    """The libraries that it needs."""
    symbols: CodedSymbols | Literal["by-version"] | None
    """``by-version``: all symbols of its versions; null if they are unknown."""


class HostDocument(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A host, as far as it determines which builds load there."""

    schema: Literal["potluck.host/1"] = "potluck.host/1"
    name: NonEmpty
    origin: NonEmpty
    """The source of the description, such as the files of a system."""
    machine: NonEmpty
    """As reported by ``uname -m``."""
    libc: Literal["glibc", "musl"]
    libc_version: tuple[Number, Number]
    is_complete: bool
    """A library that is not named here does not exist there. It is false for policies, where such a
    library is merely not promised."""
    libraries: Annotated[tuple[HostLibraryDocument, ...], msgspec.Meta(min_length=1)]
    """Those that most wheels need come first."""
    other_libraries: Base64
    """The names of all other libraries, one per line, compressed with zlib."""
    python: HostPython | None
    cpu_features: DistinctNames | None
    """The features that all cores have, named as in ``/proc/cpuinfo``."""
    page_bytes: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] | None
    """Size of the kernel's pages."""
    cuda_driver: Annotated[tuple[Number, ...], msgspec.Meta(min_length=1)] | None
    """The version of NVIDIA's driver."""
    cuda_version: tuple[Number, Number] | None
    """The newest CUDA that the driver supports."""
    gpus: tuple[HostGpu, ...]
    # Omitted for other machines, so that versions without these fields can read their documents.
    tegra_release: tuple[Number, ...] | msgspec.UnsetType = msgspec.UNSET
    """Only on a Jetson or another Tegra: the release of Jetson Linux (L4T), empty if unknown."""
    amd_architectures: (
        Annotated[tuple[Architecture, ...], msgspec.Meta(min_length=1)] | msgspec.UnsetType
    ) = msgspec.UNSET
    """Only with AMD's compute driver: the architectures of the GPUs, named as in LLVM."""


def read_host(document: object) -> Host:
    """Return the host that a document (parsed JSON) describes. Raise ``HostError`` if it is
    invalid.
    """
    try:
        return _host(msgspec.convert(document, HostDocument))
    except (msgspec.ValidationError, ValueError) as error:
        raise HostError(
            f"this is not a description of a host: {error}",
            hint="create one with potluck probe --json on that machine",
        ) from error


def read_host_file(path: Path) -> Host:
    """Return the host in a file: a document, or the whole output of ``potluck probe --json``.

    Raise ``HostError``, which names the file, if it is invalid.
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
    except (OSError, msgspec.DecodeError, RecursionError, HostError) as error:
        raise HostError(
            f"{path}: {error}", hint="give the output of potluck probe --json on that machine"
        ) from error


def _host(document: HostDocument) -> Host:
    """Raise ``ValueError`` if encoded data is malformed, or a version number out of range."""
    features = document.cpu_features
    python = () if document.python is None else document.python.version
    capabilities = (each.compute_capability or () for each in document.gpus)
    for number in (*document.libc_version, *python, *chain.from_iterable(capabilities)):
        if not 0 <= number <= _MAX_VERSION_NUMBER:
            raise ValueError(f"{number} is not a valid version number (0 to {_MAX_VERSION_NUMBER})")
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
        tegra_release=None if document.tegra_release is msgspec.UNSET else document.tegra_release,
        amd_architectures=document.amd_architectures or (),
    )


def _read_library(library: HostLibraryDocument) -> HostLibrary:
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
        raise ValueError("the names of other libraries cannot be decompressed") from error
    if not unpacking.eof:
        raise ValueError("the names of other libraries are truncated, or too many")
    return frozenset(names.decode(errors="replace").split("\n")) - {""}
