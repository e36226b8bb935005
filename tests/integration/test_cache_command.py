"""``potluck cache``: what is in the store, and what is removed from it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.cluster.store_files import chunks_of, content_of, some_bytes, started
from support.processes.command import assert_refused, run_command
from support.processes.confinement import covered
from support.schemas import validate_document

from potluck.store.content_store import ContentStore
from potluck.types.content import CHUNK_BYTES, FileContent

LIMIT = 20 * CHUNK_BYTES


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path), "POTLUCK_WEIGHTS_STORE": str(LIMIT)}


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "potluck" / "weights", LIMIT)


def keep(store: ContentStore, label: str, num_bytes: int, *, used_at: int) -> FileContent:
    data = some_bytes(num_bytes, used_at)
    with closing(store.blob(content_of(data), label=label)) as blob:
        for chunk, part in enumerate(chunks_of(data)):
            blob.write_chunk(chunk, part)
    path = store.folder / f"{blob.content.sha256}-{num_bytes}.data"
    os.utime(path, (used_at, used_at))
    return blob.content


def document(*arguments: str, env: dict[str, str]) -> dict[str, Any]:
    completed = run_command("cache", *arguments, "--json", env=env)
    assert completed.returncode == 0, completed.stderr
    found: dict[str, Any] = json.loads(completed.stdout)
    validate_document(found)
    return found


def test_an_empty_store(env: dict[str, str], store: ContentStore) -> None:
    assert document(env=env) == {
        "schema": "potluck.cache/1",
        "path": str(store.folder),
        "limit_bytes": LIMIT,
        "held_bytes": 0,
        "removed_bytes": None,
        "files": [],
    }
    assert document("prune", env=env)["removed_bytes"] == 0
    assert not store.folder.exists()


def test_files_are_listed_and_pruned(env: dict[str, str], store: ContentStore) -> None:
    old = keep(store, "org/old/model.gguf", 3 * CHUNK_BYTES, used_at=1000)
    new = keep(store, "org/new/model.gguf", 2 * CHUNK_BYTES + 5, used_at=2000)
    found = document(env=env)
    assert [file["label"] for file in found["files"]] == [
        "org/new/model.gguf",
        "org/old/model.gguf",
    ]
    assert found["held_bytes"] == 5 * CHUNK_BYTES + 5
    assert found["files"][1] == {
        "sha256": old.sha256,
        "bytes": old.num_bytes,
        "held_bytes": old.num_bytes,
        "label": "org/old/model.gguf",
        "is_verified": False,
        "is_in_use": False,
        "used_at": 1000.0,
    }
    shown = run_command("cache", env=env)
    header, first, second, total = shown.stdout.splitlines()
    assert header.split() == ["FILE", "SHA-256", "KEPT", "OF", "USED", "STATE"]
    assert first.startswith("org/new/model.gguf")
    assert new.sha256[:12] in first
    assert second.startswith("org/old/model.gguf")
    assert total == f"5 MiB of at most 20 MiB in {store.folder}"

    pruned = document("prune", "--to", "4MiB", env=env)
    assert pruned["removed_bytes"] == 3 * CHUNK_BYTES
    assert [file["sha256"] for file in pruned["files"]] == [new.sha256]
    completed = run_command("cache", "prune", env=env)
    assert completed.stderr == "removed 2 MiB; 0 B remain\n"
    assert completed.stdout == ""


def test_what_is_in_use_stays(env: dict[str, str], store: ContentStore) -> None:
    content = keep(store, "in use", CHUNK_BYTES, used_at=1000)
    with closing(store.blob(content)):
        assert "in use" in run_command("cache", env=env).stdout
        completed = run_command("cache", "prune", env=env)
        assert "removed 0 B; 1 MiB remain" in completed.stderr
        assert "the rest is in use" in completed.stderr
        assert document(env=env)["files"][0]["is_in_use"]


def test_sizes_and_limits_that_are_none(env: dict[str, str]) -> None:
    completed = run_command("cache", "prune", "--to", "much", env=env)
    assert_refused(completed, 2, "--to much is not a valid size", "for example 2G")
    completed = run_command("cache", env={**env, "POTLUCK_WEIGHTS_STORE": "-1"})
    assert_refused(completed, 2, "POTLUCK_WEIGHTS_STORE", "known settings")


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """The store of a disk of 8 MiB, with a limit above that."""
    script = """
import sys
from pathlib import Path
from potluck.errors import StoreFullError
from potluck.store.content_store import ContentStore
from potluck.types.content import CHUNK_BYTES, FileContent
store = ContentStore(Path(sys.argv[1]) / "weights", 2**30)
old = store.blob(FileContent("aa" * 32, 3 * CHUNK_BYTES))
for chunk in range(3):
    old.write_chunk(chunk, b"a" * CHUNK_BYTES)
old.close()
new = store.blob(FileContent("bb" * 32, 20 * CHUNK_BYTES))
try:
    for chunk in range(20):
        new.write_chunk(chunk, bytes([chunk]) * CHUNK_BYTES)
except StoreFullError as error:
    print(error.message)
(first, end), = new.held()
for chunk in range(first, end):
    assert new.read_chunk(chunk) == bytes([chunk]) * CHUNK_BYTES
assert store.find("aa" * 32) is None  # it was removed first
print(end)
"""
    folder = tmp_path / "small"
    folder.mkdir()
    child = started(script, folder, prefix=covered(folder, "size=8m"))
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    message, end = output.splitlines()
    assert "No space left on device" in message
    assert 6 <= int(end) <= 8
