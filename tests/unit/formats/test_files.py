from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.process_facts import num_descriptors

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import ReadOnlyFile, quoted, read_bytes


def test_reads_what_lies_at_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    file = ReadOnlyFile(path)
    assert (file.size, read_bytes(file, 3, 4), read_bytes(file, 10, 0)) == (10, b"3456", b"")
    file.close()


def test_a_read_only_file_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    path.chmod(0o444)
    file = ReadOnlyFile(path)
    assert read_bytes(file, 0, 1) == b"x"
    file.close()


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100_000))
    file = ReadOnlyFile(path)
    os.truncate(path, 5000)
    with pytest.raises(
        ModelFileError, match="it shrank from 100000 to 5000 bytes while it was read"
    ):
        read_bytes(file, 1000, 8000)
    file.close()


def test_more_than_there_is(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    with (
        closing(ReadOnlyFile(path)) as file,
        pytest.raises(ModelFileError, match="ends at byte 10, but must have at least 11 bytes"),
    ):
        read_bytes(file, 5, 6)


def test_a_released_file_holds_no_descriptor_and_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    monkeypatch.chdir(tmp_path)
    before = num_descriptors()
    file = ReadOnlyFile(Path("f"))
    assert num_descriptors() == before + 1
    file.release()
    file.release()
    assert num_descriptors() == before
    file.check_unchanged()
    monkeypatch.chdir("/")
    assert read_bytes(file, 3, 4) == b"3456"
    file.close()
    assert num_descriptors() == before
    with pytest.raises(ValueError, match="closed"):
        read_bytes(file, 0, 1)


def test_an_unchanged_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with closing(ReadOnlyFile(tmp_path / "f")) as file:
        read_bytes(file, 0, 10)
        file.check_unchanged()


def shrink(path: Path) -> None:
    os.truncate(path, 5)


def grow(path: Path) -> None:
    os.truncate(path, 50)


def write_and_set_the_time_back(path: Path) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"abcdefghij")
    os.utime(path, ns=times)


def replace(path: Path) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    other = path.with_name("other")
    other.write_bytes(b"abcdefghij")
    os.utime(other, ns=times)
    other.replace(path)


CHANGES = [
    (shrink, "it shrank from 10 to 5 bytes while it was read"),
    (grow, "the file changed while it was read"),
    (write_and_set_the_time_back, "the file changed while it was read"),
    (replace, "the file changed while it was read"),
    (Path.unlink, "it was removed while it was read"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_file_that_changed(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    with closing(ReadOnlyFile(path)) as file:
        file.release()
        time.sleep(0.02)  # the clock of a file system ticks every 4 to 10 ms
        change(path)
        with pytest.raises(ModelFileError, match=message) as caught:
            file.check_unchanged()
        assert caught.value.message.startswith(f"{path}: ")
        assert "write" in caught.value.hint
        for _ in range(2):  # what took its place is not taken for it later either
            with pytest.raises(ModelFileError, match=message):
                read_bytes(file, 0, 3)


@pytest.mark.parametrize("change", [shrink, grow, write_and_set_the_time_back])
def test_an_open_file_that_was_written_to(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    time.sleep(0.02)
    with closing(ReadOnlyFile(path)) as file:
        change(path)
        with pytest.raises(ModelFileError, match="while it was read"):
            file.check_unchanged()


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ModelFileError, match="Too many levels of symbolic links"):
        ReadOnlyFile(tmp_path / "a")


def test_closing_twice_is_allowed_and_reading_then_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    file = ReadOnlyFile(path)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        read_bytes(file, 0, 1)


@pytest.mark.parametrize("name", ["absent", "nul\0byte"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        ReadOnlyFile(tmp_path / name)


def test_a_pipe_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(ModelFileError, match="not a regular file"):
            ReadOnlyFile(path)


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    before = num_descriptors()
    for _ in range(3):
        with pytest.raises(ModelFileError):
            ReadOnlyFile(tmp_path)
    assert num_descriptors() == before


def test_what_is_not_a_directory_on_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="Not a directory"):
        ReadOnlyFile(tmp_path / "f" / "g")


def test_quoted_is_short_and_printable() -> None:
    assert quoted("a.b") == "'a.b'"
    assert quoted("a\n\ud800é") == r"'a\n\ud800\xe9'"
    assert len(quoted("x" * 1000)) < 80
