"""An acceptor in a thread, and a TLS server of the test in the place of Zenoh."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from types import SimpleNamespace
from typing import cast

import pytest
from support.cluster.acceptors import Door, an_acceptor
from support.cluster.edges import OTHER_SECRET, SENDER, credentials
from support.cluster.imposters import expired, forged
from support.processes.waiting import done_within

from potluck.cluster.network.acceptor.arrivals import Arrivals
from potluck.cluster.network.acceptor.splice import Splice
from potluck.cluster.network.trust.credentials import Credentials

MIB = 1 << 20


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


def receive(connection: ssl.SSLSocket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        assert part
        data += part
    return bytes(data)


def test_a_member_is_joined_and_its_bytes_pass_both_ways_unchanged(door: Door) -> None:
    sent, answered = os.urandom(3 * MIB), os.urandom(2 * MIB + 17)
    with door.joined() as (member, inside):
        assert door.reported(1) == [f"opened {SENDER} 127.0.0.1"]
        with ThreadPoolExecutor(2) as pool:
            down = pool.submit(exchange, member, sent, len(answered))
            up = pool.submit(exchange, inside, answered, len(sent))
            assert up.result() == sent
            assert down.result() == answered
    assert door.reported(1) == [f"closed {SENDER} 127.0.0.1"]


@pytest.mark.parametrize("who", ["member", "inside"])
def test_the_end_of_one_side_ends_the_other_at_once(door: Door, who: str) -> None:
    with door.joined() as (member, inside):
        ending, other = (member, inside) if who == "member" else (inside, member)
        ending.sendall(b"last words")
        with done_within(5):
            ending.close()
            assert receive(other, 10) == b"last words"
            with contextlib.suppress(ConnectionResetError):
                assert other.recv(1) == b""


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
    with door.joined() as (member, inside):  # the first to arrive there
        member.sendall(b"me")
        assert receive(inside, 2) == b"me"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("refused an unknown client at 127.0.0.1:")


def test_a_connection_without_a_byte_is_not_warned_about(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """``doctor`` has other nodes make such connections."""
    with caplog.at_level(logging.DEBUG, logger="potluck.cluster.network.acceptor"):
        socket.create_connection(door.address, timeout=10).close()
        with door.joined() as (member, inside):
            member.sendall(b"me")
            assert receive(inside, 2) == b"me"
    (record,) = caplog.records
    assert record.getMessage().endswith("connected and sent nothing")
    assert record.levelno == logging.DEBUG


def test_a_member_that_reads_nothing_delays_nobody(door: Door) -> None:
    with door.joined() as (_, inside), door.joined() as (member, other):
        inside.settimeout(0.2)
        with contextlib.suppress(TimeoutError):  # once all buffers on the way are full
            for _ in range(100):
                inside.sendall(bytes(MIB))
            pytest.fail("100 MiB went to a member that reads nothing")
        with done_within(4):
            for number in range(50):
                member.sendall(bytes([number]))
                assert receive(other, 1) == bytes([number])
                other.sendall(bytes([number]))
                assert receive(member, 1) == bytes([number])


def test_strangers_that_wait_are_closed_oldest_first_and_members_get_in(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = partialmethod(Arrivals.__init__, seconds=60.0)
    monkeypatch.setattr(Arrivals, "__init__", patient)
    with an_acceptor() as door, contextlib.ExitStack() as held:
        strangers = []
        for _ in range(200):
            strangers.append(held.enter_context(socket.create_connection(door.address, timeout=20)))
        with done_within(5), door.joined() as (member, inside):
            member.sendall(b"me")
            assert receive(inside, 2) == b"me"
        for stranger in strangers[:70]:
            assert stranger.recv(1) == b""
        strangers[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            strangers[-1].recv(1)
    assert len(caplog.records) == 20  # the others are counted in one line later


def test_a_connection_that_zenoh_resets_at_once_is_closed() -> None:
    def reset(raw: socket.socket, **given: bool) -> ssl.SSLSocket:
        os.close(raw.detach())  # as ``ssl`` does if the connection was reset in the meantime
        raise ConnectionResetError

    member, other = socket.socketpair()
    with other, socket.create_server(("127.0.0.1", 0)) as zenoh:
        splice = Splice(
            cast(ssl.SSLSocket, member),
            SENDER,
            "127.0.0.1",
            zenoh.getsockname(),
            cast(ssl.SSLContext, SimpleNamespace(wrap_socket=reset)),
        )
        with selectors.DefaultSelector() as selector:
            splice.start(selector)
            assert selector.select(10)
            with pytest.raises(ConnectionResetError):
                splice.advance(selector)
            splice.close(selector, is_broken=True)
            assert not selector.get_map()
        assert other.recv(1) == b""
