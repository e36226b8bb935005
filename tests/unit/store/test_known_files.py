"""Files elsewhere on this disk: hashed once, and again after they changed."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import closing
from pathlib import Path

import pytest
from support.cluster.store_files import content_of, digests_of, some_bytes, started

from potluck.errors import DamagedChunkError, ModelFileError, ModelNotFoundError
from potluck.store import known_files
from potluck.store.known_files import KnownFiles
from potluck.store.local_file import LocalFile
from potluck.types.content import CHUNK_BYTES, FileContent

DATA = some_bytes(2 * CHUNK_BYTES + 77)
CONTENT = content_of(DATA)
DIGESTS = digests_of(DATA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def known(tmp_path: Path) -> KnownFiles:
    return KnownFiles(tmp_path / "known")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are hashed."""
    files: list[Path] = []
    really = known_files._hashed

    def note(path: Path, on_progress: known_files.OnProgress | None) -> object:
        files.append(path)
        return really(path, on_progress)

    monkeypatch.setattr(known_files, "_hashed", note)
    return files


def test_a_file_is_hashed_once(known: KnownFiles, path: Path, hashed: list[Path]) -> None:
    progress: list[tuple[int, int]] = []
    assert known.identify(path, lambda *done: progress.append(done)) == (CONTENT, DIGESTS)
    assert progress == [
        (CHUNK_BYTES, len(DATA)),
        (2 * CHUNK_BYTES, len(DATA)),
        (len(DATA), len(DATA)),
    ]
    assert known.identify(path) == (CONTENT, DIGESTS)
    assert hashed == [path]


def test_links_to_one_file_are_one_file(known: KnownFiles, path: Path, hashed: list[Path]) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    assert known.identify(link) == known.identify(path)
    assert hashed == [path]


def test_an_empty_file(known: KnownFiles, path: Path) -> None:
    path.write_bytes(b"")
    assert known.identify(path) == (content_of(b""), b"")


def test_a_changed_file_is_hashed_again(known: KnownFiles, path: Path, hashed: list[Path]) -> None:
    known.identify(path)
    other = some_bytes(len(DATA), seed=1)
    status = path.stat()
    path.write_bytes(other)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # and its time is set back
    assert known.identify(path) == (content_of(other), digests_of(other))
    assert len(hashed) == 2
    assert known.open(CONTENT.sha256) is None


def test_a_file_that_changes_meanwhile_is_refused(known: KnownFiles, path: Path) -> None:
    def change(done_bytes: int, num_bytes: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    with pytest.raises(ModelFileError, match="changed"):
        known.identify(path, change)
    assert known.open(CONTENT.sha256) is None


def test_what_is_no_file_is_refused(known: KnownFiles, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        known.identify(tmp_path / "absent")
    with pytest.raises(ModelFileError, match="not a regular file"):
        known.identify(tmp_path)


def test_a_known_file_is_opened_by_its_content(known: KnownFiles, path: Path) -> None:
    assert known.open(CONTENT.sha256) is None
    known.identify(path)
    found = known.open(CONTENT.sha256)
    assert found is not None
    with closing(found):
        assert found.content == CONTENT
        assert found.is_verified
        assert found.held() == ((0, 3),)
        assert b"".join(found.read_chunk(chunk) for chunk in range(3)) == DATA
        assert os.pread(found.descriptor(), len(DATA), 0) == DATA
    path.unlink()
    assert known.open(CONTENT.sha256) is None


def test_what_is_known_outlives_the_process(path: Path, tmp_path: Path, hashed: list[Path]) -> None:
    KnownFiles(tmp_path / "known").identify(path)
    assert KnownFiles(tmp_path / "known").identify(path) == (CONTENT, DIGESTS)
    assert len(hashed) == 1


def test_a_damaged_record_is_not_believed(path: Path, tmp_path: Path, hashed: list[Path]) -> None:
    known = KnownFiles(tmp_path / "known")
    known.identify(path)
    (record,) = (tmp_path / "known").glob("*.known")
    data = bytearray(record.read_bytes())
    data[-1] ^= 1
    record.write_bytes(data)
    assert known.identify(path) == (CONTENT, DIGESTS)
    assert len(hashed) == 2


@pytest.mark.slow
def test_two_processes_hash_a_file_once(path: Path, tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from potluck.store.known_files import KnownFiles
sys.stdin.read()
seen = []
def slowly(*done):
    seen.append(done)
    time.sleep(0.1)
KnownFiles(Path(sys.argv[1])).identify(Path(sys.argv[2]), slowly)
print(len(seen))
"""
    children = [started(script, tmp_path / "known", path) for _ in range(2)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    numbers = []
    for child in children:
        assert child.stdout is not None
        numbers.append(int(child.stdout.read()))
        child.stdout.close()
        child.wait()
    assert sorted(numbers) == [0, 3]


def test_a_folder_that_cannot_be_written_costs_only_time(
    path: Path, tmp_path: Path, hashed: list[Path]
) -> None:
    (tmp_path / "known").write_text("a file")
    known = KnownFiles(tmp_path / "known")
    assert known.identify(path) == known.identify(path) == (CONTENT, DIGESTS)
    assert len(hashed) == 2


def test_without_locks_a_file_is_hashed_as_well(
    known: KnownFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert known.identify(path) == (CONTENT, DIGESTS)


def test_the_oldest_records_are_forgotten(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "_MAX_RECORDS", 2)
    known = KnownFiles(tmp_path / "known")
    for i in range(4):
        other = tmp_path / f"{i}"
        other.write_bytes(bytes([i]))
        known.identify(other)
    assert len(list((tmp_path / "known").glob("*.known"))) == 2
    assert known.open(content_of(bytes([0])).sha256) is None


@pytest.mark.parametrize("how", ["written", "replaced", "removed", "shortened"])
def test_a_change_under_an_open_file_is_noticed(path: Path, how: str) -> None:
    with closing(LocalFile(path, CONTENT, digests=DIGESTS)) as file:
        file.check_unchanged()
        if how == "written":
            with path.open("r+b") as changed:
                changed.write(b"x")
        elif how == "replaced":
            other = path.with_name("other")
            other.write_bytes(DATA)
            other.rename(path)
        elif how == "removed":
            path.unlink()
        else:
            os.truncate(path, 5)
        with pytest.raises(ModelFileError, match=str(path)):
            file.check_unchanged()
        with pytest.raises(ModelFileError):
            file.read_chunk(0)


def test_a_chunk_without_its_digest_is_damaged(path: Path) -> None:
    wrong = digests_of(some_bytes(len(DATA), seed=3))
    with (
        closing(LocalFile(path, CONTENT, digests=wrong)) as file,
        pytest.raises(DamagedChunkError, match="chunk 1"),
    ):
        file.read_chunk(1)


def test_a_file_of_another_size_is_refused(path: Path) -> None:
    with pytest.raises(ModelFileError, match="changed"):
        LocalFile(path, FileContent(CONTENT.sha256, 5))
    with pytest.raises(ModelFileError, match="cannot be read"):
        LocalFile(path.with_name("absent"), CONTENT)


def test_a_record_survives_whoever_does_not_see_the_file(tmp_path: Path, path: Path) -> None:
    """Containers, and machines with one home, may share the folder and not the files."""
    known = KnownFiles(tmp_path / "shared")
    known.identify(path)
    path.rename(path.with_name("hidden"))
    assert known.open(CONTENT.sha256) is None
    assert list((tmp_path / "shared").glob("*.known"))
