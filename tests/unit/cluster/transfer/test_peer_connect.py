"""Peers that this node cannot connect to, and that connect to it instead."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cluster.edges import credentials
from support.cluster.store_files import content_of
from support.cluster.transfers import TransferNode, file_bytes, from_peer, manifest_of, nodes
from support.processes.waiting import eventually

from potluck.cluster.transfer import assignments, peer_lane
from potluck.cluster.transfer import peer_lane as peer_connect
from potluck.cluster.transfer.messages import DialWanted
from potluck.cluster.transfer.peer_frames import HELLO, OFFER, SERVER_NAME, is_offer
from potluck.cluster.transfer.peer_lane import connect_to_peer
from potluck.errors import TransferError
from potluck.types.cluster import NodeId
from potluck.types.content import CHUNK_BYTES

DATA = file_bytes(70 * CHUNK_BYTES + 5, seed=4)
CONTENT = content_of(DATA)
MANIFEST = manifest_of({"model.gguf": DATA})
STRANGER = NodeId("f" * 16)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_lane, "_PAUSES", (0.05, 0.05))
    monkeypatch.setattr(peer_lane, "_IDLE_SECONDS", 0.3)
    monkeypatch.setattr(assignments, "STRANDED_SECONDS", 0.5)
    monkeypatch.setattr(peer_connect, "DIAL_BACK_SECONDS", 2.0)


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    """An address that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()


@pytest.fixture
def one_way(tmp_path: Path) -> Iterator[tuple[TransferNode, TransferNode]]:
    """A node with the file, and one that has a wrong address of it."""
    with nodes(tmp_path, 2) as [behind, node], closed_port() as closed:
        behind.give("model.gguf", DATA)
        source = from_peer(CONTENT, behind)
        node.set_sources(MANIFEST, [source], addresses={behind.node_id: closed})
        yield behind, node


def count_dial_requests(node: TransferNode) -> int:
    return sum(isinstance(each, DialWanted) for each in node.reports)


@pytest.mark.slow
def test_a_peer_that_cannot_be_connected_to_connects_itself(
    one_way: tuple[TransferNode, TransferNode], caplog: pytest.LogCaptureFixture
) -> None:
    behind, node = one_way
    node.ask_to_dial = lambda _: behind.service.serve_peer(node.node_id, node.address)
    with caplog.at_level(logging.WARNING):
        assert node.read(CONTENT) == DATA
    assert count_dial_requests(node) == 1
    assert "no bytes received" not in caplog.text
    assert "sent wrong bytes" not in caplog.text
    eventually(lambda: node.progress().done_bytes == len(DATA))
    by_source = node.progress().by_source
    # What the reader had fetched before the job asked for it counts as found on this disk.
    assert set(by_source) <= {behind.node_id, "disk"}
    assert by_source[behind.node_id] > len(DATA) // 2


@pytest.mark.slow
def test_it_is_asked_again_at_once_after_the_connection_was_closed(
    one_way: tuple[TransferNode, TransferNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, node = one_way
    tried: list[NodeId] = []

    def counted(peer: NodeId, address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
        tried.append(peer)
        return connect_to_peer(peer, address, context)

    monkeypatch.setattr(peer_lane, "connect_to_peer", counted)
    node.ask_to_dial = lambda _: behind.service.serve_peer(node.node_id, node.address)
    assert node.read(CONTENT, 0, 100) == DATA[:100]
    eventually(lambda: "peer" not in {each.name for each in threading.enumerate()})
    at = 50 * CHUNK_BYTES
    assert node.read(CONTENT, at, at + 100) == DATA[at : at + 100]
    assert count_dial_requests(node) == 2
    assert tried == [behind.node_id], "it was known that this does not work"


@pytest.mark.slow
def test_a_peer_that_does_not_connect_has_failed(
    one_way: tuple[TransferNode, TransferNode],
) -> None:
    _, node = one_way
    node.ask_to_dial = lambda _: None
    with pytest.raises(TransferError, match="Connection refused"):
        node.read(CONTENT)
    assert count_dial_requests(node) == 3, "at each attempt"


@pytest.mark.slow
def test_another_source_replaces_one_that_does_not_connect(
    one_way: tuple[TransferNode, TransferNode], tmp_path: Path
) -> None:
    behind, node = one_way
    with nodes(tmp_path / "more", 3) as [*_, third], closed_port() as closed:
        third.give("model.gguf", DATA)
        sources = [from_peer(CONTENT, behind), from_peer(CONTENT, third)]
        node.set_sources(MANIFEST, sources, [third], addresses={behind.node_id: closed})
        assert node.read(CONTENT) == DATA


@pytest.mark.slow
def test_neither_side_serves_one_that_was_removed(
    one_way: tuple[TransferNode, TransferNode],
) -> None:
    behind, node = one_way
    behind.board.assignments.set_refused(frozenset({node.node_id}))
    with pytest.raises(TransferError, match="was removed"):
        behind.service.serve_peer(node.node_id, node.address)


def test_a_node_connects_only_to_the_one_that_asked(
    one_way: tuple[TransferNode, TransferNode],
) -> None:
    behind, node = one_way
    with pytest.raises(TransferError, match="a different node"):
        behind.service.serve_peer(STRANGER, node.address)
    with (
        closed_port() as closed,
        pytest.raises(TransferError, match=r"cannot connect to node .* either: Connection refused"),
    ):
        behind.service.serve_peer(STRANGER, closed)


def test_a_connection_that_nobody_asked_for_is_closed(
    one_way: tuple[TransferNode, TransferNode],
) -> None:
    _, node = one_way
    raw = socket.create_connection(node.address, timeout=20)
    context = credentials(STRANGER).client_context()
    with context.wrap_socket(raw, server_hostname=SERVER_NAME) as connection:
        connection.sendall(OFFER)
        connection.settimeout(20)
        assert connection.recv(1) == b""


def test_a_connection_that_ends_before_its_hello_is_refused(
    one_way: tuple[TransferNode, TransferNode], caplog: pytest.LogCaptureFixture
) -> None:
    behind, _ = one_way
    raw = socket.create_connection(behind.address, timeout=20)
    context = credentials(STRANGER).client_context()
    with caplog.at_level(logging.WARNING):
        with context.wrap_socket(raw, server_hostname=SERVER_NAME) as connection:
            connection.sendall(HELLO[:3])
        eventually(lambda: "before sending a hello" in caplog.text)


def test_an_offer_is_no_hello() -> None:
    assert is_offer(OFFER)
    assert not is_offer(HELLO)
    assert len(OFFER) == len(HELLO)


def test_answers_that_come_too_late_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = NodeId("a" * 16)
    monkeypatch.setattr(peer_connect, "DIAL_BACK_SECONDS", 0.1)
    was_requested = threading.Event()
    waiting = peer_connect.DialBacks(lambda _: was_requested.set())
    with pytest.raises(peer_connect.PeerFailedError, match=r"did not connect within 0\.1 s"):
        waiting.connection(peer)
    assert was_requested.is_set()
    waiting.answer(peer, "of the first request")
    with pytest.raises(peer_connect.PeerFailedError, match="within"):
        waiting.connection(peer)
    assert not waiting.is_needed(peer)
