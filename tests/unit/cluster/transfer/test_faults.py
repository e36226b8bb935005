"""Peers that lie, fall silent or die, disks that fill, nodes that were removed."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.cluster.edges import OTHER_SECRET, credentials
from support.cluster.store_files import content_of, digests_of
from support.cluster.transfers import (
    JOB,
    TransferNode,
    file_bytes,
    from_peer,
    manifest_of,
    nodes,
)
from support.processes.waiting import eventually

from potluck.cluster.transfer import assignments, jobs, peer_frames, peer_lane, peer_session
from potluck.cluster.transfer.messages import AskState, Progress, Refused
from potluck.cluster.transfer.peer_frames import HEAD, HELLO, encode_chunk, encode_wait
from potluck.errors import TransferError
from potluck.types.cluster import NodeId
from potluck.types.content import CHUNK_BYTES

DATA = file_bytes(6 * CHUNK_BYTES + 5, seed=4)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})
LIAR = NodeId("f" * 16)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_lane, "_PAUSES", (0.05, 0.05))
    monkeypatch.setattr(peer_lane, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(peer_lane, "_GUESS_SECONDS", 1.0)
    monkeypatch.setattr(assignments, "STRANDED_SECONDS", 1.0)
    monkeypatch.setattr(jobs, "OWN_READER_SECONDS", 0.5)


@contextmanager
def peer(
    behave: Callable[[ssl.SSLSocket], None], *, secret: str | None = None
) -> Iterator[tuple[str, int]]:
    """A member that answers requests as ``behave`` does, once the first has arrived."""
    given = credentials(LIAR) if secret is None else credentials(LIAR, secret)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = server.accept()
            except OSError:
                return
            try:
                with given.server_context().wrap_socket(raw, server_side=True) as connection:
                    connection.sendall(HELLO)
                    connection.recv(len(HELLO), 0)
                    connection.recv(4096)
                    behave(connection)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def send_chunk(connection: ssl.SSLSocket, chunk: int, data: bytes, digest: bytes) -> None:
    connection.sendall(encode_chunk(CONTENT.sha256, chunk, digest, len(data)) + data)


def chunk_of(chunk: int) -> bytes:
    return DATA[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]


def test_a_peer_that_sends_garbage_is_dropped_and_another_one_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = bytearray(chunk_of(0))
    garbage[77] ^= 8
    digests = digests_of(DATA)

    def behave(connection: ssl.SSLSocket) -> None:
        send_chunk(connection, 0, bytes(garbage), content_of(bytes(garbage)).sha256.encode()[:32])
        connection.recv(1)

    with nodes(tmp_path, 2) as [owner, other], peer(behave) as address:
        owner.give("model.gguf", DATA)
        other.board.add_digests(CONTENT, digests, is_verified=True)
        other.set_sources(
            MANIFEST,
            [from_peer(CONTENT, LIAR), from_peer(CONTENT, owner)],
            [owner],
            addresses={LIAR: address},
        )
        with caplog.at_level(logging.WARNING):
            assert other.read(CONTENT) == DATA
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if str(LIAR) in line] == [
            f"node {LIAR} sent wrong bytes and is temporarily excluded: "
            "chunk 0 of model does not match its SHA-256"
        ]


@pytest.mark.slow
def test_bytes_that_differ_from_their_announced_digest_are_refused(tmp_path: Path) -> None:
    def behave(connection: ssl.SSLSocket) -> None:
        send_chunk(connection, 0, chunk_of(0), b"\0" * 32)
        connection.recv(1)

    with nodes(tmp_path, 1) as [node], peer(behave) as address:
        node.set_sources(MANIFEST, [from_peer(CONTENT, LIAR)], addresses={LIAR: address})
        with pytest.raises(TransferError, match=f"node {LIAR} sent wrong bytes"):
            node.read(CONTENT)
        assert node.held_chunks(CONTENT) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        HEAD.pack(2, 2**31),
        HEAD.pack(9, 0),
        HEAD.pack(2, 10) + b"x" * 10,
        HEAD.pack(3, 3) + b"abc",
        encode_chunk(CONTENT.sha256, 5000, b"\0" * 32, 1) + b"x",
        encode_chunk("00" * 32, 0, b"\0" * 32, 1) + b"x",
        encode_chunk(CONTENT.sha256, 0, b"\0" * 32, 5) + b"short",
        b"",
    ],
)
def test_a_peer_that_does_not_speak_the_protocol_is_left_for_another(
    tmp_path: Path, answer: bytes
) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        with peer(lambda connection: connection.sendall(answer)) as address:
            other.set_sources(
                MANIFEST,
                [from_peer(CONTENT, LIAR), from_peer(CONTENT, owner)],
                [owner],
                addresses={LIAR: address},
            )
            assert other.read(CONTENT) == DATA


@pytest.mark.slow
def test_a_peer_that_falls_silent_is_left_for_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def behave(connection: ssl.SSLSocket) -> None:
        connection.sendall(encode_wait())
        send_chunk(connection, 0, chunk_of(0), digests_of(DATA)[:32])
        time.sleep(60)

    with nodes(tmp_path, 2) as [owner, other], peer(behave) as address:
        owner.give("model.gguf", DATA)
        other.set_sources(
            MANIFEST,
            [from_peer(CONTENT, LIAR), from_peer(CONTENT, owner)],
            [owner],
            addresses={LIAR: address},
        )
        assert other.read(CONTENT) == DATA
        assert f"no bytes received from node {LIAR}: it does not answer" in caplog.text


@pytest.mark.slow
def test_a_peer_whose_bytes_are_on_their_way_is_not_taken_for_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_session, "WAIT_SECONDS", 0.2)
    with nodes(tmp_path, 3) as [owner, seed, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, seed)], [seed])
        read: list[bytes] = []
        thread = threading.Thread(target=lambda: read.append(other.read(CONTENT)))
        thread.start()
        time.sleep(2.5)  # longer than the silence that is borne
        seed.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        thread.join(80)
        assert read == [DATA]


@pytest.mark.slow
def test_nodes_that_would_wait_for_each_other_in_a_circle_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_session, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(peer_session, "_GRACE_SECONDS", 1.0)
    with nodes(tmp_path, 3) as made:
        seed, second, third = made
        seed.set_sources(  # the only source of the first chunk is gone
            MANIFEST,
            [from_peer(CONTENT, LIAR, 0, 1), from_peer(CONTENT, third, 1)],
            [third],
            addresses={LIAR: ("127.0.0.1", 9)},
        )
        second.set_sources(MANIFEST, [from_peer(CONTENT, seed)], [seed])
        third.set_sources(MANIFEST, [from_peer(CONTENT, second)], [second])
        failures: list[str] = []

        def read(node: TransferNode) -> None:
            with pytest.raises(TransferError) as caught:
                node.read(CONTENT, 0, 1)
            failures.append(caught.value.message)

        threads = [threading.Thread(target=read, args=(node,)) for node in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(failures) == 3
        assert any(f"node {third.node_id} waits for it, too" in each for each in failures)


@pytest.mark.slow
def test_a_seed_that_dies_half_way_is_replaced_by_new_sources(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def behave(connection: ssl.SSLSocket) -> None:
        send_chunk(connection, 0, chunk_of(0), digests_of(DATA)[:32])
        send_chunk(connection, 1, chunk_of(1), digests_of(DATA)[32:64])

    with nodes(tmp_path, 2) as [owner, other], peer(behave) as address:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, LIAR)], addresses={LIAR: address})
        read: list[bytes] = []
        thread = threading.Thread(target=lambda: read.append(other.read(CONTENT)))
        thread.start()
        eventually(lambda: f"no bytes received from node {LIAR}" in caplog.text)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        thread.join(80)
        assert read == [DATA]
        eventually(
            lambda: (
                any(isinstance(each, Progress) for each in other.reports)
                and other.progress().done_bytes == len(DATA)
            )
        )
        by_source = other.progress().by_source
        assert by_source[LIAR] >= 2 * CHUNK_BYTES
        assert by_source[LIAR] + by_source[owner.node_id] == len(DATA)


@pytest.mark.slow
def test_a_job_that_failed_begins_again_with_new_sources(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [])
        with pytest.raises(TransferError):
            other.read(CONTENT)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        assert other.read(CONTENT) == DATA


@pytest.mark.slow
def test_another_node_at_a_peers_address_is_not_believed(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, LIAR)], addresses={LIAR: owner.address})
        with pytest.raises(TransferError, match=rf"node \({owner.node_id}\) answers at"):
            other.read(CONTENT)


@pytest.mark.slow
def test_a_stranger_at_a_peers_address_is_not_believed(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [node], peer(lambda _: None, secret=OTHER_SECRET) as address:
        node.set_sources(MANIFEST, [from_peer(CONTENT, LIAR)], addresses={LIAR: address})
        with pytest.raises(TransferError, match="certificate was not issued by this cluster"):
            node.read(CONTENT)


def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [owner]:
        owner.give("model.gguf", DATA)
        raw = socket.create_connection(owner.address, timeout=20)
        context = credentials(LIAR, OTHER_SECRET).client_context()
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            context.wrap_socket(raw)


def test_a_member_that_asks_nonsense_is_closed(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as [owner]:
        owner.give("model.gguf", DATA)
        for nonsense in (
            b"GET / HTTP/1.1\r\n\r\n",
            HELLO + HEAD.pack(1, 10_000),
            HELLO + peer_frames.encode_want(CONTENT, 0, 10**6),
            HELLO + peer_frames.encode_want(CONTENT, 3, 3),
        ):
            raw = socket.create_connection(owner.address, timeout=20)
            with credentials(LIAR).client_context().wrap_socket(raw) as connection:
                connection.sendall(nonsense)
                connection.settimeout(20)
                received = b""
                while part := connection.recv(4096):
                    received += part
                assert received == HELLO


@pytest.mark.slow
def test_chunks_that_a_file_does_not_have_are_not_hashed(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as (node,):
        with closing(node.service.store.blob(CONTENT)) as blob:
            blob.write_chunk(0, chunk_of(0))
            blob.mark_verified(digests_of(DATA))
        # Where an index has padding, digests and nothing, and where no file can have anything.
        firsts = (CONTENT.num_chunks, *range(3584, 3624), 10**6, 2**63)
        for first in firsts:
            node.service._serve_agent_message(
                AskState(first, CONTENT.sha256, first, first + 1, b"")
            )
        eventually(lambda: len(node.reports) == len(firsts))
        assert all(isinstance(each, Refused) for each in node.reports)
        with closing(node.service.store.blob(CONTENT)) as blob:
            assert blob.is_verified
            assert blob.all_digests == digests_of(DATA)


def test_a_removed_node_gets_nothing(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, removed]:
        owner.give("model.gguf", DATA)
        owner.board.assignments.set_refused(frozenset({removed.node_id}))
        removed.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        with pytest.raises(TransferError):
            removed.read(CONTENT)


def test_a_damaged_chunk_in_the_store_is_fetched_again(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        assert other.read(CONTENT) == DATA
        eventually(lambda: not other.board.files)
        [stored] = (other.folder / "weights").glob("*.data")
        with stored.open("r+b") as file:
            file.seek(2 * CHUNK_BYTES + 5)
            file.write(b"damaged")
        assert other.read(CONTENT) == DATA


@pytest.mark.slow
def test_a_full_store_has_the_rest_read_through_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = file_bytes(40 * CHUNK_BYTES, seed=8)
    content = content_of(data)
    with (
        nodes(tmp_path, 1) as [owner],
        nodes(tmp_path / "small", 2, limit_bytes=10 * CHUNK_BYTES) as [_, other],
    ):
        owner.give("model.gguf", data)
        other.set_sources(manifest_of({"model.gguf": data}), [from_peer(content, owner)], [owner])
        client = other.client()
        client.want(JOB, [(content, [(0, len(data))])], keep=True)
        file = client.open_file(content, label="model", job=JOB)
        read = bytearray(len(data))
        with caplog.at_level(logging.WARNING):
            for at in range(0, len(data), 3 * CHUNK_BYTES):
                piece = memoryview(read)[at : at + 3 * CHUNK_BYTES]
                file.read_into(at, piece)
        assert read == data
        assert other.held_chunks(content) == 10
        warnings = [each.getMessage() for each in caplog.records if "full" in each.getMessage()]
        assert len(warnings) == 1


@pytest.mark.slow
def test_an_ended_job_is_not_fetched_any_more(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as [owner, other]:
        owner.give("model.gguf", DATA)
        owner.service.set_serving(True, 0)
        other.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        client = other.client()
        client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=True)
        eventually(lambda: other.held_chunks(CONTENT) >= 1)
        other.board.end_job(JOB)
        time.sleep(1.5)
        held = other.held_chunks(CONTENT)
        time.sleep(1.5)
        assert other.held_chunks(CONTENT) == held < CONTENT.num_chunks


@pytest.mark.slow
def test_a_connection_of_a_node_that_is_removed_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with nodes(tmp_path, 2) as [owner, removed]:
        owner.give("model.gguf", DATA)
        owner.service.set_serving(True, 0)  # at 2 MB/s
        removed.set_sources(MANIFEST, [from_peer(CONTENT, owner)], [owner])
        removed.client().want(JOB, [(CONTENT, [(0, len(DATA))])], keep=True)
        eventually(lambda: removed.held_chunks(CONTENT) >= 1)
        owner.removed.write_text(f"{removed.node_id} 2026-11-23 0\n")
        eventually(lambda: f"no bytes received from node {owner.node_id}" in caplog.text)
        assert removed.held_chunks(CONTENT) < CONTENT.num_chunks
