"""What is read without being kept: the memory that it takes, and what peers get of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.store_files import content_of
from support.cluster.transfers import JOB, TransferNode, file_bytes, from_peer, manifest_of, nodes
from support.processes.waiting import eventually

from potluck.cluster.transfer.demand import WINDOW_CHUNKS
from potluck.cluster.transfer.fetch_order import MOST_WINDOW_CHUNKS
from potluck.cluster.transfer.window import Window
from potluck.types.content import CHUNK_BYTES, FileContent

DATA = file_bytes(60 * CHUNK_BYTES + 100, seed=6)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[TransferNode, TransferNode]]:
    with (
        nodes(tmp_path / "store", 1) as [owner],
        nodes(tmp_path / "none", 2, limit_bytes=0) as [
            _,
            streaming,
        ],
    ):
        owner.give("model.gguf", DATA)
        streaming.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        yield owner, streaming


def in_memory(node: TransferNode) -> int:
    """Bytes of all windows, as the kernel counts them."""
    with node.board.changes:
        return sum(
            os.fstat(window.descriptor()).st_blocks * 512
            for demand in node.board.readers.demands()
            for window in demand.windows.values()
        )


def test_a_punched_chunk_gives_its_memory_back() -> None:
    window = Window(FileContent("00" * 32, 5 * CHUNK_BYTES + 1))
    before = os.fstat(window.descriptor()).st_blocks
    window.put(2, b"x" * CHUNK_BYTES)
    window.put(5, b"y")
    assert os.fstat(window.descriptor()).st_blocks * 512 > CHUNK_BYTES
    assert window.read(2) == b"x" * CHUNK_BYTES
    assert window.read(5) == b"y"
    window.punch(2)
    window.punch(5)
    assert os.fstat(window.descriptor()).st_blocks == before
    window.close()


@pytest.mark.slow
def test_a_reader_that_stops_has_no_more_than_its_window_ahead(
    pair: tuple[TransferNode, TransferNode],
) -> None:
    _, streaming = pair
    client = streaming.client()
    client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
    eventually(lambda: in_memory(streaming) >= WINDOW_CHUNKS * CHUNK_BYTES)
    threading.Event().wait(0.5)
    assert in_memory(streaming) == WINDOW_CHUNKS * CHUNK_BYTES


@pytest.mark.slow
def test_all_readers_together_have_a_bound(pair: tuple[TransferNode, TransferNode]) -> None:
    _, streaming = pair
    clients = [streaming.client() for _ in range(4)]
    for number, client in enumerate(clients):
        start = number * 14 * CHUNK_BYTES
        client.want(JOB, [(CONTENT, [(start, len(DATA))])], keep=False)
    threading.Event().wait(1.5)
    assert in_memory(streaming) <= MOST_WINDOW_CHUNKS * CHUNK_BYTES * 1.5
    for number, client in enumerate(clients):
        file = client.open_file(CONTENT, label="model", job=JOB)
        start = number * 14 * CHUNK_BYTES
        out = bytearray(5 * CHUNK_BYTES)
        file.read_into(start, memoryview(out))
        assert out == DATA[start : start + len(out)]


@pytest.mark.slow
def test_any_order_of_reading_works(pair: tuple[TransferNode, TransferNode]) -> None:
    _, streaming = pair
    client = streaming.client()
    client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
    file = client.open_file(CONTENT, label="model", job=JOB)
    for start in (50, 3, 30, 29, 59, 0, 3):
        at = start * CHUNK_BYTES + 7
        out = bytearray(min(2 * CHUNK_BYTES, len(DATA) - at))
        file.read_into(at, memoryview(out))
        assert out == DATA[at : at + len(out)]
        assert in_memory(streaming) <= (MOST_WINDOW_CHUNKS + 4) * CHUNK_BYTES
    file.release()
    file.close()
    eventually(lambda: in_memory(streaming) == 0)


@pytest.mark.slow
def test_one_read_may_be_larger_than_the_window(pair: tuple[TransferNode, TransferNode]) -> None:
    _, streaming = pair
    assert streaming.read(CONTENT) == DATA


def test_a_reader_that_dies_gives_its_memory_back(
    pair: tuple[TransferNode, TransferNode],
) -> None:
    _, streaming = pair
    client = streaming.client()
    client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
    eventually(lambda: in_memory(streaming) > 0)
    client.close()
    eventually(lambda: not streaming.board.readers)
    assert in_memory(streaming) == 0


@pytest.mark.slow
def test_a_window_passes_on_what_peers_wait_for(
    tmp_path: Path, pair: tuple[TransferNode, TransferNode]
) -> None:
    owner, streaming = pair
    with nodes(tmp_path / "more", 3) as [*_, third]:
        third.set_sources(
            MANIFEST,
            [from_peer(CONTENT, streaming, 0, 20), from_peer(CONTENT, owner)],
            [streaming, owner],
        )
        third.client().want(JOB, [(CONTENT, [(0, 20 * CHUNK_BYTES)])], keep=True)
        eventually(lambda: "session" in {each.name for each in threading.enumerate()})
        threading.Event().wait(0.5)
        client = streaming.client()
        client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
        file = client.open_file(CONTENT, label="model", job=JOB)
        out = bytearray(len(DATA))
        file.read_into(0, memoryview(out))
        assert out == DATA
        eventually(lambda: third.held_chunks(CONTENT) == 20)
        eventually(lambda: third.progress().by_source == {streaming.node_id: 20 * CHUNK_BYTES})
        file.release()
        eventually(lambda: in_memory(streaming) == 0)
