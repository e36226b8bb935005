"""The store: what it finds, what it removes, and what it never removes."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.cluster.store_files import chunks_of, content_of, some_bytes, started

from potluck.errors import ModelFileError, StoreFullError
from potluck.store.blob import Blob
from potluck.store.content_store import (
    ContentStore,
    default_limit_bytes,
    default_store_folder,
)
from potluck.store.local_file import LocalFile
from potluck.types.content import CHUNK_BYTES, FileContent

LIMIT = 4 * CHUNK_BYTES


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "weights", LIMIT)


def kept(store: ContentStore, seed: int, num_bytes: int = CHUNK_BYTES) -> FileContent:
    """A file that the store has and nobody uses; each is used later than the one before."""
    data = some_bytes(num_bytes, seed)
    with closing(store.blob(content_of(data), label=f"file {seed}")) as blob:
        for chunk, part in enumerate(chunks_of(data)):
            blob.write_chunk(chunk, part)
    path = store.folder / f"{blob.content.sha256}-{num_bytes}.data"
    os.utime(path, (1000 + seed, 1000 + seed))
    return blob.content


def has(store: ContentStore, content: FileContent) -> bool:
    found = store.find(content.sha256)
    if found is None:
        return False
    found.close()
    return True


def names(folder: Path) -> set[str]:
    return {path.suffix for path in folder.iterdir()}


def test_nothing_is_made_by_asking(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "weights", LIMIT)
    assert store.find("ab" * 32) is None
    assert store.listing() == ()
    assert store.prune() == 0
    assert list(tmp_path.iterdir()) == []


def test_where_the_store_is() -> None:
    assert default_store_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/potluck/weights")


def test_the_default_limit_is_half_of_what_the_store_could_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ContentStore(tmp_path / "weights", LIMIT)
    kept(store, 1)

    class Disk:
        f_bavail = 99
        f_frsize = CHUNK_BYTES

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    assert default_limit_bytes(store.folder) == 50 * CHUNK_BYTES
    assert default_limit_bytes(tmp_path / "not" / "there") == 99 * CHUNK_BYTES // 2


def test_the_limit_of_a_folder_that_cannot_be_used_is_zero(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert default_limit_bytes(tmp_path / "file" / "weights") == 0
    assert default_limit_bytes(tmp_path / ("a" * 300) / "weights") == 0


def test_a_limit_of_zero_keeps_nothing(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "weights", 0)
    with pytest.raises(StoreFullError, match="stores nothing") as caught:
        store.blob(content_of(b"abc"))
    assert "weights_store" in caught.value.hint
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "content",
    [
        FileContent("../../etc/passwd", 5),
        FileContent("AB" * 32, 5),
        FileContent("ab" * 31, 5),
        FileContent("ab" * 32, -1),
        FileContent("ab" * 32, 2**60),
    ],
)
def test_content_that_no_file_has_is_refused(store: ContentStore, content: FileContent) -> None:
    with pytest.raises(ModelFileError):
        store.blob(content)
    assert not store.folder.exists()


def test_a_name_that_is_no_hash_finds_nothing(store: ContentStore) -> None:
    assert store.find("../*") is None


def test_what_was_used_longest_ago_makes_room(store: ContentStore) -> None:
    first, second, third, fourth = (kept(store, seed) for seed in range(4))
    assert has(store, first)  # is used now, by that
    kept(store, 9)
    assert [has(store, each) for each in (first, second, third, fourth)] == [
        True,
        False,
        True,
        True,
    ]


def test_the_limit_is_exact(store: ContentStore) -> None:
    for seed in range(8):
        kept(store, seed, CHUNK_BYTES + 1000 * seed)
        assert sum(file.held_bytes for file in store.listing()) <= LIMIT


def test_what_is_in_use_is_never_removed(store: ContentStore) -> None:
    data = some_bytes(4 * CHUNK_BYTES, 1)
    with closing(store.blob(content_of(data))) as blob:
        for chunk, part in enumerate(chunks_of(data)):
            blob.write_chunk(chunk, part)
        with (
            closing(store.blob(content_of(b"another"))) as other,
            pytest.raises(StoreFullError, match="4 MiB, and everything in it is in use") as caught,
        ):
            other.write_chunk(0, b"another")
        assert "weights_store" in caught.value.hint
        assert store.prune(0) == 0
        assert blob.read_chunk(0) == data[:CHUNK_BYTES]
    assert store.prune(0) == 4 * CHUNK_BYTES
    assert store.listing() == ()


def test_a_file_larger_than_the_limit_is_kept_in_part(store: ContentStore) -> None:
    data = some_bytes(6 * CHUNK_BYTES, 1)
    parts = chunks_of(data)
    with closing(store.blob(content_of(data))) as blob:
        for chunk in range(4):
            blob.write_chunk(chunk, parts[chunk])
        with pytest.raises(StoreFullError):
            blob.write_chunk(4, parts[4])
        assert blob.held() == ((0, 4),)


HOLDS = """
import os, sys
from pathlib import Path
from potluck.store.content_store import ContentStore
store = ContentStore(Path(sys.argv[1]), 2**26)
found = store.find(sys.argv[2])
print("holds", flush=True)
sys.stdin.read()
"""


def test_what_another_process_uses_is_never_removed(store: ContentStore) -> None:
    content = kept(store, 1)
    child = started(HOLDS, store.folder, content.sha256)
    assert child.stdout is not None
    assert child.stdout.readline() == "holds\n"
    assert store.prune(0) == 0
    (file,) = store.listing()
    assert file.is_in_use
    child.kill()
    child.communicate()
    assert not store.listing()[0].is_in_use
    assert store.prune(0) == CHUNK_BYTES


def test_a_descriptor_that_was_passed_on_keeps_the_file(store: ContentStore) -> None:
    content = kept(store, 1)
    blob = store.blob(content)
    passed = os.dup(blob.descriptor())
    blob.close()
    assert store.prune(0) == 0
    os.close(passed)
    assert store.prune(0) == CHUNK_BYTES


def test_pruning_stops_at_the_size_asked_for(store: ContentStore) -> None:
    contents = [kept(store, seed) for seed in range(4)]
    assert store.prune(2 * CHUNK_BYTES + 5) == 2 * CHUNK_BYTES
    assert [has(store, content) for content in contents] == [False, False, True, True]
    assert ContentStore(store.folder, CHUNK_BYTES).prune() == CHUNK_BYTES


def test_pruning_removes_what_crashes_left(store: ContentStore) -> None:
    content = kept(store, 1)
    orphan = store.folder / f"{'ab' * 32}-100.data"
    orphan.write_bytes(b"x" * 100)
    draft = store.folder / f".{'ab' * 32}-100.index.0123.draft"
    draft.write_bytes(b"x")
    damaged = store.folder / f"{'cd' * 32}-100.index"
    damaged.write_bytes(b"x")
    damaged.with_suffix(".data").write_bytes(b"y" * 100)
    store.prune()
    assert not orphan.exists()
    assert not draft.exists()
    assert not damaged.exists()
    assert not damaged.with_suffix(".data").exists()
    assert has(store, content)


def test_a_crash_between_the_two_files_is_recovered_from(store: ContentStore) -> None:
    content = kept(store, 1)
    (store.folder / f"{content.sha256}-{content.num_bytes}.index").unlink()
    assert not has(store, content)
    with closing(store.blob(content)) as blob:
        assert blob.held() == ()


def test_the_listing(store: ContentStore) -> None:
    first, second = kept(store, 1), kept(store, 2, CHUNK_BYTES + 10)
    later, earlier = store.listing()
    assert (earlier.content, earlier.label, earlier.held_bytes) == (first, "file 1", CHUNK_BYTES)
    assert (later.content, later.used_at) == (second, 1002.0)
    assert later.held_bytes == CHUNK_BYTES + 10
    assert not later.is_in_use
    assert not later.is_verified


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file")
    store = ContentStore(tmp_path / "weights", LIMIT)
    with pytest.raises(StoreFullError, match="weights"):
        store.blob(content_of(b"abc"))
    assert store.find("ab" * 32) is None


def test_a_known_file_is_found_whole(store: ContentStore, tmp_path: Path) -> None:
    data = some_bytes(2 * CHUNK_BYTES + 3)
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    content, digests = store.known.identify(path)
    assert content == content_of(data)
    with closing(store.blob(content)) as blob:  # holds one chunk only
        blob.write_chunk(0, data[:CHUNK_BYTES])
    found = store.find(content.sha256)
    assert isinstance(found, LocalFile)
    assert found.all_digests == digests
    assert found.read_chunk(2) == data[2 * CHUNK_BYTES :]
    found.close()
    path.write_bytes(b"something else")
    found = store.find(content.sha256)
    assert isinstance(found, Blob)
    assert found.held() == ((0, 1),)
    found.close()


def test_a_file_in_the_hubs_cache_is_found(tmp_path: Path) -> None:
    data = some_bytes(CHUNK_BYTES + 3)
    content = content_of(data)
    hub = tmp_path / "hub"
    path = hub / "models--org--name" / "blobs" / content.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    store = ContentStore(tmp_path / "weights", 0, hub_folder=hub)
    found = store.find(content.sha256)
    assert isinstance(found, LocalFile)
    assert found.content == content
    assert [found.digest(chunk) for chunk in range(2)] == [None, None]
    assert not found.is_verified
    assert found.read_chunk(1) == data[CHUNK_BYTES:]
    found.close()


def test_a_copy_of_another_size_does_not_hide_what_the_store_has(tmp_path: Path) -> None:
    data = some_bytes(2 * CHUNK_BYTES)
    content = content_of(data)
    cut = tmp_path / "hub" / "models--org--name" / "blobs" / content.sha256
    cut.parent.mkdir(parents=True)
    cut.write_bytes(data[:1000])  # of a copy of the cache that was interrupted
    store = ContentStore(tmp_path / "weights", LIMIT, hub_folder=tmp_path / "hub")
    assert store.find(content.sha256, content.num_bytes) is None
    with closing(store.blob(content)) as blob:
        blob.write_chunk(1, data[CHUNK_BYTES:])
    found = store.find(content.sha256, content.num_bytes)
    assert isinstance(found, Blob)
    assert found.held() == ((1, 2),)
    found.close()


def test_a_claimed_size_does_not_hide_what_the_store_has(store: ContentStore) -> None:
    content = kept(store, 1)
    # Names are found in any order, so that several are needed.
    for claimed in range(1, 9):
        store.blob(FileContent(content.sha256, CHUNK_BYTES + claimed)).close()
    for num_bytes in (None, CHUNK_BYTES):
        found = store.find(content.sha256, num_bytes)
        assert isinstance(found, Blob)
        assert found.is_whole
        found.close()


@pytest.mark.slow
def test_making_and_pruning_at_once(store: ContentStore) -> None:
    """Several processes write, read and prune; nobody reads anything but what was written."""
    script = """
import hashlib, random, sys, time
from pathlib import Path
from potluck.errors import DamagedChunkError, StoreFullError
from potluck.store.content_store import ContentStore
from potluck.types.content import FileContent
store = ContentStore(Path(sys.argv[1]), 40_000)
own = random.Random(int(sys.argv[2]))
until = time.monotonic() + 1
rounds = 0
while time.monotonic() < until:
    data = bytes([own.randrange(8)]) * 10_000
    content = FileContent(hashlib.sha256(data).hexdigest(), len(data))
    blob = store.blob(content)
    try:
        blob.write_chunk(0, data)
        assert blob.read_chunk(0) == data
        rounds += 1
    except StoreFullError:
        pass
    finally:
        blob.close()
    if own.random() < 0.3:
        store.prune(own.randrange(40_000))
print(rounds)
"""
    children = [started(script, store.folder, str(seed)) for seed in range(3)]
    results = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert all(int(result) > 2 for result in results)
    assert store.prune(0) >= 0
    assert store.listing() == ()
    assert names(store.folder) <= {""}


def test_use_is_noted(store: ContentStore) -> None:
    content = kept(store, 1)
    before = time.time() - 1
    assert has(store, content)
    assert store.listing()[0].used_at >= before
