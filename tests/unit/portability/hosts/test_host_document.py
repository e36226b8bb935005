"""A host goes through JSON unchanged, in under 64 KB, and nothing else is taken for one."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.schemas import validate_document

from potluck.errors import HostError
from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.hosts.document import read_host, read_host_file
from potluck.portability.hosts.host import Host, HostGpu, HostLibrary, HostPython
from potluck.portability.hosts.symbol_set import SymbolsOfVersions, symbol_set
from potluck.portability.hosts.writing import MAX_DOCUMENT_BYTES, host_document


def library(soname: str, num_symbols: int, *versions: str) -> HostLibrary:
    symbols = [
        DefinedSymbol(name=f"{soname}_{n}", version=versions[n % len(versions)] if versions else "")
        for n in range(num_symbols)
    ]
    return HostLibrary(
        soname=soname,
        path=f"/usr/lib/{soname}",
        versions=frozenset(versions),
        needed=("libc.so.6",),
        symbols=symbol_set(symbols, versions),
    )


FULL = Host(
    name="board",
    origin="the files of Armbian",
    machine="aarch64",
    libc="glibc",
    libc_version=(2, 36),
    is_complete=True,
    libraries=(
        library("libc.so.6", 300, "GLIBC_2.17", "GLIBC_2.34"),
        library("libexpat.so.1", 20),
        replace(library("libm.so.6", 0, "GLIBC_2.17"), symbols=None),
        replace(library("librt.so.1", 0), symbols=SymbolsOfVersions(versions=frozenset()), path=""),
    ),
    other_libraries=frozenset(["libfoo.so.3", "libbär.so"]),
    python=HostPython(implementation="cpython", version=(3, 13), is_free_threaded=True),
    cpu_features=frozenset(["asimd", "asimddp"]),
    page_bytes=16384,
    cuda_driver=(580, 65, 6),
    cuda_version=(13, 0),
    gpus=(
        HostGpu(name="Orin", compute_capability=(8, 7)),
        HostGpu(name="other", compute_capability=None),
    ),
    tegra_release=(38, 2, 1),
    amd_architectures=("gfx1030", "gfx90a"),
)
BARE = replace(
    FULL,
    libc="musl",
    is_complete=False,
    other_libraries=frozenset(),
    python=None,
    cpu_features=None,
    tegra_release=None,
    page_bytes=None,
    cuda_driver=None,
    cuda_version=None,
    gpus=(),
    amd_architectures=(),
)


@pytest.mark.parametrize("host", [FULL, BARE])
def test_a_host_comes_back_as_it_was(host: Host) -> None:
    document = json.loads(json.dumps(host_document(host)))
    validate_document(document)
    assert read_host(document) == host


def test_a_long_document_leaves_out_the_symbols_of_the_last_libraries() -> None:
    libraries = tuple(library(f"lib{n}.so", 3000, "V_1") for n in range(10))
    document = host_document(replace(FULL, libraries=libraries))
    assert len(json.dumps(document, separators=(",", ":"))) <= MAX_DOCUMENT_BYTES
    read = read_host(document)
    kept = [each.symbols is not None for each in read.libraries]
    assert kept == sorted(kept, reverse=True)
    assert 0 < sum(kept) < len(kept)
    assert [each.versions for each in read.libraries] == [each.versions for each in libraries]


def test_a_file_may_be_all_that_probe_said(tmp_path: Path) -> None:
    document = host_document(FULL)
    alone, in_probe = tmp_path / "host.json", tmp_path / "probe.json"
    alone.write_text(json.dumps(document, indent=2))
    in_probe.write_text(json.dumps({"schema": "potluck.probe/1", "host": document, "cpu": {}}))
    assert read_host_file(alone) == read_host_file(in_probe) == FULL


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def changed(**changes: Any) -> dict[str, Any]:
    return {**host_document(FULL), **changes}


def without_its_name() -> dict[str, Any]:
    return {key: value for key, value in host_document(FULL).items() if key != "name"}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        changed(schema="potluck.host/2"),
        changed(unknown=1),
        changed(libc="uclibc"),
        changed(libc_version=[2]),
        changed(libc_version=[2, -1]),
        changed(libc_version=[2, 2**30]),
        changed(python={"implementation": "cpython", "version": [3, 2**30]}),
        changed(python={"implementation": "cpython", "version": [-3, 11]}),
        changed(libraries=[{"soname": "libc.so.6"}]),
        changed(other_libraries="*"),
        changed(other_libraries=base64.b64encode(b"no zlib").decode()),
        changed(other_libraries=packed(b"lib.so\n" * 1000)[:-8]),
        changed(other_libraries=packed(bytes(1 << 24))),
        changed(gpus=[{"name": "x"}]),
        changed(gpus=[{"name": "x", "compute_capability": [-8, 6]}]),
        changed(amd_architectures=["gfx1030\x1b[m"]),
        changed(
            libraries=[
                {
                    "soname": "libc.so.6",
                    "path": "",
                    "versions": [],
                    "needed": [],
                    "symbols": {"count": 9, "fingerprints": "", "kinds": ""},
                }
            ]
        ),
        without_its_name(),
    ],
)
def test_what_is_no_description_is_refused(document: object) -> None:
    with pytest.raises(HostError, match="not a description of a host"):
        read_host(document)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"schema": "potluck.probe/1"}', b" " * (5 << 20), b"\xff"),
        b"[" * 100_000,
    ],
)
def test_an_error_names_the_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "host.json"
    file.write_bytes(content)
    with pytest.raises(HostError, match=r"host\.json: ") as raised:
        read_host_file(file)
    assert raised.value.hint


def test_a_file_that_is_not_there_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"nowhere\.json"):
        read_host_file(tmp_path / "nowhere.json")


def test_only_a_tegras_document_has_the_release_of_its_system() -> None:
    """Versions of Potluck without that field read the others'."""
    assert "tegra_release" not in host_document(BARE)
    assert "amd_architectures" not in host_document(BARE)
    unknown = replace(BARE, tegra_release=())
    assert host_document(unknown)["tegra_release"] == []
    assert read_host(host_document(unknown)) == unknown
