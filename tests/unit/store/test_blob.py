"""One file in the store: its chunks, their digests, and what a crash leaves of it."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from support.cluster.store_files import chunks_of, content_of, digests_of, some_bytes, started

from potluck.errors import DamagedChunkError, StoreFullError
from potluck.store import index
from potluck.store.blob import Blob
from potluck.store.content_store import ContentStore
from potluck.store.index import BlobIndex, ChunkState
from potluck.types.content import CHUNK_BYTES, DIGEST_BYTES, FileContent

LIMIT = 64 * CHUNK_BYTES
DATA = some_bytes(3 * CHUNK_BYTES + 1000)
CHUNKS = chunks_of(DATA)
CONTENT = content_of(DATA)
DIGESTS = digests_of(DATA)


def digest(chunk: int) -> bytes:
    return DIGESTS[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]


def data_path(folder: Path) -> Path:
    return folder / f"{CONTENT.sha256}-{CONTENT.num_bytes}.data"


def index_path(folder: Path) -> Path:
    return data_path(folder).with_suffix(".index")


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path, LIMIT)


@pytest.fixture
def blob(store: ContentStore) -> Blob:
    return store.blob(CONTENT, label="model.gguf")


def filled(blob: Blob) -> Blob:
    for chunk in range(4):
        blob.write_chunk(chunk, CHUNKS[chunk])
    return blob


def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.urandom(16)
    monkeypatch.setattr(index, "boot_mark", lambda: other)


def test_chunks_are_kept_in_any_order(blob: Blob, store: ContentStore) -> None:
    for chunk in (3, 0, 2):
        assert blob.write_chunk(chunk, CHUNKS[chunk]) == digest(chunk)
    assert blob.held() == ((0, 1), (2, 4))
    assert [blob.holds(chunk) for chunk in range(4)] == [True, False, True, True]
    assert [blob.digest(chunk) for chunk in range(4)] == [digest(0), None, digest(2), digest(3)]
    assert blob.all_digests is None
    assert not blob.is_whole
    blob.write_chunk(1, memoryview(CHUNKS[1]))
    assert blob.is_whole
    assert blob.all_digests == DIGESTS
    assert os.pread(blob.descriptor(), len(DATA), 0) == DATA
    blob.close()
    with closing(store.blob(CONTENT)) as again:
        assert b"".join(again.read_chunk(chunk) for chunk in range(4)) == DATA
        assert again.label == "model.gguf"


def test_a_digest_that_is_known_already_is_not_computed_again(
    blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = digest(0)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "sha256", lambda _: pytest.fail("hashed again"))
        assert blob.write_chunk(0, CHUNKS[0], known) == known
    assert blob.read_chunk(0) == CHUNKS[0]


def test_the_descriptor_cannot_be_written_to(blob: Blob) -> None:
    with pytest.raises(OSError, match="Bad file"):
        os.pwrite(blob.descriptor(), b"x", 0)


@pytest.mark.parametrize(("chunk", "data"), [(4, CHUNKS[3]), (-1, CHUNKS[0]), (0, CHUNKS[3])])
def test_what_is_no_chunk_is_refused(blob: Blob, chunk: int, data: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        blob.write_chunk(chunk, data)


def test_an_empty_file_is_whole(store: ContentStore) -> None:
    with closing(store.blob(content_of(b""))) as blob:
        assert blob.is_whole
        assert blob.held() == ()
        assert blob.all_digests == b""


def test_a_held_chunk_is_not_overwritten_with_another(blob: Blob) -> None:
    blob.write_chunk(0, CHUNKS[0])
    with pytest.raises(DamagedChunkError, match="SHA-256") as caught:
        blob.write_chunk(0, CHUNKS[1])
    assert caught.value.chunk == 0
    assert "model.gguf" in caught.value.message
    assert blob.read_chunk(0) == CHUNKS[0]


def test_known_digests_of_chunks_that_are_not_held_are_checked(blob: Blob) -> None:
    blob.write_chunk(0, CHUNKS[0])
    assert not blob.is_verified
    blob.mark_verified(DIGESTS)
    assert [blob.digest(chunk) for chunk in range(4)] == [digest(chunk) for chunk in range(4)]
    with pytest.raises(DamagedChunkError):
        blob.write_chunk(1, CHUNKS[2])
    assert blob.held() == ((0, 1),)
    blob.write_chunk(1, CHUNKS[1])
    assert blob.held() == ((0, 2),)


def test_verified_digests_drop_what_differs(blob: Blob, store: ContentStore) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.write_chunk(1, CHUNKS[2])
    assert blob.held() == ((0, 2),)
    blob.mark_verified(DIGESTS)
    assert blob.is_verified
    assert blob.held() == ((0, 1),)
    assert blob.all_digests == DIGESTS
    with pytest.raises(DamagedChunkError):
        blob.write_chunk(1, CHUNKS[2])
    blob.close()
    with closing(store.blob(CONTENT)) as again:
        assert again.is_verified
        assert again.held() == ((0, 1),)


def test_verified_digests_must_be_of_all_chunks(blob: Blob) -> None:
    with pytest.raises(ValueError, match="digests"):
        blob.mark_verified(DIGESTS[:-1])


@pytest.mark.parametrize("is_verified", [False, True])
def test_a_damaged_chunk_is_dropped_when_it_is_read(
    blob: Blob, tmp_path: Path, is_verified: bool
) -> None:
    filled(blob)
    if is_verified:
        blob.mark_verified(DIGESTS)
    with data_path(tmp_path).open("r+b") as file:
        file.seek(2 * CHUNK_BYTES + 77)
        file.write(b"rotten")
    with pytest.raises(DamagedChunkError, match="chunk 2 is damaged"):
        blob.read_chunk(2)
    assert blob.held() == ((0, 2), (3, 4))
    assert blob.digest(2) == (digest(2) if is_verified else None)
    with pytest.raises(DamagedChunkError, match="not in the store"):
        blob.read_chunk(2)
    blob.write_chunk(2, CHUNKS[2])
    assert blob.read_chunk(2) == CHUNKS[2]


def test_what_was_not_synced_is_hashed_after_a_loss_of_power(
    store: ContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = filled(store.blob(CONTENT))
    # The machine goes down: nothing is closed, and chunk 1 did not reach the disk.
    with data_path(tmp_path).open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(bytes(CHUNK_BYTES))
    reboot(monkeypatch)
    with closing(store.blob(CONTENT)) as blob:
        assert blob.held() == ((0, 1), (2, 4))
        assert blob.read_chunk(3) == CHUNKS[3]
    lost.close()


@pytest.mark.parametrize("fails", ["pread", "fdatasync"])
def test_a_disk_that_fails_after_a_loss_of_power_loses_chunks(
    store: ContentStore, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = filled(store.blob(CONTENT))
    reboot(monkeypatch)
    succeeding = getattr(os, fails)

    def fail(descriptor: int, *arguments: int) -> bytes:
        if not arguments or arguments[1] == CHUNK_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return cast(bytes, succeeding(descriptor, *arguments))

    monkeypatch.setattr(os, fails, fail)
    found = store.find(CONTENT.sha256)
    if fails == "fdatasync":
        assert found is None
    else:
        assert isinstance(found, Blob)
        assert found.held() == ((0, 1), (2, 4))
        found.close()
    store.blob(CONTENT).close()
    lost.close()


def test_what_was_synced_is_not_hashed_again(
    blob: Blob, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.close()
    reboot(monkeypatch)
    counted = _count_reads(monkeypatch)
    with closing(store.blob(CONTENT)) as again:
        assert again.held() == ((0, 1),)
    assert counted[0] == 0


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the reads of whole chunks."""
    counted = [0]
    pread = os.pread

    def read(descriptor: int, num_bytes: int, offset: int) -> bytes:
        counted[0] += num_bytes >= CHUNK_BYTES
        return pread(descriptor, num_bytes, offset)

    monkeypatch.setattr(os, "pread", read)
    return counted


