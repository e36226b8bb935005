"""An acceptor in a thread, and a TLS server of the test in the place of Zenoh."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.edges import OTHER_SECRET, RECEIVER, SENDER, credentials
from support.imposters import expired, forged

from potluck.cluster.acceptor.process import Acceptor
from potluck.cluster.trust.credentials import Credentials

MIB = 1 << 20


class Door:
    """The acceptor, what it reported, and the connections that it brought."""

    def __init__(
        self, address: tuple[str, int], inner: socket.socket, agent: socket.socket
    ) -> None:
        self.address = address
        self._inner = inner
        self._context = credentials(RECEIVER).server_context()
        self.agent = agent

    def reported(self, number: int) -> list[str]:
        """The next ``number`` lines."""
        self.agent.settimeout(10)
        lines = b""
        while lines.count(b"\n") < number:
            lines += self.agent.recv(1)
        return lines.decode().splitlines()

    def connect(self, as_node: Credentials | None = None) -> ssl.SSLSocket:
        raw = socket.create_connection(self.address, timeout=10)
        return (as_node or credentials(SENDER)).client_context().wrap_socket(raw)

    def arrival(self) -> ssl.SSLSocket:
        """The next connection at the place of Zenoh, which wants mutual TLS, too."""
        raw, _ = self._inner.accept()
        raw.settimeout(10)
        return self._context.wrap_socket(raw, server_side=True)


@pytest.fixture
def door() -> Iterator[Door]:
    server = socket.create_server(("127.0.0.1", 0), backlog=300)
    inner = socket.create_server(("127.0.0.1", 0))
    inner.settimeout(10)
    ours, theirs = socket.socketpair()
    acceptor = Acceptor(
        server, inner.getsockname(), credentials(RECEIVER), theirs, stall_milliseconds=2000
    )
    thread = threading.Thread(target=acceptor.run, daemon=True)
    thread.start()
    with contextlib.ExitStack() as opened:
        for each in (server, inner, ours, theirs):
            opened.enter_context(each)
        yield Door(server.getsockname(), inner, ours)
        ours.close()
        thread.join(5)
        assert not thread.is_alive()


def exchange(connection: ssl.SSLSocket, data: bytes, num_bytes: int) -> bytes:
    """Send and receive at the same time, in one thread: ``ssl`` does not allow two."""
    connection.setblocking(False)
    unsent, received = memoryview(data), bytearray()
    while unsent or len(received) < num_bytes:
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            unsent = unsent[connection.send(unsent[:MIB]) :] if unsent else unsent
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            part = connection.recv(MIB)
            assert part
            received += part
            continue
        select.select([connection], [connection] if unsent else [], [], 10)
    return bytes(received)


@contextlib.contextmanager
def joined(door: Door) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(door.connect)
        with door.arrival() as inside, connecting.result() as member:
            yield member, inside


def receive(connection: ssl.SSLSocket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        assert part
        data += part
    return bytes(data)


def test_a_member_is_joined_and_its_bytes_pass_both_ways_unchanged(door: Door) -> None:
    sent, answered = os.urandom(3 * MIB), os.urandom(2 * MIB + 17)
    with joined(door) as (member, inside):
        assert door.reported(1) == [f"opened {SENDER} 127.0.0.1"]
        with ThreadPoolExecutor(2) as pool:
            down = pool.submit(exchange, member, sent, len(answered))
            up = pool.submit(exchange, inside, answered, len(sent))
            assert up.result() == sent
            assert down.result() == answered
    assert door.reported(1) == [f"closed {SENDER} 127.0.0.1"]


@pytest.mark.parametrize("who", ["member", "inside"])
def test_the_end_of_one_side_ends_the_other_at_once(door: Door, who: str) -> None:
    with joined(door) as (member, inside):
        ending, other = (member, inside) if who == "member" else (inside, member)
        ending.sendall(b"last words")
        start = time.monotonic()
        ending.close()
        assert receive(other, 10) == b"last words"
        with contextlib.suppress(ConnectionResetError):
            assert other.recv(1) == b""
        assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    "imposter",
    [
        lambda: credentials(SENDER, OTHER_SECRET),
        lambda: expired(SENDER),
        lambda: forged(SENDER),
    ],
    ids=["another cluster", "expired", "home-made authority"],
)
def test_strangers_never_get_to_the_inside(
    door: Door, imposter: Callable[[], Credentials], caplog: pytest.LogCaptureFixture
) -> None:
    context = imposter().client_context()
    context.verify_mode = ssl.CERT_NONE
    raw = socket.create_connection(door.address, timeout=10)
    with contextlib.suppress(OSError), context.wrap_socket(raw) as connection:
        connection.sendall(b"let me in")
        assert connection.recv(1) == b""
    with joined(door) as (member, inside):  # the first to arrive there
        member.sendall(b"me")
        assert receive(inside, 2) == b"me"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("refused a stranger at 127.0.0.1:")


def test_a_member_that_reads_nothing_delays_nobody(door: Door) -> None:
    with joined(door) as (_, inside), joined(door) as (member, other):
        inside.settimeout(0.2)
        with contextlib.suppress(TimeoutError):  # once all buffers on the way are full
            for _ in range(100):
                inside.sendall(bytes(MIB))
            pytest.fail("100 MiB went to a member that reads nothing")
        start = time.monotonic()
        for number in range(50):
            member.sendall(bytes([number]))
            assert receive(other, 1) == bytes([number])
            other.sendall(bytes([number]))
            assert receive(member, 1) == bytes([number])
        assert time.monotonic() - start < 2


def test_strangers_that_wait_are_closed_oldest_first_and_members_get_in(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as held:
        strangers = []
        for _ in range(200):
            strangers.append(held.enter_context(socket.create_connection(door.address, timeout=5)))
        start = time.monotonic()
        with joined(door) as (member, inside):
            member.sendall(b"me")
            assert receive(inside, 2) == b"me"
        assert time.monotonic() - start < 2
        for stranger in strangers[:70]:
            assert stranger.recv(1) == b""
        strangers[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            strangers[-1].recv(1)
    assert len(caplog.records) == 20  # the others are counted in one line later
