"""Which C library the programs of a system use, and in which version: glibc or musl, from files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.errors import ElfError, HostError
from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_reader import read_elf
from potluck.portability.loader_paths import LoaderPaths, glibc_paths, musl_paths
from potluck.portability.root_files import RootFiles

_GLIBC_SONAME = "libc.so.6"

_PROGRAMS = ("/bin/sh", "/usr/bin/env", "/bin/busybox")
"""Whose loader is the system's. One of them is everywhere, though it may be linked statically."""

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
"""For a tree without programs: the place of a loader is part of its ABI."""

_GLIBC_BANNER = re.compile(rb"GNU C Library [^\n]{0,200}? release version (\d+)\.(\d+)")
"""What the library prints when it is run. Its newest version definition may be older."""

_MUSL_VERSION = re.compile(rb"\0(1)\.(\d+)\.\d+(?:-git-[\w-]+)?\0")
"""musl's ``__libc_version``. Tags of wheels have its first two numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CLibrary:
    """``name`` is ``glibc`` or ``musl``; ``paths`` are where its ``loader`` looks for libraries."""

    name: str
    version: tuple[int, int]
    soname: str
    loader: str
    loader_elf: ElfFile
    paths: LoaderPaths

    @property
    def machine(self) -> str:
        """As ``uname -m`` says it."""
        return self.loader_elf.machine


def find_c_library(files: RootFiles, program: str | None) -> CLibrary:
    """That of ``program``, or of the system's shell if None, or of whatever loader there is.

    Raises HostError if there is none, or none that can be made out.
    """
    interpreted = _interpreted(files, program)
    loader = interpreted[1].interpreter if interpreted else _present_loader(files)
    elf = read_library(files, loader)
    if elf is None:
        raise HostError(
            f"{files.root}: {loader or 'the dynamic loader'} is not there, or is none",
            hint="name the root directory of a Linux system that is linked dynamically",
        )
    before = _inherited_path(*interpreted) if interpreted and program else ()
    if PurePosixPath(loader).name.startswith("ld-musl-"):
        return _musl(files, loader, elf, before)
    return _glibc(files, loader, elf, before)


def read_library(files: RootFiles, path: str) -> ElfFile | None:
    """An ELF file, or None if it is none that the dynamic linker would take."""
    data = files.mapped(path)
    if data is None:
        return None
    with data:
        try:
            return read_elf(data)
        except ElfError:
            return None


def _interpreted(files: RootFiles, program: str | None) -> tuple[str, ElfFile] | None:
    """The first program that names a loader, and what its file says."""
    for path in (program, *_PROGRAMS):
        elf = read_library(files, path) if path else None
        if path and elf and elf.interpreter:
            return path, elf
    return None


def _present_loader(files: RootFiles) -> str:
    return next((each for each in _LOADERS if files.real_path(each)), "")


def _inherited_path(program: str, elf: ElfFile) -> tuple[str, ...]:
    """The DT_RPATH of a program, which is searched also for what its libraries need.

    Interpreters of conda have one. DT_RUNPATH, which others have, holds for the program alone.
    """
    if not elf.is_rpath:
        return ()
    origin = str(PurePosixPath(program).parent)
    return tuple(
        each.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for each in elf.search_path
    )


def _musl(files: RootFiles, loader: str, elf: ElfFile, before: tuple[str, ...]) -> CLibrary:
    name = PurePosixPath(loader).name
    return CLibrary(
        name="musl",
        version=_version(files, loader, _MUSL_VERSION),
        soname=f"libc.{name.removeprefix('ld-')}",
        loader=loader,
        loader_elf=elf,
        paths=musl_paths(files, loader, before),
    )


def _glibc(files: RootFiles, loader: str, elf: ElfFile, before: tuple[str, ...]) -> CLibrary:
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
        f"{files.root}: no {_GLIBC_SONAME} where {loader} looks for it",
        hint="name the root directory of a whole system",
    )


def _version(files: RootFiles, path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    data = files.mapped(path)
    if data is not None:
        with data:
            if match := pattern.search(data):
                return int(match[1]), int(match[2])
    raise HostError(
        f"{files.root}: {path} does not say its version",
        hint="Potluck knows glibc and musl; describe what programs there are linked with",
    )
