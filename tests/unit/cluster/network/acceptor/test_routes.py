"""Connections that the acceptor hands over, by what a client says first."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from support.cluster.acceptors import Door
from support.cluster.edges import HELLO, LIMITS, RECEIVER, SENDER, accept, connect_edge, credentials
from support.processes.waiting import done_within

from potluck.cluster.network.acceptor.routes import JOIN_NAME, check_name, send_route
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.frames import FrameKind
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.network.trust.connection_sources import (
    HandedConnections,
    SourceEndedError,
    connection_channel,
    hand_over,
)
from potluck.errors import EdgeError
from potluck.types.step import StepId

STAGE = "0123456789abcdef.stage.potluck"


@contextlib.contextmanager
def route(door: Door, name: str) -> Iterator[HandedConnections]:
    receiving, sending = connection_channel()
    handed = HandedConnections(receiving)
    with sending:
        send_route(door.routes, name, sending)
    try:
        yield handed
    finally:
        handed.close()


def accepted(handed: HandedConnections) -> socket.socket:
    ready, _, _ = select.select([handed], [], [], 10)
    assert ready
    connection, (host, _) = handed.accept()
    assert host == "127.0.0.1"
    return connection


def test_an_edge_by_name_is_the_receivers_own(door: Door) -> None:
    address = EdgeAddress(host=door.address[0], port=door.address[1], name=STAGE)
    with route(door, STAGE) as handed:
        listening = EdgeListener(handed.duplicate(), address, credentials(RECEIVER))
        found = []
        accepting = threading.Thread(target=lambda: found.append(accept(listening)))
        accepting.start()
        outgoing = connect_edge(
            address, credentials(SENDER), HELLO, peer=RECEIVER, limits=LIMITS, timeout_seconds=10
        )
        accepting.join()
        outgoing.send(FrameKind.STEP, StepId(1), payload=bytes(200_000))
        assert found[0].receive().payload.nbytes == 200_000
        outgoing.close()
        found[0].close()
        listening.close()


def test_nothing_of_a_connection_is_taken_before_it_is_handed_over(door: Door) -> None:
    with route(door, STAGE) as handed:
        raw = socket.create_connection(door.address, timeout=10)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = (
            credentials(SENDER)
            .client_context()
            .wrap_bio(incoming, outgoing, server_hostname=STAGE.upper())
        )
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        for start in range(0, len(hello), 40):  # in pieces
            raw.sendall(hello[start : start + 40])
            time.sleep(0.005)
        with raw, accepted(handed) as connection:
            assert connection.recv(10_000) == hello


def test_a_name_that_nobody_has_is_refused_at_once(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    raw = socket.create_connection(door.address, timeout=10)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        credentials(SENDER).client_context().wrap_socket(raw, server_hostname=STAGE)
    raw.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no process has registered that name" in line
    assert STAGE in line


def test_a_route_can_be_taken_back_and_given_again(door: Door) -> None:
    context = credentials(SENDER).client_context()
    with route(door, STAGE) as first:
        send_route(door.routes, STAGE, None)
        raw = socket.create_connection(door.address, timeout=10)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            context.wrap_socket(raw, server_hostname=STAGE)
        with pytest.raises(SourceEndedError):
            first.accept()
    with route(door, STAGE) as again, socket.create_connection(door.address) as raw:
        client = context.wrap_bio(ssl.MemoryBIO(), bio := ssl.MemoryBIO(), server_hostname=STAGE)
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        raw.sendall(bio.read())
        accepted(again).close()


def test_more_than_a_receiver_takes_are_refused(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    client = (
        credentials(SENDER)
        .client_context()
        .wrap_bio(ssl.MemoryBIO(), bio := ssl.MemoryBIO(), server_hostname=STAGE)
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = bio.read()
    with route(door, STAGE) as handed, contextlib.ExitStack() as held:
        raws = []
        for _ in range(300):
            raws.append(held.enter_context(socket.create_connection(door.address, timeout=20)))
            raws[-1].sendall(hello)
        with contextlib.suppress(ConnectionResetError):  # of a hello that nobody has read
            assert raws[-1].recv(1) == b""
        num_handed = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                handed.accept()[0].close()
                num_handed += 1
        assert 20 <= num_handed <= 128
    assert "too many connections are pending" in caplog.text


CLIENTS = {
    "curl": ["curl", "-sk", "--max-time", "5"],
    "wget": ["wget", "-qO-", "--no-check-certificate", "--tries=1", "--timeout=5"],
    "openssl": ["openssl", "s_client", "-brief", "-connect"],
}


@pytest.mark.parametrize("client", [*CLIENTS, "python"])
def test_clients_that_cannot_be_nodes_get_to_the_server_of_invitations(
    door: Door, client: str
) -> None:
    if client != "python" and shutil.which(client) is None:
        pytest.skip(f"not shown: {client} is not installed")
    host, port = door.address
    url = f"https://{host}:{port}/"
    with route(door, JOIN_NAME) as handed:
        if client == "python":
            raw = socket.create_connection(door.address, timeout=10)
            context = ssl.create_default_context()
            thread = threading.Thread(target=_shake, args=(context, raw))
            thread.start()
            accepted(handed).close()
            thread.join()
            return
        last = f"{host}:{port}" if client == "openssl" else url
        with subprocess.Popen(
            [*CLIENTS[client], last], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            accepted(handed).close()
            process.wait(40)


def _shake(context: ssl.SSLContext, raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_members_are_not_taken_for_newcomers(door: Door) -> None:
    with route(door, JOIN_NAME) as handed:
        with door.joined() as (member, inside):
            member.sendall(b"me")
            assert inside.recv(2) == b"me"
        with pytest.raises(BlockingIOError):
            handed.accept()


@pytest.mark.slow
def test_a_stranger_that_says_a_part_and_stops_is_closed_and_costs_no_time(door: Door) -> None:
    client = (
        credentials(SENDER)
        .client_context()
        .wrap_bio(ssl.MemoryBIO(), bio := ssl.MemoryBIO(), server_hostname=STAGE)
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = bio.read()
    with route(door, STAGE), socket.create_connection(door.address, timeout=30) as slow:
        slow.sendall(hello[:100])
        with socket.create_connection(door.address, timeout=10) as ended:
            ended.sendall(hello[:3])
            ended.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert ended.recv(1) == b""
        before = time.process_time()
        start = time.monotonic()
        with done_within(6), contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""  # after HANDSHAKE_SECONDS
        assert time.monotonic() - start > 3
        assert time.process_time() - before < 0.5  # the acceptor is a thread of this process


def test_a_channel_says_when_nobody_is_at_the_other_end() -> None:
    receiving, sending = connection_channel()
    left, right = socket.socketpair()
    with sending, left, right:
        hand_over(sending, left, "::1", 7)
        handed = HandedConnections(receiving)
        connection, address = handed.accept()
        assert address == ("::1", 7)
        connection.sendall(b"x")
        assert right.recv(1) == b"x"
        connection.close()
        with pytest.raises(BlockingIOError):
            handed.accept()
        hand_over(sending, left, "::1", 7)
        left.close()
        handed.close()
        assert right.recv(1) == b""  # what waited was closed
        with pytest.raises((ConnectionError, ssl.SSLError)):
            hand_over(sending, right, "::1", 7)


@pytest.mark.parametrize(
    "name", ["", "potluck", ".potluck", "a.example", "A.potluck", "a..potluck", "a b.potluck"]
)
def test_names_of_routes_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid route name"):
        check_name(name)


def test_an_edge_to_nobody_says_so(door: Door) -> None:
    address = EdgeAddress(host=door.address[0], port=door.address[1], name=STAGE)
    with pytest.raises(EdgeError):
        connect_edge(
            address, credentials(SENDER), HELLO, peer=RECEIVER, limits=LIMITS, timeout_seconds=5
        )
