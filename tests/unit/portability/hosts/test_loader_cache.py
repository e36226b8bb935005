"""The loader's cache is read as ldconfig writes it, in its two layouts and both byte orders."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from potluck.portability.hosts.c_library import CacheEntry, read_loader_cache

X86_64 = 0x0303
ENTRIES = (
    ("libz.so.1", "/usr/lib/libz.so.1", X86_64, 0),
    ("libfast.so.1", "/usr/lib/glibc-hwcaps/x86-64-v3/libfast.so.1", X86_64, 1 << 62),
    ("libfast.so.1", "/usr/lib/libfast.so.1", X86_64, 0),
    ("libz.so.1", "/usr/lib32/libz.so.1", 3, 0),
)
EXPECTED = tuple(
    CacheEntry(soname=soname, path=path, flags=flags)
    for soname, path, flags, features in ENTRIES
    if not features
)


def new_cache(order: str = "<", byte_order: int = 2) -> bytes:
    """glibc 2.32's and later layout, without an extension."""
    strings = b""
    table = b""
    start = 48 + 24 * len(ENTRIES)
    for soname, path, flags, features in ENTRIES:
        name_at = start + len(strings)
        strings += soname.encode() + b"\0"
        path_at = start + len(strings)
        strings += path.encode() + b"\0"
        table += struct.pack(f"{order}iIIIQ", flags, name_at, path_at, 0, features)
    header = struct.pack(f"{order}II", len(ENTRIES), len(strings)) + bytes([byte_order])
    return (b"glibc-ld.so.cache1.1" + header).ljust(48, b"\0") + table + strings


def old_and_new_cache() -> bytes:
    """What ldconfig wrote by default before 2.32: the old table, then a whole new cache."""
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + bytes(3 * 12)
    return old.ljust(-(-len(old) // 8) * 8, b"\0") + new_cache(byte_order=0)


@pytest.mark.parametrize("data", [new_cache(), new_cache(">", 3), old_and_new_cache()])
def test_every_layout_has_the_entries_for_all_cpus(data: bytes) -> None:
    assert read_loader_cache(data) == EXPECTED


def test_what_is_broken_or_none_has_no_entries() -> None:
    cache = new_cache()
    for end in range(len(cache)):
        assert read_loader_cache(cache[:end]) == ()
    assert read_loader_cache(b"ld.so-1.7.0\0" + bytes(40)) == ()
    assert read_loader_cache(cache[:20] + b"\xff\xff\xff\xff" + cache[24:]) == ()


def test_ldconfig_lists_the_same_on_this_machine() -> None:
    printed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    listed = re.findall(r"^\t(\S+) \((?!.*hwcap).*\) => (\S+)$", printed, re.MULTILINE)
    entries = read_loader_cache(Path("/etc/ld.so.cache").read_bytes())
    assert [(each.soname, each.path) for each in entries] == listed
    assert any(soname == "libc.so.6" for soname, _ in listed)
