"""Find which C library (glibc or musl) the programs of a system use, and its version, from
files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.errors import ElfError, HostError
from potluck.portability.hosts.library_file import LibraryFile, read_library_file
from potluck.portability.hosts.loader_paths import LoaderPaths, glibc_paths, musl_paths
from potluck.portability.hosts.root_files import RootFiles

_GLIBC_SONAME = "libc.so.6"

_PROGRAMS = ("/bin/sh", "/usr/bin/env", "/bin/busybox")
"""Programs whose loader is the system's. One of them exists everywhere, but may be linked
statically.
"""

_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux-armhf.so.3",
    "/lib/ld-linux-riscv64-lp64d.so.1",
    "/lib64/ld64.so.2",
    "/lib/ld-linux.so.2",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
)
"""For a tree without programs: the path of a loader is part of the ABI."""

_GLIBC_BANNER = re.compile(rb"GNU C Library [^\n]{0,200}? release version (\d+)\.(\d+)")
"""The text that the library prints when it is executed. Its newest version definition may be older.
"""

_MUSL_VERSION = re.compile(rb"\0(1)\.(\d+)\.\d+(?:-git-[\w-]+)?\0")
"""musl's ``__libc_version``. Tags of wheels contain its first two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CLibrary:
    """``name`` is ``glibc`` or ``musl``; ``paths`` are the directories where its ``loader`` looks
    for libraries.
    """

    name: str
    version: tuple[int, int]
    soname: str
    loader: str
    loader_elf: LibraryFile
    paths: LoaderPaths

    @property
    def machine(self) -> str:
        """The machine as ``uname -m`` names it."""
        return self.loader_elf.machine


def find_c_library(files: RootFiles, program: str | None) -> CLibrary:
    """Return the C library of ``program``, or if None of the system's shell, or of any loader that
    exists.

    Raise ``HostError`` if there is none, or it cannot be identified.
    """
    interpreted = _interpreted(files, program)
    loader = interpreted[1].interpreter if interpreted else _present_loader(files)
    elf = read_library(files, loader)
    if elf is None:
        raise HostError(
            f"{files.root}: {loader or 'the dynamic loader'} is missing, or is not a dynamic"
            " loader",
            hint="give the root directory of a dynamically linked Linux system",
        )
    before = _inherited_path(*interpreted) if interpreted and program else ()
    if PurePosixPath(loader).name.startswith("ld-musl-"):
        return _musl(files, loader, elf, before)
    return _glibc(files, loader, elf, before)


def read_library(files: RootFiles, path: str) -> LibraryFile | None:
    """Return an ELF file, or None if it is not one that the dynamic linker would accept."""
    data = files.mapped(path)
    if data is None:
        return None
    with data:
        try:
            return read_library_file(data)
        except ElfError:
            return None


def _interpreted(files: RootFiles, program: str | None) -> tuple[str, LibraryFile] | None:
    """Return the first program that names a loader, and the contents of its ELF file."""
    for path in (program, *_PROGRAMS):
        elf = read_library(files, path) if path else None
        if path and elf and elf.interpreter:
            return path, elf
    return None


def _present_loader(files: RootFiles) -> str:
    return next((each for each in _LOADERS if files.real_path(each)), "")


def _inherited_path(program: str, elf: LibraryFile) -> tuple[str, ...]:
    """Return the DT_RPATH of a program, which is also searched for what its libraries need.

    Interpreters of conda have one. DT_RUNPATH, which others have, applies to the program alone.
    """
    if not elf.is_rpath:
        return ()
    origin = str(PurePosixPath(program).parent)
    return tuple(
        each.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for each in elf.search_path
    )


def _musl(files: RootFiles, loader: str, elf: LibraryFile, before: tuple[str, ...]) -> CLibrary:
    name = PurePosixPath(loader).name
    return CLibrary(
        name="musl",
        version=_version(files, loader, _MUSL_VERSION),
        soname=f"libc.{name.removeprefix('ld-')}",
        loader=loader,
        loader_elf=elf,
        paths=musl_paths(files, loader, before),
    )


def _glibc(files: RootFiles, loader: str, elf: LibraryFile, before: tuple[str, ...]) -> CLibrary:
    paths = glibc_paths(files, loader, before)
    for path in paths.candidates(files, _GLIBC_SONAME):
        library = read_library(files, path)
        if library is not None and library.machine == elf.machine:
            return CLibrary(
                name="glibc",
                version=_version(files, path, _GLIBC_BANNER),
                soname=_GLIBC_SONAME,
                loader=loader,
                loader_elf=elf,
                paths=paths,
            )
    raise HostError(
        f"{files.root}: {_GLIBC_SONAME} is not in the directories that {loader} searches",
        hint="give the root directory of a complete system",
    )


def _version(files: RootFiles, path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    data = files.mapped(path)
    if data is not None:
        with data:
            if match := pattern.search(data):
                return int(match[1]), int(match[2])
    raise HostError(
        f"{files.root}: {path} does not contain its version",
        hint="Potluck supports glibc and musl; give a system that uses one of them",
    )
