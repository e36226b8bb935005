"""Chunks that come from a hub on loopback, and what hubs do wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cluster.store_files import content_of
from support.cluster.transfers import (
    JOB,
    TransferNode,
    file_bytes,
    from_hub,
    from_peer,
    manifest_of,
    nodes,
)
from support.network.fake_hub import FakeHub, Repository, serve_hub
from support.processes.waiting import done_within, eventually

from potluck.catalog.hub_client import may_fetch
from potluck.cluster.transfer import assignments, hub_lane, jobs, peer_session, window
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.errors import TransferError
from potluck.types.content import CHUNK_BYTES, HubOrigin, Manifest

DATA = file_bytes(6 * CHUNK_BYTES + 999, seed=3)
CONTENT = content_of(DATA)
NAME = "model.gguf"
REPOSITORY = "org/model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(hub_lane, "_PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(assignments, "STRANDED_SECONDS", 0.5)
    monkeypatch.setattr(jobs, "OWN_READER_SECONDS", 0.5)
    with serve_hub({REPOSITORY: {NAME: DATA}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield hub
        close_session()


def manifest(hub: FakeHub) -> Manifest:
    commit = hub.repositories[REPOSITORY].commit
    return manifest_of({NAME: DATA}, hub=HubOrigin(REPOSITORY, commit))


@pytest.mark.slow
def test_a_file_comes_from_the_hub_once(tmp_path: Path, hub: FakeHub) -> None:
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        assert node.read(CONTENT) == DATA
        assert node.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] == len(DATA)


def test_a_range_comes_alone(tmp_path: Path, hub: FakeHub) -> None:
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        client = node.client()
        client.want(JOB, [(CONTENT, [(2 * CHUNK_BYTES, 4 * CHUNK_BYTES)])], keep=True)
        eventually(lambda: node.held_chunks(CONTENT) == 2)
        assert hub.sent_bytes[NAME] == 2 * CHUNK_BYTES


@pytest.mark.slow
def test_several_nodes_get_what_one_fetches_while_it_arrives(tmp_path: Path, hub: FakeHub) -> None:
    hub.held_after = 3 * CHUNK_BYTES
    with nodes(tmp_path, 4) as [seed, *others]:
        for other in others:
            other.set_sources(manifest(hub), [from_peer(CONTENT, seed)], [seed])
        clients = [other.client() for other in others]
        for client in clients:
            client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=True)
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        seed.client().want(JOB, [(CONTENT, [(0, len(DATA))])], keep=True)
        for other in others:
            eventually(lambda each=other: each.held_chunks(CONTENT) == 3)  # type: ignore[misc]
        hub.released.set()
        for other in others:
            eventually(lambda each=other: each.held_chunks(CONTENT) == 7)  # type: ignore[misc]
            assert other.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] == len(DATA)


@pytest.mark.slow
def test_a_seed_fetches_for_a_peer_before_its_own_reader_asks(tmp_path: Path, hub: FakeHub) -> None:
    with nodes(tmp_path, 2) as [seed, other]:
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        other.set_sources(manifest(hub), [from_peer(CONTENT, seed)], [seed])
        assert other.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] == len(DATA)


def test_nothing_is_downloaded_for_a_reader_that_is_gone(tmp_path: Path, hub: FakeHub) -> None:
    """Although another one uses the file, as a coordinator does that has read its header."""
    hub.held_after = 3 * CHUNK_BYTES
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        node.client().want("another job", [(CONTENT, [(0, 10)])], keep=True)
        client = node.client()
        client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=True)
        eventually(lambda: node.held_chunks(CONTENT) == 3)
        file = node.board.files.get(CONTENT.sha256)
        assert file is not None
        assert set(file.assigned) == {3, 4, 5, 6}
        client.close()
        eventually(lambda: not file.assigned)


def test_connections_that_break_go_on_at_the_chunk(tmp_path: Path, hub: FakeHub) -> None:
    hub.breaks[NAME] = [2 * CHUNK_BYTES + 500, 4 * CHUNK_BYTES + 9]
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        assert node.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] < len(DATA) + 2 * CHUNK_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("retry_after", ["0", "1", None])
def test_a_busy_hub_is_waited_for(tmp_path: Path, hub: FakeHub, retry_after: str | None) -> None:
    hub.busy, hub.retry_after = 3, retry_after
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        assert node.read(CONTENT) == DATA


@pytest.mark.slow
def test_a_hub_that_stays_busy_is_given_up(tmp_path: Path, hub: FakeHub) -> None:
    hub.busy = 1000
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        with pytest.raises(TransferError, match="rate limit is exceeded"):
            node.read(CONTENT)


def test_a_hub_that_ignores_ranges_is_read_through_once(tmp_path: Path, hub: FakeHub) -> None:
    hub.has_ranges = False
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        client = node.client()
        client.want(
            JOB,
            [(CONTENT, [(4 * CHUNK_BYTES, 5 * CHUNK_BYTES), (CHUNK_BYTES, 2 * CHUNK_BYTES)])],
            keep=True,
        )
        eventually(lambda: node.held_chunks(CONTENT) == 2)
        assert len(hub.fetched) + len(hub.header_reads) == 1
        assert node.read(CONTENT) == DATA


@pytest.mark.slow
def test_a_hub_with_a_shorter_file_is_an_error(tmp_path: Path, hub: FakeHub) -> None:
    short = DATA[: 2 * CHUNK_BYTES]
    repository = Repository(files={NAME: short})
    hub.repositories[REPOSITORY] = repository
    with nodes(tmp_path, 1) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        with pytest.raises(TransferError, match="shorter"):
            node.read(CONTENT, 3 * CHUNK_BYTES, 4 * CHUNK_BYTES)


@pytest.mark.slow
def test_a_hub_with_other_bytes_is_an_error_where_the_digests_are_known(
    tmp_path: Path, hub: FakeHub
) -> None:
    other = bytearray(DATA)
    other[CHUNK_BYTES + 7] ^= 1
    hub.repositories[REPOSITORY] = Repository(files={NAME: bytes(other)})
    with nodes(tmp_path, 1) as [node]:
        digests = b"".join(
            hashlib.sha256(DATA[at : at + CHUNK_BYTES]).digest()
            for at in range(0, len(DATA), CHUNK_BYTES)
        )
        node.board.add_digests(CONTENT, digests, is_verified=True)
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        assert node.read(CONTENT, 0, CHUNK_BYTES) == DATA[:CHUNK_BYTES]
        with pytest.raises(TransferError, match=r"chunk 1 of model\S* does not match its SHA-256"):
            node.read(CONTENT)


@pytest.mark.slow
def test_a_window_reads_the_hub_in_one_request(tmp_path: Path, hub: FakeHub) -> None:
    data = file_bytes(40 * CHUNK_BYTES, seed=9)
    content = content_of(data)
    hub.repositories[REPOSITORY] = Repository(files={NAME: data})
    commit = hub.repositories[REPOSITORY].commit
    with nodes(tmp_path, 1, limit_bytes=0) as [node]:
        node.set_sources(
            manifest_of({NAME: data}, hub=HubOrigin(REPOSITORY, commit)), [from_hub(content)]
        )
        client = node.client()
        client.want(JOB, [(content, [(0, len(data))])], keep=False)
        file = client.open_file(content, label=NAME, job=JOB)
        out = bytearray(3 * CHUNK_BYTES)
        for at in range(0, len(data), len(out)):
            piece = memoryview(out)[: min(len(out), len(data) - at)]
            file.read_into(at, piece)
            assert piece == data[at : at + len(piece)]
        assert hub.sent_bytes[NAME] == len(data)
        assert len(hub.header_reads) == 1


def test_a_seed_that_keeps_nothing_fetches_again_what_a_peer_comes_late_for(
    tmp_path: Path, hub: FakeHub
) -> None:
    with nodes(tmp_path, 2, limit_bytes=0) as [seed, other]:
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        client = seed.client()
        client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
        file = client.open_file(CONTENT, label=NAME, job=JOB)
        file.read_into(0, memoryview(bytearray(len(DATA))))
        other.set_sources(manifest_of({NAME: DATA}), [from_peer(CONTENT, seed)], [seed])
        with done_within(4):
            assert other.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] <= 2 * len(DATA)
        eventually(lambda: num_relayed(seed) == 0)


@pytest.mark.slow
def test_a_seed_without_a_store_fetches_what_it_has_no_use_for(
    tmp_path: Path, hub: FakeHub
) -> None:
    with nodes(tmp_path, 3, limit_bytes=0) as [seed, *others]:
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        for other in others:
            other.set_sources(manifest_of({NAME: DATA}), [from_peer(CONTENT, seed)], [seed])
        with ThreadPoolExecutor() as pool:
            assert list(pool.map(lambda other: other.read(CONTENT), others)) == [DATA] * 2
        assert hub.sent_bytes[NAME] <= 2 * len(DATA)


@pytest.mark.slow
def test_a_seed_whose_store_is_full_fetches_each_chunk_for_a_peer_once(
    tmp_path: Path, hub: FakeHub
) -> None:
    with nodes(tmp_path, 1, limit_bytes=2 * CHUNK_BYTES) as [seed]:
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        with nodes(tmp_path / "more", 2) as [_, other]:
            other.set_sources(manifest_of({NAME: DATA}), [from_peer(CONTENT, seed)], [seed])
            assert other.read(CONTENT) == DATA
        assert hub.sent_bytes[NAME] == len(DATA)


def num_relayed(node: TransferNode) -> int:
    """The number of chunks in a node's memory for peers."""
    return sum(len(each.present) for each in node.board.relay._windows.values())


