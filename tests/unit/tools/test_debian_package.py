"""Debian packages are read as dpkg reads them, and broken ones are refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import PurePosixPath

import pytest

from tools.debian_package import DebianPackageError, archive_members, installed_files


def member(name: str, content: bytes) -> bytes:
    """One member of an ar archive, padded to an even length."""
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode("ascii") + content + b"\n" * (len(content) % 2)


def tar_xz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        folder = tarfile.TarInfo("./usr")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("./usr/link.h")
        link.type, link.linkname = tarfile.SYMTYPE, "a.h"
        archive.addfile(link)
    return buffer.getvalue()


def package(data: bytes) -> bytes:
    odd = member("control.tar.xz", b"odd")
    return b"!<arch>\n" + member("debian-binary", b"2.0\n") + odd + member("data.tar.xz", data)


def test_regular_files_are_found() -> None:
    made = package(tar_xz({"./usr/a.h": b"a", "./usr/b/c.h": b"cc"}))
    assert dict(installed_files(made)) == {
        PurePosixPath("usr/a.h"): b"a",
        PurePosixPath("usr/b/c.h"): b"cc",
    }
    assert [name for name, _ in archive_members(made)] == [
        "debian-binary",
        "control.tar.xz",
        "data.tar.xz",
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"PK\x03\x04",
        package(tar_xz({"./a": b"a"}))[:-2],
        package(b"not xz"),
        package(tar_xz({"./a": bytes(99_999)})[:200]),
        b"!<arch>\n" + member("debian-binary", b"2.0\n"),
        b"!<arch>\n" + b" " * 60,
    ],
)
def test_what_is_broken_is_refused(broken: bytes) -> None:
    with pytest.raises(DebianPackageError):
        list(installed_files(broken))
