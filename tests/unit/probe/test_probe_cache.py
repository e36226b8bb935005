"""The probe's cache: several writers, bad files, bad disks, bounds."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.processes.waiting import done_within

from potluck.probe.cache import MAX_BYTES, MAX_ENTRIES, SCHEMA, ProbeCache, default_cache_path

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "potluck" / "probe.json"


def test_what_is_put_is_there_for_everybody(path: Path) -> None:
    cache = ProbeCache(path)
    assert cache.get("a") is None
    cache.put("a", {"works": True})
    cache.put("b", {"reason": "gerät"})
    assert ProbeCache(path).get("a") == {"works": True}
    assert cache.get("b") == {"reason": "gerät"}
    cache.put("a", {"works": False})
    assert cache.get("a") == {"works": False}
    cache.remove("a")
    cache.remove("never there")
    assert cache.get("a") is None
    assert cache.get("b") == {"reason": "gerät"}


def test_the_file_is_versioned_and_its_owner_s_alone(path: Path) -> None:
    before = int(time.time())
    ProbeCache(path).put("a", {"works": True})
    document = json.loads(path.read_text())
    assert document["schema"] == "potluck.probe-cache/1" == SCHEMA
    (entry,) = document["entries"].values()
    assert entry["value"] == {"works": True}
    assert before <= entry["at"] <= time.time() + 1
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\0",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"schema": "potluck.probe-cache/2", "entries": {"a": {"at": 1, "value": {}}}}',
        b'{"entries": {"a": {"at": 1, "value": {}}}}',
        b'{"schema": "potluck.probe-cache/1", "entries": [1]}',
        b'{"schema": "potluck.probe-cache/1", "entries": {"a": 5}}',
        b'{"schema": "potluck.probe-cache/1", "entries": {"a": {"at": "x", "value": {}}}}',
        b'{"schema": "potluck.probe-cache/1", "entries": {"a": {"at": 1, "value": 5}}}',
        b'{"schema": "potluck.probe-cache/1", "entries": {"a": {"at": 1, "value": {}}}}'
        + b" " * MAX_BYTES,
    ],
)
def test_a_file_that_is_not_ours_counts_as_empty(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    cache = ProbeCache(path)
    assert cache.get("a") is None
    cache.put("b", {"works": True})
    assert cache.get("b") == {"works": True}


@pytest.mark.slow
def test_the_number_of_entries_is_bounded_and_the_oldest_go(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ProbeCache(path)
    for number in range(MAX_ENTRIES + 3):
        monkeypatch.setattr(time, "time", lambda number=number: 1000.0 + number)
        cache.put(f"entry {number}", {"number": number})
    assert [cache.get(f"entry {number}") for number in (0, 1, 2)] == [None, None, None]
    assert cache.get("entry 3") == {"number": 3}
    assert cache.get(f"entry {MAX_ENTRIES + 2}") == {"number": MAX_ENTRIES + 2}


def test_the_size_of_the_file_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProbeCache(path)
    for number in range(5):
        monkeypatch.setattr(time, "time", lambda number=number: 1000.0 + number)
        cache.put(f"entry {number}", {"text": "x" * (MAX_BYTES // 4)})
        assert path.stat().st_size <= MAX_BYTES
    assert cache.get("entry 0") is None
    assert cache.get("entry 4") is not None
    cache.put("too large", {"text": "x" * MAX_BYTES})
    assert cache.get("too large") is None


def test_nothing_is_kept_without_a_path() -> None:
    cache = ProbeCache(None)
    cache.put("a", {"works": True})
    cache.remove("a")
    assert cache.get("a") is None
    with cache.turn(1):
        pass


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    """Here a file is in the way, which stops root too; the rest is the same."""
    (tmp_path / "cache").write_text("a file")
    cache = ProbeCache(tmp_path / "cache" / "probe.json")
    cache.put("a", {"works": True})
    assert cache.get("a") is None
    with cache.turn(1):
        pass


def test_a_file_that_cannot_be_replaced_is_still_read(path: Path) -> None:
    cache = ProbeCache(path)
    cache.put("a", {"works": True})
    path.with_name("probe.json.draft").mkdir()
    cache.put("b", {"works": True})
    assert cache.get("a") == {"works": True}
    assert cache.get("b") is None


def test_where_it_is() -> None:
    assert default_cache_path({"XDG_CACHE_HOME": "/c"}) == Path("/c/potluck/probe.json")
    at_home = Path.home() / ".cache" / "potluck" / "probe.json"
    assert default_cache_path({}) == at_home
    assert default_cache_path({"XDG_CACHE_HOME": "relative"}) == at_home


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert default_cache_path({}) is None


WRITER = """
import sys
from pathlib import Path
from potluck.probe.cache import ProbeCache
cache = ProbeCache(Path(sys.argv[1]))
print("ready", flush=True)
input()
for number in range(40):
    cache.put(f"{sys.argv[2]}-{number}", {"number": number})
    assert cache.get(f"{sys.argv[2]}-{number}") == {"number": number}
"""


@pytest.mark.slow
def test_many_processes_lose_nothing(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, str(path), name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(SOURCE)},
                )
            )
            for name in "abcd"
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert [writer.wait(60) for writer in writers] == [0] * 4
    cache = ProbeCache(path)
    for name in "abcd":
        for number in range(40):
            assert cache.get(f"{name}-{number}") == {"number": number}


def test_who_cannot_get_the_lock_goes_without(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potluck.probe.cache._LOCK_WAIT_SECONDS", 0.1)
    cache = ProbeCache(path)
    cache.put("a", {"works": True})
    with path.with_name("probe.json.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with done_within(1):
            cache.put("b", {"works": True})
    assert cache.get("a") == {"works": True}
    assert cache.get("b") is None


def test_turns_are_taken_one_after_the_other(path: Path) -> None:
    cache = ProbeCache(path)
    events: list[str] = []

    def second() -> None:
        with cache.turn(20):
            events.append("second")

    with cache.turn(20):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        events.append("first")
    thread.join()
    assert events == ["first", "second"]


def test_a_turn_is_waited_for_only_so_long(path: Path) -> None:
    cache = ProbeCache(path)
    with cache.turn(1), done_within(2), cache.turn(0.05):
        pass