@pytest.mark.slow
def test_what_is_relayed_at_once_has_a_bound(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MOST_RELAYED_CHUNKS", 2)
    most = 0
    with nodes(tmp_path, 2, limit_bytes=0) as [seed, other]:
        put = seed.board.relay.put

        def counted(file: SharedFile, chunk: int, data: memoryview | bytes) -> None:
            nonlocal most
            put(file, chunk, data)
            most = max(most, num_relayed(seed))

        monkeypatch.setattr(seed.board.relay, "put", counted)
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        other.set_sources(manifest_of({NAME: DATA}), [from_peer(CONTENT, seed)], [seed])
        assert other.read(CONTENT) == DATA
        assert 0 < most <= 2
        eventually(lambda: num_relayed(seed) == 0)


@pytest.mark.slow
def test_a_peer_is_told_that_the_hub_gives_its_seed_nothing(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_session, "_GRACE_SECONDS", 0.5)
    hub.busy = 1000
    with nodes(tmp_path, 2, limit_bytes=0) as [seed, other]:
        seed.set_sources(manifest(hub), [from_hub(CONTENT)])
        other.set_sources(manifest_of({NAME: DATA}), [from_peer(CONTENT, seed)], [seed])
        with pytest.raises(TransferError, match=f"node {seed.node_id}: it is not available here"):
            other.read(CONTENT)


def test_a_range_is_not_held_open_for_what_is_there(tmp_path: Path, hub: FakeHub) -> None:
    """The reader waits for chunk 3 while chunk 2, which it reads last, is in its window."""
    with nodes(tmp_path, 1, limit_bytes=0) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT, 2, 3)])
        client = node.client()
        order = [(at * CHUNK_BYTES, (at + 1) * CHUNK_BYTES) for at in (1, 3, 2)]
        client.want(JOB, [(CONTENT, order)], keep=False)
        file = client.open_file(CONTENT, label=NAME, job=JOB)
        eventually(lambda: hub.sent_bytes[NAME] == CHUNK_BYTES)
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        out = bytearray(CHUNK_BYTES)
        with done_within(3):
            for start, end in order:
                file.read_into(start, memoryview(out))
                assert out == DATA[start:end]


