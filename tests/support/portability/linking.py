"""ELF files and hosts as values, for what links them: only what a test is about is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from potluck.portability.elf.defined_symbols import DefinedSymbol, packed_symbols
from potluck.portability.elf.file import ElfFile, UndefinedSymbol, VersionNeed
from potluck.portability.hosts.host import Host, HostLibrary, HostPython
from potluck.portability.hosts.symbol_set import symbol_set


def undefined(text: str, library: str = "libc.so.6", *, is_weak: bool = False) -> UndefinedSymbol:
    """``name`` or ``name@VERSION``, which then is of ``library``."""
    name, _, version = text.partition("@")
    return UndefinedSymbol(
        name=name, version=version, library=library if version else "", is_weak=is_weak
    )


def defined(text: str) -> DefinedSymbol:
    """``name``, ``name@@DEFAULT`` or ``name@HIDDEN``."""
    name, _, version = text.partition("@")
    return DefinedSymbol(
        name=name, version=version.removeprefix("@"), is_default=version[:1] in ("", "@")
    )


def an_elf(
    *,
    needed: Sequence[str] = (),
    wants: Iterable[str | UndefinedSymbol] = (),
    gives: Iterable[str] = (),
    versions: Sequence[str] = (),
    rpath: Sequence[str] = (),
    runpath: Sequence[str] = (),
    soname: str = "",
    interpreter: str = "",
    machine: str = "x86_64",
    weak_versions: Iterable[tuple[str, str]] = (),
    also_needs_versions: Iterable[tuple[str, str]] = (),
    max_page_bytes: int = 0x1000,
    mappable_page_bytes: int = 0x1000,
    needs_executable_stack: bool = False,
    static_tls_bytes: int = 0,
) -> ElfFile:
    """A file whose version needs follow from what it ``wants``, as the link editor makes them.

    ``gives`` is spelled as for ``defined``; a version need is (library, version).
    """
    symbols = tuple(undefined(each) if isinstance(each, str) else each for each in wants)
    pairs = [(each.library, each.version) for each in symbols if each.version]
    weak = [
        VersionNeed(library=library, version=version, is_weak=True)
        for library, version in weak_versions
    ]
    return ElfFile(
        machine=machine,
        soname=soname,
        interpreter=interpreter,
        needed=tuple(needed),
        search_path=tuple(runpath or rpath),
        is_rpath=bool(rpath) and not runpath,
        version_needs=(
            *(
                VersionNeed(library=library, version=version)
                for library, version in dict.fromkeys([*pairs, *also_needs_versions])
                if (library, version) not in set(weak_versions)
            ),
            *weak,
        ),
        version_definitions=tuple(versions),
        undefined=symbols,
        defined=packed_symbols(map(defined, gives)),
        max_page_bytes=max_page_bytes,
        mappable_page_bytes=mappable_page_bytes,
        needs_executable_stack=needs_executable_stack,
        static_tls_bytes=static_tls_bytes,
    )


def a_library(
    soname: str,
    *gives: str,
    versions: Sequence[str] = (),
    needed: Sequence[str] = (),
    path: str = "",
    is_described: bool = True,
) -> HostLibrary:
    """A library of a host; without ``is_described`` its symbols were not read."""
    symbols = symbol_set([defined(each) for each in gives], versions)
    return HostLibrary(
        soname=soname,
        path=path or f"/usr/lib/{soname}",
        versions=frozenset(versions),
        needed=tuple(needed),
        symbols=symbols if is_described else None,
    )


LIBC = a_library(
    "libc.so.6",
    *("malloc@@GLIBC_2.2.5", "memcpy@GLIBC_2.2.5", "memcpy@@GLIBC_2.14", "old@GLIBC_2.2.5"),
    *("gone@GLIBC_2.14", "dlopen@@GLIBC_2.34"),
    versions=("GLIBC_2.2.5", "GLIBC_2.14", "GLIBC_2.34"),
)
LIBM = a_library(
    "libm.so.6", "exp@@GLIBC_2.29", versions=("GLIBC_2.2.5", "GLIBC_2.29"), needed=("libc.so.6",)
)


def a_host(
    *libraries: HostLibrary,
    machine: str = "x86_64",
    libc: str = "glibc",
    libc_version: tuple[int, int] = (2, 36),
    is_complete: bool = True,
    others: Iterable[str] = (),
    python: tuple[int, int] | None = (3, 11),
    page_bytes: int | None = None,
    cpu_features: Iterable[str] | None = None,
) -> Host:
    """A host with a C library of few symbols, and ``libraries``; ``others`` are names alone."""
    return Host(
        name="a host",
        origin="a test",
        machine=machine,
        libc=libc,
        libc_version=libc_version,
        is_complete=is_complete,
        libraries=(LIBC, LIBM, *libraries),
        other_libraries=frozenset(others),
        python=None if python is None else HostPython(implementation="cpython", version=python),
        page_bytes=page_bytes,
        cpu_features=None if cpu_features is None else frozenset(cpu_features),
    )
