from __future__ import annotations

import os
from pathlib import Path

import pytest

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import ReadOnlyFile, quoted


def test_reads_what_lies_at_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    file = ReadOnlyFile(path)
    assert (file.size, file.read(3, 4), file.read(10, 0)) == (10, b"3456", b"")
    file.close()


def test_a_read_only_file_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    path.chmod(0o444)
    file = ReadOnlyFile(path)
    assert file.read(0, 1) == b"x"
    file.close()


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100_000))
    file = ReadOnlyFile(path)
    os.truncate(path, 5000)
    with pytest.raises(ModelFileError, match=r"ends at byte 5000, and bytes up to 9000 are needed"):
        file.read(1000, 8000)
    file.close()


def test_closing_twice_is_allowed_and_reading_then_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    file = ReadOnlyFile(path)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)


@pytest.mark.parametrize("name", ["absent", "nul\0byte"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        ReadOnlyFile(tmp_path / name)


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelFileError, match="not a regular file"):
            ReadOnlyFile(path)


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(ModelFileError):
            ReadOnlyFile(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_not_a_directory_on_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="Not a directory"):
        ReadOnlyFile(tmp_path / "f" / "g")


def test_quoted_is_short_and_printable() -> None:
    assert quoted("a.b") == "'a.b'"
    assert quoted("a\n\ud800é") == r"'a\n\ud800\xe9'"
    assert len(quoted("x" * 1000)) < 80
