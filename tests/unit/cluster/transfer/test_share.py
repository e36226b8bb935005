"""The share of the link that transfers get while a deployment is served."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from support.cluster.store_files import content_of
from support.cluster.transfers import JOB, file_bytes, from_peer, manifest_of, nodes
from support.virtual_time.run import ManualClock

from potluck.cluster.transfer.share import Share, limit_for, set_bulk_options
from potluck.types.content import CHUNK_BYTES


def test_without_a_limit_nothing_waits() -> None:
    clock = ManualClock(100.0)
    share = Share(clock=clock, sleep=clock.sleep)
    share.spend(10**12)
    assert clock.now == 100.0


def test_what_is_spent_takes_its_time() -> None:
    clock = ManualClock(100.0)
    share = Share(clock=clock, sleep=clock.sleep)
    share.set_limit(1e6)
    for _ in range(100):
        share.spend(100_000)
    assert clock.now == pytest.approx(110, abs=0.2)


def test_a_pause_saves_up_little() -> None:
    clock = ManualClock(100.0)
    share = Share(clock=clock, sleep=clock.sleep)
    share.set_limit(1e6)
    clock.now += 1000
    share.spend(10**6)
    share.spend(10**6)
    assert clock.now == pytest.approx(1101, abs=0.1)


def test_a_limit_can_be_lifted() -> None:
    clock = ManualClock(100.0)
    share = Share(clock=clock, sleep=clock.sleep)
    share.set_limit(1.0)
    share.set_limit(None)
    share.spend(10**9)
    assert clock.now == 100.0


@pytest.mark.parametrize(
    ("link", "share"),
    [
        (0, 2e6),  # unknown
        (118e6, 29.5e6),
        (7e6, 2e6),
        (1e6, 0.85e6),
    ],
)
def test_a_quarter_while_serving_and_never_all_of_a_slow_link(link: float, share: float) -> None:
    assert limit_for(link, is_serving=True) == pytest.approx(share)
    assert limit_for(link, is_serving=False) is None


@pytest.mark.parametrize("buffer", [socket.SO_RCVBUF, socket.SO_SNDBUF])
def test_a_connection_fills_little_of_a_slow_links_queue(buffer: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        before = connection.getsockopt(socket.SOL_SOCKET, buffer)
        share = Share()
        for fast_or_unknown in (0.0, 118e6):
            share.set_limit(None, link_bytes_per_second=fast_or_unknown)
            share.bound_queue(connection, buffer)
            assert connection.getsockopt(socket.SOL_SOCKET, buffer) == before
        share.set_limit(None, link_bytes_per_second=2e6)
        share.bound_queue(connection, buffer)
        usable = connection.getsockopt(socket.SOL_SOCKET, buffer) / 2  # socket(7)
        assert 60_000 <= usable < 80_000, "30 ms, and a round trip of loopback"
        share.set_limit(None, link_bytes_per_second=1e3)
        share.bound_queue(connection, buffer)
        assert connection.getsockopt(socket.SOL_SOCKET, buffer) / 2 == 2**14


def test_bulk_waits_behind_other_connections() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        set_bulk_options(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 2


@pytest.mark.slow
def test_a_node_that_serves_a_deployment_takes_and_gives_a_share_of_its_link(
    tmp_path: Path,
) -> None:
    data = file_bytes(12 * CHUNK_BYTES, seed=5)
    content = content_of(data)
    with nodes(tmp_path, 3) as [owner, taker, other]:
        owner.give("model.gguf", data)
        for busy, reader in ((owner, other), (taker, taker)):
            busy.service.set_serving(True, 24e6)  # a quarter are 6 MB/s
            reader.set_sources(
                manifest_of({"model.gguf": data}), [from_peer(content, owner)], [owner]
            )
            began = time.monotonic()
            assert reader.read(content) == data
            seconds = time.monotonic() - began
            assert len(data) / 6e6 * 0.85 < seconds
            busy.service.set_serving(False, 24e6)
            busy.board.end_job(JOB)
