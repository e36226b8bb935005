"""Find which C library (glibc or musl) the programs of a system use, its version, and where its
loader looks for libraries, from files.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.errors import ElfError, HostError
from potluck.portability.hosts.library_file import LibraryFile, read_library_file
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


_CACHE = "/etc/ld.so.cache"
_CONFIGURATION = "/etc/ld.so.conf"
_BUILT_IN = re.compile(rb"(?:/[\w./+-]{0,200}/\0){1,16}")
"""glibc's loader contains its ``SYSTEM_DIRS`` one after the other, each ending in ``/``."""

_USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")

_MUSL_USUAL = "/lib:/usr/local/lib:/usr/lib"

_MAGIC = b"glibc-ld.so.cache1.1"

_HEADER_BYTES = 48

_BIG_ENDIAN = 3
"""Values of the two low bits of the flags: 2 is little-endian, 0 is written by ldconfig before
glibc 2.33.
"""

_MAX_ENTRIES = 1 << 17
"""A fully equipped desktop has some 10,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A library in the cache. ``flags`` identify its ABI, by glibc's numbers.

    This does not include what a process adds with ``LD_LIBRARY_PATH``, nor a loaded file's own
    search path (DT_RUNPATH). Sources: ``ld.so(8)``, ``ldconfig(8)``, glibc's ``elf/dl-load.c``,
    musl's ``ldso/dynlink.c``.
    """

    soname: str
    path: str
    flags: int


def read_loader_cache(data: bytes) -> tuple[CacheEntry, ...]:
    """Return the entries for every CPU, in the order of the file.

    Those for CPUs with certain features (``glibc-hwcaps``) are omitted: they are other builds of
    libraries that exist for all CPUs. The result is empty if ``data`` is not a cache or is
    malformed, which glibc ignores as well.

    Source: glibc's ``sysdeps/generic/dl-cache.h`` (``struct cache_file_new``, ``file_entry_new``,
    and the older ``struct cache_file``, which may come first).
    """
    start = data.find(_MAGIC)  # offsets are from there
    try:
        return () if start < 0 else tuple(_entries(data[start:]))
    except (struct.error, ValueError):
        return ()


def _entries(data: bytes) -> list[CacheEntry]:
    """Raise ``struct.error`` or ``ValueError`` if the file is truncated."""
    (byte_order,) = struct.unpack_from("B", data, 28)
    order = ">" if byte_order & 3 == _BIG_ENDIAN else "<"
    (num_entries,) = struct.unpack_from(f"{order}I", data, len(_MAGIC))
    if num_entries > _MAX_ENTRIES:
        raise ValueError(f"{num_entries} libraries")
    entry = struct.Struct(f"{order}iIIIQ")
    found = []
    for index in range(num_entries):
        flags, name, path, _, features = entry.unpack_from(data, _HEADER_BYTES + index * entry.size)
        if not features:
            found.append(
                CacheEntry(soname=_string(data, name), path=_string(data, path), flags=flags)
            )
    return found


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPaths:
    """``cache`` is searched first, then ``directories``, in their order.

    ``before`` are directories that are searched before both: DT_RPATH of the loading program.
    """

    before: tuple[str, ...]
    cache: tuple[CacheEntry, ...]
    directories: tuple[str, ...]

    def candidates(self, files: RootFiles, soname: str) -> Iterator[str]:
        """Return the files that may be opened for ``soname``, in order, including those of other
        ABIs.
        """
        for directory in self.before:
            if soname in files.names(directory):
                yield f"{directory}/{soname}"
        for entry in self.cache:
            if entry.soname == soname and _is_there(files, entry):
                yield entry.path
        for directory in self.directories:
            if soname in files.names(directory):
                yield f"{directory}/{soname}"

    def sonames(self, files: RootFiles, abi: int | None) -> frozenset[str]:
        """Return every library name for which a file is found.

        Entries of the cache count only if they are for ``abi`` (its flags), where that is known.
        """
        listed = (each for each in self.cache if abi is None or each.flags == abi)
        found = {each.soname for each in listed if _is_there(files, each)}
        for directory in (*self.before, *self.directories):
            found.update(name for name in files.names(directory) if _is_library(name))
        return frozenset(found)


def glibc_paths(files: RootFiles, loader: str, before: tuple[str, ...]) -> LoaderPaths:
    """Return glibc's search paths: the cache, and the directories that ``loader`` was built with.

    If there is no cache, as in a tree that was only unpacked, the directories that ldconfig would
    scan are searched instead.
    """
    built_in = _built_in_directories(files, loader)
    cache = read_loader_cache(files.content(_CACHE))
    configured = () if cache else tuple(_configured(files, _CONFIGURATION, set()))
    return LoaderPaths(
        before=before, cache=cache, directories=tuple(dict.fromkeys((*configured, *built_in)))
    )


def musl_paths(files: RootFiles, loader: str, before: tuple[str, ...]) -> LoaderPaths:
    """Return musl's search paths: those in ``/etc/ld-musl-<machine>.path``, or the default ones."""
    machine = PurePosixPath(loader).name.removeprefix("ld-musl-").partition(".")[0]
    text = files.text(f"/etc/ld-musl-{machine}.path") or _MUSL_USUAL
    directories = tuple(each for each in re.split(r"[:\n]", text) if each.startswith("/"))
    return LoaderPaths(before=before, cache=(), directories=directories)


def _built_in_directories(files: RootFiles, loader: str) -> tuple[str, ...]:
    data = files.mapped(loader)
    if data is None:
        return _USUAL
    with data:
        for run in _BUILT_IN.findall(data):
            if b"/lib" in run:
                return tuple(each.decode() for each in run.split(b"/\0") if each)
    return _USUAL


def _configured(files: RootFiles, path: str, read: set[str]) -> Iterator[str]:
    """Return the directories in a file in the format of ``ld.so.conf``, and in the files that it
    includes.

    Files in ``read`` are not read again, which prevents infinite recursion; ``path`` is added to
    it.
    """
    if path in read:
        return
    read.add(path)
    for line in files.text(path).splitlines():
        words = line.partition("#")[0].split()
        match words:
            case ["include", *patterns]:
                for pattern in patterns:
                    for included in files.matches(str(PurePosixPath(path).parent / pattern)):
                        yield from _configured(files, included, read)
            case [directory, *_] if directory.startswith("/"):
                yield directory.partition("=")[0]  # "/usr/lib=libc6" is an old format


def _is_there(files: RootFiles, entry: CacheEntry) -> bool:
    directory, _, name = entry.path.rpartition("/")
    return name in files.names(directory)


def _is_library(name: str) -> bool:
    return name.startswith("lib") and (name.endswith(".so") or ".so." in name)


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
