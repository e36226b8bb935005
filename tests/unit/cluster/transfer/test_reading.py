"""Files read through a transfer service: from its disk, from peers, in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cluster.store_files import content_of
from support.cluster.transfers import JOB, file_bytes, from_peer, manifest_of, nodes

from potluck.errors import ModelFileError, TransferError
from potluck.types.content import CHUNK_BYTES

DATA = file_bytes(5 * CHUNK_BYTES + 1234)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})


def test_a_file_on_this_disk_is_read_where_it_lies(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [node]:
        node.give("model.gguf", DATA)
        assert node.read(CONTENT) == DATA
        assert (
            node.read(CONTENT, CHUNK_BYTES - 3, 2 * CHUNK_BYTES + 5)
            == (DATA[CHUNK_BYTES - 3 : 2 * CHUNK_BYTES + 5])
        )
        assert not list((node.folder / "weights").glob("*.data"))


def test_a_file_on_this_disk_that_changed_is_an_error(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [node]:
        node.give("model.gguf", DATA)
        client = node.client()
        file = client.open_file(CONTENT, label="model.gguf")
        file.read_into(0, memoryview(bytearray(10)))
        file.check_unchanged()
        (node.folder / "model.gguf").write_bytes(DATA[::-1])
        with pytest.raises(ModelFileError, match="the file changed"):
            file.check_unchanged()


def test_what_nobody_has_is_an_error(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [node]:
        file = node.client().open_file(CONTENT, label="model.gguf")
        with pytest.raises(TransferError, match=r"model.gguf: chunk 0 is not on this disk"):
            file.read_into(0, memoryview(bytearray(10)))


def test_bytes_come_from_a_peer_and_stay_in_the_store(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        assert other.read(CONTENT) == DATA
        assert other.held_chunks(CONTENT) == CONTENT.num_chunks
        owner.close()
        other.board.end_job(JOB)
        assert other.read(CONTENT) == DATA


def test_only_the_chunks_that_are_wanted_come(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client = other.client()
        client.want(JOB, [(CONTENT, [(3 * CHUNK_BYTES + 1, 4 * CHUNK_BYTES), (5, 6)])], keep=True)
        file = client.open_file(CONTENT, label="model", job=JOB)
        file.read_into(5, memoryview(bytearray(1)))
        file.read_into(3 * CHUNK_BYTES + 1, memoryview(bytearray(CHUNK_BYTES - 1)))
        assert other.held_chunks(CONTENT) == 2


def test_a_node_without_a_store_reads_through_a_window(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, limit_bytes=0) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        assert other.read(CONTENT) == DATA
        assert other.held_chunks(CONTENT) == 0


@pytest.mark.parametrize("limit_bytes", [2**30, 0])
def test_one_client_may_open_a_file_several_times(tmp_path: Path, limit_bytes: int) -> None:
    with (
        nodes(tmp_path, 1) as [owner],
        nodes(tmp_path / "more", 2, limit_bytes=limit_bytes) as [_, other],
    ):
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client = other.client()
        one = client.open_file(CONTENT, label="one", job=JOB)
        two = client.open_file(CONTENT, label="two", job=JOB)
        for start in (0, 3 * CHUNK_BYTES):
            for file in (one, two):
                out = bytearray(2 * CHUNK_BYTES)
                file.read_into(start, memoryview(out))
                assert out == DATA[start : start + len(out)]
        one.close()
        out = bytearray(len(DATA))
        two.read_into(0, memoryview(out))
        assert out == DATA
        two.close()
        three = client.open_file(CONTENT, label="three", job=JOB)
        three.read_into(0, memoryview(out))
        assert out == DATA


@pytest.mark.slow
def test_threads_may_share_a_window(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [owner], nodes(tmp_path / "more", 2, limit_bytes=0) as [_, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client = other.client()

        def read() -> bytes:
            file = client.open_file(CONTENT, label="model", job=JOB)
            out = bytearray(len(DATA))
            for at in range(0, len(DATA), 300_000):
                file.read_into(at, memoryview(out)[at : at + 300_000])
                file.release()
            file.close()
            return bytes(out)

        with ThreadPoolExecutor(3) as pool:
            assert [each.result() for each in [pool.submit(read) for _ in range(3)]] == [DATA] * 3
