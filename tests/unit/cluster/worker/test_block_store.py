"""Cache blocks in a folder: bounded, verified, and there again after a restart."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from potluck.cluster.worker.block_store import HEADER_BYTES, BlockStore, default_block_folder

BLOCK_BYTES = 1000
FILE_BYTES = BLOCK_BYTES + HEADER_BYTES
ROOT = b"root" * 8


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


def content(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK_BYTES)


def open_store(folder: Path, *, num_blocks: int = 100, key: str = "stage") -> BlockStore:
    limit = num_blocks * FILE_BYTES
    return BlockStore(folder, key, block_bytes=BLOCK_BYTES, limit_bytes=limit)


def read(store: BlockStore, number: int) -> bytes | None:
    out = memoryview(bytearray(BLOCK_BYTES))
    return bytes(out) if store.read(name(number), out) else None


def write_chain(store: BlockStore, numbers: list[int], after: int | None = None) -> None:
    parent = ROOT if after is None else name(after)
    for number in numbers:
        assert store.write(name(number), parent, memoryview(content(number)))
        parent = name(number)


def kept(store: BlockStore, numbers: range) -> set[int]:
    return {number for number in numbers if name(number) in store}


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.block"))


def test_blocks_are_there_again_when_the_store_is_opened_again(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        assert read(store, 1) is None
        write_chain(store, [1, 2, 3])
        assert read(store, 2) == content(2)
        assert store.num_bytes == folder_bytes(tmp_path) == 3 * FILE_BYTES
    with closing(open_store(tmp_path)) as store:
        assert [read(store, number) for number in (1, 2, 3, 4)] == [
            content(1),
            content(2),
            content(3),
            None,
        ]
    with closing(open_store(tmp_path, key="other")) as store:
        assert read(store, 1) is None


def test_no_one_else_may_read_the_folder(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)):
        assert (tmp_path / "stage").stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    for damage in ("flip", "cut", "header", "swap"):
        with closing(open_store(tmp_path, key=damage)) as store:
            write_chain(store, [1, 2])
            first, second = sorted((tmp_path / damage).glob("*.block"))
            data = bytearray(first.read_bytes())
            if damage == "flip":
                data[HEADER_BYTES + 500] ^= 1
            elif damage == "header":
                data[0] ^= 1
            elif damage == "swap":
                data = bytearray(second.read_bytes())
            first.write_bytes(data[:-1] if damage == "cut" else data)
            assert read(store, 1) is None
            assert name(1) not in store
            assert not first.exists()
            assert read(store, 2) == content(2)
            write_chain(store, [1])
            assert read(store, 1) == content(1)


def test_what_was_not_finished_or_is_of_another_size_is_removed(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        write_chain(store, [1, 2])
    folder = tmp_path / "stage"
    first = folder / f"{name(1).hex()}-{ROOT.hex()}.block"
    os.truncate(first, 10)
    (folder / "something.partial").write_bytes(b"x" * 50)
    with closing(open_store(tmp_path)) as store:
        assert kept(store, range(5)) == {2}
        assert store.num_blocks == 1
    assert {path.suffix for path in folder.iterdir()} == {"", ".block"}
    assert not first.exists()


def test_a_file_that_vanished_is_no_error(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        write_chain(store, [1])
        for path in tmp_path.rglob("*.block"):
            path.unlink()
        assert read(store, 1) is None
        write_chain(store, [1])
        assert read(store, 1) == content(1)


def test_the_end_of_the_chain_that_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, num_blocks=6)) as store:
        write_chain(store, [1, 2, 3])
        write_chain(store, [11, 12], after=1)
        write_chain(store, [21])
        assert read(store, 3) is not None
        write_chain(store, [31])
        assert kept(store, range(50)) == {1, 2, 3, 11, 21, 31}
        write_chain(store, [32])
        assert kept(store, range(50)) == {1, 2, 3, 21, 31, 32}  # 1 is older, and is continued by 2
        write_chain(store, [41, 42, 43])
        assert kept(store, range(50)) == {1, 31, 32, 41, 42, 43}
        assert folder_bytes(tmp_path) == store.num_bytes == 6 * FILE_BYTES


def test_use_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        for number in (1, 2, 3):
            write_chain(store, [number])
            time.sleep(0.01)
        assert read(store, 1) is not None
    with closing(open_store(tmp_path, num_blocks=2)) as store:
        assert kept(store, range(5)) == {1, 3}


def test_a_chain_is_found_whatever_the_order_of_use(tmp_path: Path) -> None:
    """Also where a block was used after those that continue it."""
    with closing(open_store(tmp_path)) as store:
        write_chain(store, [1, 2, 3])
        time.sleep(0.01)
        assert read(store, 2) is not None
        assert read(store, 1) is not None
    with closing(open_store(tmp_path, num_blocks=2)) as store:
        assert kept(store, range(5)) == {1, 2}
    with closing(open_store(tmp_path, num_blocks=1)) as store:
        assert kept(store, range(5)) == {1}


def test_a_limit_below_one_block_keeps_nothing(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, num_blocks=0)) as store:
        assert not store.write(name(1), ROOT, memoryview(content(1)))
        assert folder_bytes(tmp_path) == 0


def test_what_other_stages_left_goes_before_own_blocks(tmp_path: Path) -> None:
    for key in ("first", "second"):
        with closing(open_store(tmp_path, key=key)) as store:
            write_chain(store, [1, 2])
        time.sleep(0.01)
    with closing(open_store(tmp_path, num_blocks=5)) as store:
        write_chain(store, [1])
        assert (tmp_path / "first").exists()
        write_chain(store, [2])
        assert not (tmp_path / "first").exists()
        assert (tmp_path / "second").exists()
        write_chain(store, [3, 4])
        assert not (tmp_path / "second").exists()
        write_chain(store, [5, 6])
        assert store.num_blocks == 5


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        write_chain(store, [1, 2])
        with pytest.raises(BlockingIOError):
            open_store(tmp_path)
        with closing(open_store(tmp_path, num_blocks=2, key="other")) as other:
            write_chain(other, [1, 2, 3])
            assert other.num_blocks == 2
        assert read(store, 1) == content(1)
        store.close()
        open_store(tmp_path).close()


def test_the_folder_of_a_process_that_was_killed_can_be_used(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from potluck.cluster.worker.block_store import *\n"
        f"store = BlockStore(Path(sys.argv[1]), 'stage', block_bytes={BLOCK_BYTES},"
        " limit_bytes=10**6)\n"
        "assert store.write(bytes(32), bytes(32), memoryview(bytes(1000)))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(BlockingIOError):
            open_store(tmp_path)
        child.kill()
    with closing(open_store(tmp_path)) as store:
        assert read(store, 0) == bytes(BLOCK_BYTES)


def test_a_full_disk_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    with closing(open_store(tmp_path)) as store:
        with monkeypatch.context() as patched:

            def is_full(descriptor: int, data: Any) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patched.setattr(os, "write", is_full)
            assert not store.write(name(1), ROOT, memoryview(content(1)))
        assert not store.write(name(1), ROOT, memoryview(content(1)))
        assert [path.name for path in (tmp_path / "stage").iterdir()] == ["lock"]
        monkeypatch.setattr(time, "monotonic", lambda: now + 100)
        assert store.write(name(1), ROOT, memoryview(content(1)))


def test_random_use_stays_within_the_limit(tmp_path: Path) -> None:
    """What is said to be there is there, and every file is accounted for."""
    rng = random.Random(4)
    parents: dict[int, int | None] = {}
    for number in range(1, 60):
        parents[number] = rng.choice([None, *parents])
    for _ in range(4):
        with closing(open_store(tmp_path, num_blocks=20)) as store:
            for _ in range(300):
                number = rng.choice(list(parents))
                parent = parents[number]
                if rng.random() < 0.5:
                    above = ROOT if parent is None else name(parent)
                    assert store.write(name(number), above, memoryview(content(number)))
                is_kept = name(number) in store
                assert read(store, number) == (content(number) if is_kept else None)
            assert store.num_bytes == folder_bytes(tmp_path) <= 20 * FILE_BYTES


def test_blocks_that_are_read_again_and_again_take_no_more_memory(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, num_blocks=4)) as store:
        write_chain(store, [1, 2])
        write_chain(store, [3])
        for _ in range(500):
            assert read(store, 2) == content(2)
        assert len(store._leaves) < 100
        assert read(store, 1) == content(1)
        write_chain(store, [4, 5])
        assert kept(store, range(1, 6)) == {1, 2, 4, 5}, "the leaf that was used longest ago went"


def test_where_the_folder_is(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert default_block_folder(environ) == tmp_path / "potluck" / "kv"
