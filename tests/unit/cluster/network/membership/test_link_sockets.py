from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
from collections.abc import Iterator

import pytest
from support.process_facts import num_descriptors
from support.processes.waiting import done_within, eventually

from potluck.cluster.network.membership.sockets import MAX_UNSENT_BYTES, LinkSockets, endpoint_of


@pytest.mark.parametrize(
    ("locator", "endpoint"),
    [
        ("tls/10.0.0.7:7333", ("10.0.0.7", 7333)),
        ("tcp/10.0.0.7:7333?prio=1-2#iface=eth0", ("10.0.0.7", 7333)),
        ("tls/[fd00::7]:7333", ("fd00::7", 7333)),
        ("unixsock-stream/nowhere", ("", 0)),
    ],
)
def test_locators_are_read(locator: str, endpoint: tuple[str, int]) -> None:
    assert endpoint_of(locator) == endpoint


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection of this process with itself: a client that lingers, and who accepted it."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as server:
        client = socket.create_connection(server.getsockname()[:2])
        accepted, _ = server.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    with client, accepted:
        yield client, accepted


def ends(connection: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    return connection.getsockname()[:2], connection.getpeername()[:2]


def user_timeout(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_only_the_connection_between_the_two_is_bounded(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    sockets = LinkSockets(1500)
    sockets.opened("peer", *ends(client))
    assert user_timeout(client) == 1500
    linger = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    assert struct.unpack("ii", linger)[0] == 0
    assert user_timeout(accepted) == 0
    own, (host, port) = ends(client)
    sockets.opened("other", own, (host, port + 1))  # nothing that exists
    assert user_timeout(client) == 1500
    sockets.close()


@pytest.mark.slow
def test_a_peer_that_reads_nothing_is_given_up_and_closing_does_not_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, _ = pair
    sockets = LinkSockets(300)
    sockets.opened("peer", *ends(client))
    with done_within(5), pytest.raises(TimeoutError):
        client.sendall(bytes(1 << 26))
    with done_within(2):  # it lingers for 10 s otherwise
        client.close()
        sockets.close()


def test_a_link_is_clear_until_its_peer_no_longer_takes_what_is_sent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    sockets = LinkSockets(60_000)
    sockets.opened("peer", *ends(client))
    assert sockets.is_clear("peer")
    fill(client)
    assert not sockets.is_clear("peer")
    assert sockets.is_clear("other")
    accepted.setblocking(False)

    def is_clear() -> bool:
        with contextlib.suppress(BlockingIOError):
            accepted.recv(1 << 20)
        return sockets.is_clear("peer")

    eventually(is_clear, within=2)
    sockets.close()


def test_a_reset_wakes_who_waits_to_send_and_tells_the_peer(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = pair
    sockets = LinkSockets(60_000)
    sockets.opened("peer", *ends(client))
    fill(client)
    with select.epoll() as waiting:
        waiting.register(client, select.EPOLLOUT)
        sockets.given_up("peer", *ends(client))
        assert waiting.poll(20)
    assert sockets.is_clear("peer")
    # Though it has read nothing of all that was sent.
    eventually(lambda: accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET)


def test_no_descriptor_is_kept(pair: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = pair
    before = num_descriptors()
    sockets = LinkSockets(1000)
    for connection in (client, accepted):
        sockets.opened("peer", *ends(connection))
    assert num_descriptors() == before + 2
    sockets.forget("peer")
    assert num_descriptors() == before
    sockets.opened("peer", *ends(client))
    sockets.close()
    sockets.opened("peer", *ends(client))
    assert num_descriptors() == before


def fill(client: socket.socket) -> None:
    """Send until nothing more is taken, on a socket that does not wait, as Zenoh's do not."""
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            client.send(bytes(MAX_UNSENT_BYTES))
