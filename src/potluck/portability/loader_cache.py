"""``/etc/ld.so.cache``: which file glibc's loader opens for the name of a library.

Source: glibc's ``sysdeps/generic/dl-cache.h`` (``struct cache_file_new``, ``file_entry_new``, and
``struct cache_file`` of before, which may come first).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER_BYTES = 48

_BIG_ENDIAN = 3
"""Of the two low bits of the flags; 2 is little endian, 0 that of ldconfig before glibc 2.33."""

_MAX_ENTRIES = 1 << 17
"""A desktop with everything has some 10,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A library of the cache. ``flags`` tell the ABI it is for, by numbers of glibc's."""

    soname: str
    path: str
    flags: int


def read_loader_cache(data: bytes) -> tuple[CacheEntry, ...]:
    """The entries for every CPU, in the order of the file.

    Those for CPUs with certain features only (``glibc-hwcaps``) are left out: they are other builds
    of what is there for all. Nothing, if ``data`` is no cache or a broken one, as glibc takes it.
    """
    start = data.find(_MAGIC)  # offsets are from there
    try:
        return () if start < 0 else tuple(_entries(data[start:]))
    except (struct.error, ValueError):
        return ()


def _entries(data: bytes) -> list[CacheEntry]:
    """Raises struct.error or ValueError where the file ends too soon."""
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