def test_a_loss_of_power_is_recovered_from_once(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = store.blob(CONTENT)
    lost.write_chunk(0, CHUNKS[0])
    reboot(monkeypatch)
    counted = _count_reads(monkeypatch)
    store.blob(CONTENT).close()
    assert counted[0] == 1
    store.blob(CONTENT).close()
    assert counted[0] == 1
    lost.close()


def test_a_killed_process_leaves_what_it_wrote(store: ContentStore, tmp_path: Path) -> None:
    child = started(
        """
import sys
from pathlib import Path
from potluck.store.content_store import ContentStore
from potluck.types.content import CHUNK_BYTES, FileContent
store = ContentStore(Path(sys.argv[1]), 2**26)
blob = store.blob(FileContent(sys.argv[2], int(sys.argv[3])))
blob.write_chunk(1, b"x" * CHUNK_BYTES)
print("written", flush=True)
sys.stdin.read()
""",
        tmp_path,
        CONTENT.sha256,
        str(CONTENT.num_bytes),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    child.kill()
    child.communicate()
    with closing(store.blob(CONTENT)) as blob:
        assert blob.held() == ((1, 2),)
        assert blob.read_chunk(1) == b"x" * CHUNK_BYTES


@pytest.mark.parametrize("at", [0, 20, 60, 100_000])
def test_a_damaged_index_counts_as_nothing_held(
    blob: Blob, store: ContentStore, tmp_path: Path, at: int
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.mark_verified(DIGESTS)
    blob.close()
    with index_path(tmp_path).open("r+b") as file:
        if at < 1000:
            file.seek(at)
            file.write(b"rotten")
        else:
            file.truncate(600)
    assert store.find(CONTENT.sha256) is None
    with closing(store.blob(CONTENT)) as again:
        assert again.held() == ()
        assert [again.digest(chunk) for chunk in range(4)] == [None] * 4
        again.write_chunk(0, CHUNKS[0])
        assert again.read_chunk(0) == CHUNKS[0]


def test_damaged_digests_of_a_verified_file_are_not_believed(
    blob: Blob, store: ContentStore, tmp_path: Path
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.mark_verified(DIGESTS)
    blob.close()
    path = index_path(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with closing(store.blob(CONTENT)) as again:
        assert not again.is_verified
        assert again.held() == ()


@pytest.mark.parametrize("is_gone", [True, False])
def test_data_that_is_gone_or_short_counts_as_nothing_held(
    blob: Blob, store: ContentStore, tmp_path: Path, is_gone: bool
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.close()
    path = data_path(tmp_path)
    if is_gone:
        path.unlink()
    else:
        os.truncate(path, 5)
    with closing(store.blob(CONTENT)) as again:
        assert again.held() == ()


def test_several_holders_see_what_each_writes(blob: Blob, store: ContentStore) -> None:
    with closing(store.blob(CONTENT)) as other:
        blob.write_chunk(2, CHUNKS[2])
        assert other.held() == ((2, 3),)
        assert other.read_chunk(2) == CHUNKS[2]
        other.write_chunk(0, CHUNKS[0])
        assert blob.read_chunk(0) == CHUNKS[0]


def test_threads_write_at_once(tmp_path: Path) -> None:
    data = some_bytes(24 * CHUNK_BYTES + 5, seed=1)
    chunks = chunks_of(data)
    store = ContentStore(tmp_path, 2**30)
    blobs = [store.blob(content_of(data)) for _ in range(3)]
    failures: list[BaseException] = []

    def write(blob: Blob) -> None:
        try:
            for chunk in range(len(chunks)):
                blob.write_chunk(chunk, chunks[chunk])
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=[blob]) for blob in blobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert blobs[0].all_digests == digests_of(data)
    assert os.pread(blobs[2].descriptor(), len(data), 0) == data
    for blob in blobs:
        blob.close()


def test_processes_write_at_once(store: ContentStore, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from potluck.store.content_store import ContentStore
from potluck.types.content import CHUNK_BYTES, FileContent
store = ContentStore(Path(sys.argv[1]), 2**26)
sys.stdin.read()
blob = store.blob(FileContent(sys.argv[2], 20 * CHUNK_BYTES))
for chunk in range(20):
    blob.write_chunk(chunk, bytes([chunk]) * CHUNK_BYTES)
blob.close()
"""
    content = FileContent("ab" * 32, 20 * CHUNK_BYTES)
    children = [started(script, tmp_path, content.sha256) for _ in range(3)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    assert [child.wait() for child in children] == [0, 0, 0]
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
    with closing(store.blob(content)) as blob:
        assert blob.is_whole
        for chunk in range(20):
            assert blob.read_chunk(chunk) == bytes([chunk]) * CHUNK_BYTES


def failing_writes(
    number: int, times: int, num_bytes: int = CHUNK_BYTES
) -> Callable[[int, bytes, int], int]:
    """``os.pwrite`` that fails so often for so many bytes."""
    pwrite = os.pwrite
    left = [times]

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) == num_bytes and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return pwrite(descriptor, data, offset)

    return write


@pytest.mark.parametrize("num_bytes", [CHUNK_BYTES, DIGEST_BYTES, 1])
def test_a_full_disk_is_said_and_keeps_nothing(
    blob: Blob, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing_writes(errno.ENOSPC, 9, num_bytes))
        with pytest.raises(StoreFullError, match="No space left") as caught:
            blob.write_chunk(1, CHUNKS[1])
    assert "--no-store" in caught.value.hint
    assert blob.held() == ((0, 1),)
    blob.write_chunk(1, CHUNKS[1])
    assert blob.read_chunk(1) == CHUNKS[1]


def test_a_full_disk_is_relieved_of_what_nobody_uses(
    blob: Blob, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = some_bytes(5000, seed=5)
    with closing(store.blob(content_of(old))) as other:
        other.write_chunk(0, old)
    monkeypatch.setattr(os, "pwrite", failing_writes(errno.ENOSPC, 1))
    blob.write_chunk(1, CHUNKS[1])
    assert blob.read_chunk(1) == CHUNKS[1]
    assert store.find(content_of(old).sha256) is None


def test_a_sync_that_fails_unholds_what_it_was_for(
    blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    blob.sync()
    blob.write_chunk(1, CHUNKS[1])

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreFullError, match="Input/output"):
            blob.sync()
    assert blob.held() == ((0, 1),)


def test_wrong_bytes_are_removed_whoever_uses_them(
    blob: Blob, store: ContentStore, tmp_path: Path
) -> None:
    blob.write_chunk(0, CHUNKS[0])
    with closing(store.blob(CONTENT)) as other:
        blob.remove()
        assert other.held() == ()
        assert not index_path(tmp_path).exists()
        assert not data_path(tmp_path).exists()
        with closing(store.blob(CONTENT)) as new:
            new.write_chunk(1, CHUNKS[1])
            for _ in range(2):
                with pytest.raises(StoreFullError):
                    other.write_chunk(2, CHUNKS[2])
            assert (new.held(), other.held()) == (((1, 2),), ())


def test_closing_twice_does_nothing(blob: Blob) -> None:
    blob.close()
    blob.close()


def test_states_are_marked_synced_only_after_the_disk_has_the_bytes(
    blob: Blob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ChunkState] = []
    with closing(BlobIndex(index_path(tmp_path), CONTENT)) as other:
        monkeypatch.setattr(os, "fdatasync", lambda _: seen.append(other.state(0)))
        blob.write_chunk(0, CHUNKS[0])
        blob.sync()
        assert seen == [ChunkState.DIGEST | ChunkState.HELD] * 2
        assert other.state(0) & ChunkState.SYNCED
