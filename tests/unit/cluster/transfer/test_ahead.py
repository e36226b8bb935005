"""Chunks that readers will want are fetched before they start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cluster.store_files import content_of
from support.cluster.transfers import JOB, TransferNode, file_bytes, from_peer, manifest_of, nodes
from support.processes.waiting import eventually

from potluck.cluster.transfer import fetch_order
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.types.content import CHUNK_BYTES, ReadingOrder

DATA = file_bytes(6 * CHUNK_BYTES + 77, seed=21)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})
ORDER: ReadingOrder = ((CONTENT.sha256, ((4, 7), (0, 2))),)


def fetch_ahead(node: TransferNode, owner: TransferNode) -> None:
    node.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner], ahead=ORDER)


def test_chunks_are_stored_before_a_reader_wants_them(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        eventually(lambda: node.held_chunks(CONTENT) == 5)
        assert node.board.files.held([CONTENT])[0] == {CONTENT.sha256: ((0, 2), (4, 7))}


def test_a_reader_counts_what_was_fetched_ahead_for_its_source(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        eventually(lambda: node.held_chunks(CONTENT) == 5)
        client = node.client()
        file = client.open_file(CONTENT, label="model", job=JOB)
        file.read_into(0, memoryview(bytearray(10)))
        client.want(JOB, [(CONTENT, [(0, 3 * CHUNK_BYTES)])], keep=True)
        three_chunks = {owner.node_id: 3 * CHUNK_BYTES}
        eventually(lambda: node.progress().by_source == three_chunks)
        assert node.progress().total_bytes == 3 * CHUNK_BYTES
        client.close()
        again = node.client()
        again.want(JOB, [(CONTENT, [(0, CHUNK_BYTES)])], keep=True)
        from_disk = three_chunks | {"disk": CHUNK_BYTES}
        eventually(lambda: node.progress().by_source == from_disk)


@pytest.mark.parametrize("meanwhile", ["other sources", "a reader of other files"])
def test_what_was_fetched_ahead_keeps_its_source(tmp_path: Path, meanwhile: str) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        eventually(lambda: node.held_chunks(CONTENT) == 5)
        client = node.client()
        if meanwhile == "other sources":
            fetch_ahead(node, owner)
        else:
            client.want(JOB, [], keep=True)
            eventually(lambda: len(node.board.readers.demands_of(JOB)) == 1)
            node.board.tick()
        client.want(JOB, [(CONTENT, [(0, 2 * CHUNK_BYTES)])], keep=True)
        expected = {owner.node_id: 2 * CHUNK_BYTES}
        eventually(lambda: node.progress().by_source == expected)


def test_a_chunk_that_is_read_as_soon_as_it_is_written_keeps_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SharedFile.write
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        client = node.client()
        client.open_file(CONTENT, label="model", job=JOB)

        def write_and_read(file: SharedFile, chunk: int, data: bytes, digest: bytes) -> None:
            write(file, chunk, data, digest)
            [reader] = [each for each in node.board.readers if JOB in each.demands]
            found = node.board.reading.find(reader, CONTENT, chunk, chunk + 1)
            assert isinstance(found, tuple)
            os.close(found[1])

        monkeypatch.setattr(SharedFile, "write", write_and_read)
        node.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client.want(JOB, [(CONTENT, [(0, 2 * CHUNK_BYTES)])], keep=True)
        eventually(lambda: node.progress().done_bytes == 2 * CHUNK_BYTES)
        assert node.progress().by_source == {owner.node_id: 2 * CHUNK_BYTES}


def test_a_reader_that_wants_other_chunks_has_those_that_it_got(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        node.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client = node.client()
        seen = []
        for first, end, num_chunks in ((0, 2, 2), (1, 4, 4), (5, 6, 5)):
            client.want(JOB, [(CONTENT, [(first * CHUNK_BYTES, end * CHUNK_BYTES)])], keep=True)
            expected = num_chunks * CHUNK_BYTES

            def is_done(num_bytes: int = expected) -> bool:
                return node.progress().done_bytes == num_bytes

            eventually(is_done)
            seen.append((node.progress().total_bytes, node.progress().by_source))
        assert seen == [
            (number * CHUNK_BYTES, {owner.node_id: number * CHUNK_BYTES}) for number in (2, 4, 5)
        ]


def test_a_peer_gets_what_is_fetched_ahead(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as [owner, node, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, node)], [node])
        client = other.client()
        client.want(JOB, [(CONTENT, [(0, 2 * CHUNK_BYTES)])], keep=True)
        fetch_ahead(node, owner)
        eventually(lambda: other.held_chunks(CONTENT) == 2)


def test_nothing_is_fetched_ahead_where_nothing_is_stored(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [owner], nodes(tmp_path / "more", 2, limit_bytes=0) as [_, node]:
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        assert len(node.board.readers) == 0
        assert node.read(CONTENT) == DATA


def test_a_full_store_ends_it_and_a_reader_still_gets_the_file(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, 1) as [owner],
        nodes(tmp_path / "more", 2, limit_bytes=3 * CHUNK_BYTES) as [_, node],
    ):
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        eventually(lambda: len(node.board.readers) == 0)
        assert node.read(CONTENT) == DATA


@pytest.mark.parametrize("ends", ["job", "sources"])
def test_it_ends_with_the_job_and_when_the_sources_change(tmp_path: Path, ends: str) -> None:
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(MANIFEST, [], ahead=ORDER)  # nothing arrives
        assert len(node.board.readers) == 1
        if ends == "job":
            node.board.end_job(JOB)
        else:
            node.set_sources(MANIFEST, [])
        assert len(node.board.readers) == 0
        assert len(node.board.files) == 0


def test_nothing_more_of_earlier_requests_ahead_arrives(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        node.set_sources(MANIFEST, [], ahead=ORDER)
        client = node.client()
        client.want(JOB, [(CONTENT, [(3 * CHUNK_BYTES, 4 * CHUNK_BYTES)])], keep=True)
        eventually(lambda: len(node.board.readers.demands_of(JOB)) == 1)
        node.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        file = client.open_file(CONTENT, label="model", job=JOB)
        file.read_into(2 * CHUNK_BYTES, memoryview(bytearray(CHUNK_BYTES + 1)))
        assert node.board.files.held([CONTENT])[0] == {CONTENT.sha256: ((2, 4),)}


def test_files_are_closed_if_no_reader_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nodes(tmp_path, 2) as [owner, node]:
        owner.give("model.gguf", DATA)
        fetch_ahead(node, owner)
        eventually(lambda: node.held_chunks(CONTENT) == 5)
        node.board.tick()
        assert len(node.board.readers) == 1, "one may still come"
        monkeypatch.setattr(fetch_order, "READER_SECONDS", 0.0)
        eventually(lambda: len(node.board.readers) == 0)
        assert len(node.board.files) == 0
