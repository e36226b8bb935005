"""``tools/roots``: what is fetched is checked, what is made is whole."""

from __future__ import annotations

import hashlib
import lzma
import zipfile
from pathlib import Path

import pytest

from tools.roots.archive import ArchiveError, Package, download, find_packages
from tools.roots.made_once import made_once
from tools.roots.package_set import PackageSet, interpreter_parts, roots
from tools.roots.wheel_site import SITE, manylinux_platforms, unzip_wheel

CONTENT = b"a package"


def archive_of(folder: Path, *packages: str) -> PackageSet:
    """A set of an archive in a folder, which has ``libc6`` and nothing else."""
    index = folder / "dists/old/main/binary-arm64/Packages.xz"
    index.parent.mkdir(parents=True)
    stanzas = (
        "Package: libc6-dev\nFilename: pool/libc6-dev.deb\nSize: 1\nSHA256: 00",
        "Package: libc6\nDescription: libraries\n more: of it\nFilename: pool/libc6.deb\n"
        f"Size: {len(CONTENT)}\nSHA256: {hashlib.sha256(CONTENT).hexdigest()}\n",
    )
    index.write_bytes(lzma.compress("\n\n".join(stanzas).encode()))
    (folder / "pool").mkdir()
    (folder / "pool/libc6.deb").write_bytes(CONTENT)
    return PackageSet(
        name="old-arm64",
        archive=folder.as_uri(),
        suite="old",
        architecture="arm64",
        packages=packages,
    )


def test_a_package_is_found_and_fetched_once(tmp_path: Path) -> None:
    (package,) = find_packages(archive_of(tmp_path, "libc6"))
    assert package.name == "libc6"
    path = download(package, tmp_path / "downloads")
    assert path.read_bytes() == CONTENT
    (tmp_path / "pool/libc6.deb").unlink()
    assert download(package, tmp_path / "downloads") == path


def test_a_package_that_the_index_lacks(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="has no libm6"):
        find_packages(archive_of(tmp_path, "libc6", "libm6"))


def test_another_file_than_the_index_says_is_refused(tmp_path: Path) -> None:
    (package,) = find_packages(archive_of(tmp_path, "libc6"))
    (tmp_path / "pool/libc6.deb").write_bytes(CONTENT[::-1])
    with pytest.raises(ArchiveError, match="not what the index says"):
        download(package, tmp_path / "downloads")
    assert not list((tmp_path / "downloads").glob("*"))


def test_what_is_not_there_is_an_error_of_the_archive(tmp_path: Path) -> None:
    url = (tmp_path / "nothing").as_uri()
    with pytest.raises(ArchiveError, match=url):
        download(Package(name="x", url=url, size_bytes=0, sha256=""), tmp_path)


def test_a_folder_is_made_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with pytest.raises(FileExistsError), made_once(path) as made:
        fill(made, "half", "half")
    assert not path.exists()
    with made_once(path) as made:
        fill(made, "whole")
    with made_once(path) as made:
        assert made is None
    assert [each.name for each in path.iterdir()] == ["whole"]


def fill(folder: Path | None, *names: str) -> None:
    assert folder is not None
    for name in names:
        (folder / name).touch(exist_ok=False)


def test_roots_are_told_apart_and_each_machine_has_an_interpreter() -> None:
    assert len({each.digest for each in roots().values()}) == len(roots())
    machines = {each.machine for each in roots().values()}
    assert machines == {"x86_64", "aarch64"}
    assert {interpreter_parts(machine).machine for machine in machines} == machines


def test_platforms_of_an_old_library() -> None:
    assert manylinux_platforms("aarch64", 19) == (
        "manylinux_2_19_aarch64",
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    )
    platforms = manylinux_platforms("x86_64", 12)
    assert platforms[0] == "manylinux_2_12_x86_64"
    assert platforms[-2:] == ("manylinux2010_x86_64", "manylinux1_x86_64")


def test_what_a_wheel_puts_in_its_data_is_installed_beside_the_rest(tmp_path: Path) -> None:
    wheel, prefix = tmp_path / "x.whl", tmp_path / "prefix"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/__init__.py", "")
        archive.writestr("x-1.data/platlib/x/lib/core.so", "core")
        archive.writestr("x-1.data/data/share/x", "shared")
    unzip_wheel(wheel, prefix)
    assert (prefix / SITE / "x/__init__.py").exists()
    assert (prefix / SITE / "x/lib/core.so").read_text() == "core"
    assert (prefix / "share/x").read_text() == "shared"
