"""Where a loader looks: its cache, what it was built with, and what ldconfig would read."""

from __future__ import annotations

from pathlib import Path

from support.machines.machine_tree import machine_tree

from potluck.portability.hosts.c_library import CacheEntry, LoaderPaths, glibc_paths, musl_paths
from potluck.portability.hosts.root_files import RootFiles

LOADER = "/lib/ld-linux-aarch64.so.1"
BUILT_IN = (
    b"\x7fELF junk\0/etc/\0\0/lib/aarch64-linux-gnu/\0/usr/lib/aarch64-linux-gnu/\0/lib/\0\1\2"
)


def tree(root: Path, files: dict[str, str | bytes | Path]) -> RootFiles:
    machine_tree(root, files)
    return RootFiles(root)


def test_directories_are_those_that_the_loader_was_built_with(tmp_path: Path) -> None:
    files = tree(tmp_path, {LOADER[1:]: BUILT_IN})
    assert glibc_paths(files, LOADER, ()).directories == (
        "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib",
    )


def test_a_loader_that_does_not_tell_has_the_usual_ones(tmp_path: Path) -> None:
    files = tree(tmp_path, {LOADER[1:]: b"\x7fELF nothing"})
    assert glibc_paths(files, LOADER, ()).directories[-2:] == ("/lib", "/usr/lib")


def test_without_a_cache_the_configured_directories_come_first(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            LOADER[1:]: BUILT_IN,
            "etc/ld.so.conf": "# all\ninclude /etc/ld.so.conf.d/*.conf\n/opt/last # why",
            "etc/ld.so.conf.d/b.conf": "/opt/b=libc6\nrelative/dir\ninclude a.conf",
            "etc/ld.so.conf.d/a.conf": "hwcap 1 nosegneg\n/opt/a\ninclude ../ld.so.conf",
        },
    )
    directories = glibc_paths(files, LOADER, ()).directories
    # a.conf includes the file that included it; a "../" is part of its path there.
    assert [each for each in directories if each.startswith("/opt")] == [
        "/opt/a",
        "/opt/b",
        "/opt/last",
    ]
    assert directories[-1] == "/lib"


def test_the_first_file_of_a_name_is_the_one_that_is_there(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "opt/env/lib/libz.so.1": b"",
            "usr/lib/libz.so.1": b"",
            "usr/lib32/libz.so.1": b"",
            "lib/libz.so.1": b"",
            "lib/libm.so.6": b"",
            "lib/notes.so.txt": b"",
        },
    )
    paths = LoaderPaths(
        before=("/opt/env/lib",),
        cache=(
            CacheEntry(soname="libz.so.1", path="/gone/libz.so.1", flags=1),
            CacheEntry(soname="libz.so.1", path="/usr/lib32/libz.so.1", flags=3),
            CacheEntry(soname="libz.so.1", path="/usr/lib/libz.so.1", flags=1),
            CacheEntry(soname="libgone.so.1", path="/gone/libgone.so.1", flags=1),
            CacheEntry(soname="libother.so.1", path="/usr/lib32/libz.so.1", flags=3),
        ),
        directories=("/lib",),
    )
    assert list(paths.candidates(files, "libz.so.1")) == [
        "/opt/env/lib/libz.so.1",
        "/usr/lib32/libz.so.1",
        "/usr/lib/libz.so.1",
        "/lib/libz.so.1",
    ]
    assert paths.sonames(files, abi=1) == {"libz.so.1", "libm.so.6"}
    assert paths.sonames(files, abi=None) == {"libz.so.1", "libm.so.6", "libother.so.1"}


def test_musl_has_its_own_file_of_directories(tmp_path: Path) -> None:
    loader = "/lib/ld-musl-x86_64.so.1"
    assert musl_paths(tree(tmp_path / "a", {}), loader, ()).directories == (
        "/lib",
        "/usr/local/lib",
        "/usr/lib",
    )
    files = tree(tmp_path / "b", {"etc/ld-musl-x86_64.path": "/one:/two\n/three"})
    assert musl_paths(files, loader, ()).directories == ("/one", "/two", "/three")
