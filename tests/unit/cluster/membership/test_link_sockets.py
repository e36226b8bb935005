from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from potluck.cluster.membership.sockets import abort, bound_waiting, endpoint_of


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
    bound_waiting(*ends(client), 1500)
    assert user_timeout(client) == 1500
    linger = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    assert struct.unpack("ii", linger)[0] == 0
    assert user_timeout(accepted) == 0
    own, (host, port) = ends(client)
    bound_waiting(own, (host, port + 1), 700)  # nothing that exists
    assert user_timeout(client) == 1500


def test_a_peer_that_reads_nothing_is_given_up_and_closing_does_not_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    client, _ = pair
    bound_waiting(*ends(client), 300)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        client.sendall(bytes(1 << 26))
    assert time.monotonic() - start < 5
    start = time.monotonic()
    client.close()
    assert time.monotonic() - start < 0.5


def test_an_abort_wakes_who_waits_to_send(pair: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = pair
    errors: list[OSError] = []

    def send() -> None:
        try:
            while True:
                client.sendall(bytes(1 << 20))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive()
    abort(*ends(client))
    thread.join(2)
    assert not thread.is_alive()
    assert errors
    time.sleep(0.1)
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
