"""Archives that nobody vouches for."""

from __future__ import annotations

import re
import stat
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import pytest

from potluck.errors import WheelFileError
from potluck.portability.wheels import bounded_zip
from potluck.portability.wheels.bounded_zip import BoundedZip


def an_archive(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def read_all(path: Path) -> None:
    with BoundedZip(path) as archive:
        for name in archive.names:
            archive.read(name, most_bytes=1 << 30)


def refusal(path: Path) -> str:
    with pytest.raises(WheelFileError) as caught:
        read_all(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.problem


def test_members_are_read(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"data"), ("folder/", b""), ("folder/g", b""))
    with BoundedZip(path) as archive:
        assert archive.names == ("f", "folder/g")
        assert archive.read("f", most_bytes=4) == b"data"
        assert archive.starts_with("f", b"da")
        assert not archive.starts_with("f", b"at")
        assert not archive.starts_with("folder/g", b"d")
        with archive.data("f") as data:
            assert bytes(data) == b"data"
        with pytest.raises(WheelFileError, match="more than 3 bytes"):
            archive.read("f", most_bytes=3)


def test_large_members_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_zip, "_MAPPED_BYTES", 10)
    path = an_archive(tmp_path / "a.zip", ("f", b"0123456789!"))
    with BoundedZip(path) as archive, archive.data("f") as data:
        assert not isinstance(data, bytes)
        assert data[:] == b"0123456789!"


def test_a_full_disk_is_not_the_archives_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk() -> IO[bytes]:
        return open("/dev/full", "r+b", buffering=0)  # noqa: PTH123

    monkeypatch.setattr(bounded_zip, "_MAPPED_BYTES", 10)
    monkeypatch.setattr(tempfile, "TemporaryFile", full_disk)
    path = an_archive(tmp_path / "a.zip", ("f", b"0123456789!"))
    with (
        BoundedZip(path) as archive,
        pytest.raises(OSError, match="No space left"),
        archive.data("f"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../f", "outside the directory"),
        ("a/../../f", "outside the directory"),
        ("a/./f", "outside the directory"),
        ("a//f", "outside the directory"),
        ("/etc/passwd", "absolute"),
        ("C:/f", "absolute"),
        ("a\\f", "invalid characters"),
        ("a\nf", "invalid characters"),
        ("/", "absolute"),
    ],
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str, problem: str) -> None:
    assert problem in refusal(an_archive(tmp_path / "a.zip", (name, b"")))


def test_a_name_with_a_nul(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("safe.py#.so", b""))
    path.write_bytes(path.read_bytes().replace(b"safe.py#.so", b"safe.py\0.so"))
    assert "invalid characters" in refusal(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["f", "f/"])
def test_two_members_of_one_name(tmp_path: Path, second: str) -> None:
    assert "two members" in refusal(an_archive(tmp_path / "a.zip", ("f", b"1"), (second, b"")))


def test_two_spellings_of_one_name(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("\u00e9", b"1"), ("e\u0301", b"2"))
    assert "two members" in refusal(path)


def test_a_link(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("f")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "a link" in refusal(an_archive(tmp_path / "a.zip", (info, b"/etc/passwd")))


def test_an_encrypted_member(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"1"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "encrypted" in refusal(path)


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", bytes(1 << 20)))
    assert path.stat().st_size < 2000
    with BoundedZip(path):
        pass  # so little is no harm
    monkeypatch.setattr(bounded_zip, "_SMALL_BYTES", 1 << 19)
    assert "more than 100 times its size" in refusal(path)


def with_directory_field(path: Path, offset: int, layout: str, value: int) -> Path:
    """A field of the first member in the central directory, overwritten."""
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, data.index(b"PK\x01\x02") + offset, value)
    path.write_bytes(data)
    return path


_COMPRESSED_SIZE, _SIZE, _METHOD, _HEADER_OFFSET = 20, 24, 10, 42


@pytest.mark.parametrize("size", [3, 5, 60_000_000])
def test_a_size_that_is_a_lie(tmp_path: Path, size: int) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"data"))
    with_directory_field(path, _SIZE, "<I", size)
    assert "'f'" in refusal(path)


def test_a_member_larger_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_zip, "_MAX_MEMBER_BYTES", 3)
    assert "4 bytes" in refusal(an_archive(tmp_path / "a.zip", ("f", b"data")))


def test_members_on_top_of_each_other(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"data"), ("g", b"data"))
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    struct.pack_into("<I", data, second + _HEADER_OFFSET, 0)
    path.write_bytes(data)
    assert "overlaps another" in refusal(path)


def test_members_after_the_end(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"data"))
    assert "beyond its end" in refusal(with_directory_field(path, _COMPRESSED_SIZE, "<I", 1 << 20))


def test_an_unknown_method(tmp_path: Path) -> None:
    path = an_archive(tmp_path / "a.zip", ("f", b"data"))
    assert "malformed" in refusal(with_directory_field(path, _METHOD, "<H", 99))


def test_wrong_contents(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("f", b"data")
    path.write_bytes(path.read_bytes().replace(b"data", b"dada"))
    assert re.search("malformed.*CRC", refusal(path))


def test_more_members_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_zip, "_MAX_MEMBERS", 1)
    assert "2 members" in refusal(an_archive(tmp_path / "a.zip", ("f", b""), ("g", b"")))


def test_a_directory_larger_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_zip, "_MAX_DIRECTORY_BYTES", 100)
    members = [(f"{number:050}", b"") for number in range(4)]
    assert "directory is too large" in refusal(an_archive(tmp_path / "a.zip", *members))


@pytest.mark.parametrize("data", [b"", b"PK", b"no archive" * 10, b"PK\x05\x06" + bytes(18)])
def test_what_is_no_archive(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    if data.startswith(b"PK\x05\x06"):
        with BoundedZip(path) as archive:
            assert archive.names == ()
    else:
        assert "not a valid ZIP archive" in refusal(path)
