"""Packed files in a folder: made once, whole or not at all, and removed when they are too many."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.environment import environment
from support.processes.waiting import eventually

from potluck.engines.loading.packed_cache import (
    NotPackedError,
    PackedCache,
    PackedWeights,
    Write,
    default_packed_folder,
)
from potluck.formats.packed import PackedLayout, packed_layout
from potluck.types.tensor import TensorFormat, TensorInfo

NUM_BYTES = 10_000
FILE_BYTES = 4096 + 3 * 4096
CONTENT = bytes(i % 251 for i in range(NUM_BYTES))


def layout_of(key: str) -> PackedLayout:
    info = TensorInfo(name="table", shape=(NUM_BYTES,), format=TensorFormat.F32)
    return packed_layout([(info, NUM_BYTES)], key=key, panel_layout=1)


def write_content(write: Write) -> None:
    write(4096, memoryview(CONTENT)[:6000])
    write(4096 + 6000, memoryview(CONTENT)[6000:])


def must_not_make(write: Write) -> None:
    raise AssertionError("there is one already")


def get(
    cache: PackedCache, key: str, make: Callable[[Write], None] = write_content
) -> PackedWeights:
    return cache.weights(key, layout_of(key), make)


def content(weights: PackedWeights) -> bytes:
    return bytes(weights.bytes_of(weights.layout.tensors[0]))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert content(get(PackedCache(folder), "k")) == CONTENT
    assert names(folder) == {"k.packed"}
    assert content(get(PackedCache(folder), "k", must_not_make)) == CONTENT


def test_what_is_mapped_cannot_be_written_to(tmp_path: Path) -> None:
    assert get(PackedCache(tmp_path), "k").data.readonly


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, FILE_BYTES - 1),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, FILE_BYTES + 1),
        lambda path: path.write_bytes(b"\0" * FILE_BYTES),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"k"', b'"l"')),
    ],
    ids=["shorter", "empty", "longer", "zeros", "another key"],
)
def test_a_damaged_file_is_made_again(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path)
    get(cache, "k")
    damage(tmp_path / "k.packed")
    assert content(get(cache, "k")) == CONTENT
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'k.packed'} is damaged; rebuilding it"
    ]


def test_whoever_has_mapped_a_file_keeps_it(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path)
    held = get(cache, "k")
    (tmp_path / "k.packed").unlink()
    get(cache, "k")
    assert content(held) == CONTENT


def test_nothing_stays_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    def make(write: Write) -> None:
        write_content(write)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(PackedCache(tmp_path), "k", make)
    assert names(tmp_path) == set()


def test_a_failed_write_is_said(tmp_path: Path) -> None:
    def make(write: Write) -> None:
        write(-4096, memoryview(CONTENT))

    with pytest.raises(NotPackedError, match=f"{tmp_path}: Invalid argument"):
        get(PackedCache(tmp_path), "k", make)
    assert names(tmp_path) == set()


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_on_files_shows_before_anything_is_read(tmp_path: Path) -> None:
    with file_size_limit(FILE_BYTES - 1), pytest.raises(NotPackedError, match="File too large"):
        get(PackedCache(tmp_path), "k", must_not_make)
    assert names(tmp_path) == set()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotPackedError, match="Not a directory"):
        get(PackedCache(tmp_path / "file" / "packed"), "k", must_not_make)


def test_no_folder_at_all() -> None:
    with pytest.raises(NotPackedError, match="neither HOME nor"):
        get(PackedCache(None), "k", must_not_make)


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_packed_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/potluck/packed")
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".cache" / "potluck" / "packed"
    assert default_packed_folder({}) == own
    assert default_packed_folder({"XDG_CACHE_HOME": "relative"}) == own


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, limit_bytes=3 * FILE_BYTES)
    for age, key in enumerate(("a", "b", "c")):
        get(cache, key)
        os.utime(tmp_path / f"{key}.packed", (age, age))
    get(cache, "a")  # used now
    get(cache, "d")
    assert names(tmp_path) == {"a.packed", "c.packed", "d.packed"}


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, limit_bytes=2 * FILE_BYTES)
    held = get(cache, "a")
    os.utime(tmp_path / "a.packed", (0, 0))
    get(cache, "b")
    get(cache, "c")
    assert names(tmp_path) == {"a.packed", "c.packed"}
    also_held = get(cache, "c")
    with pytest.raises(NotPackedError, match=r"are in use$"):
        get(cache, "d", must_not_make)
    assert content(held) == content(also_held) == CONTENT
    del held
    get(cache, "d")
    assert names(tmp_path) == {"c.packed", "d.packed"}


def test_a_file_that_is_larger_than_all_may_be(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, limit_bytes=FILE_BYTES - 1)
    with pytest.raises(NotPackedError, match=r"\(packed_cache_bytes\)$"):
        get(cache, "k", must_not_make)
    assert names(tmp_path) == set()


def test_a_quarter_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the folder has already counts as free: it would otherwise shrink with every file."""
    free = 0

    def statvfs(path: object) -> os.statvfs_result:
        return os.statvfs_result((1, 1, 0, 0, free, 0, 0, 0, 0, 255, 0))

    monkeypatch.setattr(os, "statvfs", statvfs)
    free = 4 * FILE_BYTES
    get(PackedCache(tmp_path), "a")
    free = 4 * FILE_BYTES - 1  # and a file of the folder's own
    get(PackedCache(tmp_path), "b")
    assert names(tmp_path) == {"b.packed"}
    free = 3 * FILE_BYTES - 1
    with pytest.raises(NotPackedError, match="exceed the limit"):
        get(PackedCache(tmp_path), "c", must_not_make)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "dead.partial").write_bytes(b"x" * 100)
    with (tmp_path / "live.partial").open("wb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        get(PackedCache(tmp_path), "k")
    assert names(tmp_path) == {"live.partial", "k.packed"}


def test_a_half_made_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "k.partial").write_bytes(b"x" * 2 * FILE_BYTES)
    assert content(get(PackedCache(tmp_path), "k")) == CONTENT
    assert (tmp_path / "k.packed").stat().st_size == FILE_BYTES


SLOW = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_packed_cache import CONTENT, content, get, write_content
from potluck.engines.loading.packed_cache import PackedCache
folder, number = Path(sys.argv[1]), sys.argv[2]
def make(write):
    (folder / f"made-by-{{number}}").touch()
    time.sleep(float(sys.argv[3]))
    write_content(write)
assert content(get(PackedCache(folder), "k", make)) == CONTENT
"""


def start(folder: Path, number: int, seconds: float) -> subprocess.Popen[bytes]:
    script = SLOW.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(number), str(seconds)],
        env=environment(PYTHONPATH=str(Path(__file__).parents[3])),
    )


@pytest.mark.slow
def test_of_several_processes_one_makes_it(tmp_path: Path) -> None:
    processes = [start(tmp_path, number, 0.5) for number in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    makers = {name for name in names(tmp_path) if name.startswith("made-by")}
    assert len(makers) == 1
    assert names(tmp_path) == {"k.packed"} | makers


@pytest.mark.slow
def test_who_is_killed_while_making_it_keeps_nobody_waiting(tmp_path: Path) -> None:
    killed = start(tmp_path, 0, 100)
    eventually((tmp_path / "made-by-0").exists, within=20)
    waiting = start(tmp_path, 1, 0)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1)
    finally:
        killed.kill()
        killed.wait()
    assert waiting.wait(timeout=60) == 0
    assert names(tmp_path) == {"made-by-0", "made-by-1", "k.packed"}
