"""Where the loader of a system looks for a library that is requested by its name alone.

This does not include what a process adds with ``LD_LIBRARY_PATH``, nor a loaded file's own search
path (DT_RUNPATH). Sources: ``ld.so(8)``, ``ldconfig(8)``, glibc's ``elf/dl-load.c``, musl's
``ldso/dynlink.c``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.portability.hosts.root_files import RootFiles

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
    """A library in the cache. ``flags`` identify its ABI, by glibc's numbers."""

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
