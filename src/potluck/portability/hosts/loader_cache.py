"""``/etc/ld.so.cache``: which file glibc's loader opens for a library's name.

Source: glibc's ``sysdeps/generic/dl-cache.h`` (``struct cache_file_new``, ``file_entry_new``, and
the older ``struct cache_file``, which may come first).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