@pytest.mark.slow
def test_a_range_is_not_held_open_while_another_is_read(tmp_path: Path, hub: FakeHub) -> None:
    with nodes(tmp_path, 1, limit_bytes=0) as [node]:
        data = file_bytes(60 * CHUNK_BYTES, seed=10)
        content = content_of(data)
        hub.repositories[REPOSITORY] = Repository(files={NAME: data})
        commit = hub.repositories[REPOSITORY].commit
        node.set_sources(
            manifest_of({NAME: data}, hub=HubOrigin(REPOSITORY, commit)), [from_hub(content)]
        )
        idle = node.client()
        idle.want(JOB, [(content, [(0, 40 * CHUNK_BYTES)])], keep=False)
        eventually(lambda: hub.sent_bytes[NAME] >= 16 * CHUNK_BYTES)
        with done_within(3):
            assert node.read(content, 50 * CHUNK_BYTES) == data[50 * CHUNK_BYTES :]


@pytest.mark.slow
def test_what_was_read_is_not_fetched_again_at_the_end(tmp_path: Path, hub: FakeHub) -> None:
    with nodes(tmp_path, 1, limit_bytes=0) as [node]:
        node.set_sources(manifest(hub), [from_hub(CONTENT)])
        client = node.client()
        client.want(JOB, [(CONTENT, [(0, len(DATA))])], keep=False)
        file = client.open_file(CONTENT, label=NAME, job=JOB)
        file.read_into(0, memoryview(bytearray(len(DATA))))
        file.close()
        threading.Event().wait(0.5)
        assert hub.sent_bytes[NAME] == len(DATA)


@pytest.mark.slow
def test_the_hub_is_asked_where_a_lost_peer_was_named(
    tmp_path: Path, hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    with nodes(tmp_path, 2) as [seed, other]:
        seed.close()
        other.set_sources(
            manifest(hub),
            [from_peer(CONTENT, seed)],
            addresses={seed.node_id: ("127.0.0.1", 1)},
        )
        assert other.read(CONTENT) == DATA
        assert f"no bytes received from node {seed.node_id}" in caplog.text


def test_whether_a_node_may_fetch_is_found_out(hub: FakeHub) -> None:
    repository = hub.repositories[REPOSITORY]
    assert may_fetch(REPOSITORY, repository.commit, NAME, 3)
    assert not may_fetch(REPOSITORY, "0" * 40, NAME, 3)
    assert not may_fetch(REPOSITORY, repository.commit, "absent.gguf", 3)
    hub.repositories[REPOSITORY] = dataclasses.replace(repository, is_gated=True)
    assert not may_fetch(REPOSITORY, repository.commit, NAME, 3)
