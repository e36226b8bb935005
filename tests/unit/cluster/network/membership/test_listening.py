from __future__ import annotations

import fcntl
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.cluster.network.membership.listening import take_listener


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listening:
        yield listening


def test_connections_come_to_the_new_owner_and_the_loop_hears_of_none(
    server: socket.socket,
) -> None:
    address = server.getsockname()[:2]
    with select.epoll() as loop, select.epoll() as other:
        loop.register(server, select.EPOLLIN)
        with take_listener(address) as taken:
            for _ in range(3):
                with socket.create_connection(address), taken.accept()[0]:
                    assert loop.poll(0.01) == other.poll(0) == []
            assert server.fileno() != taken.fileno()


def test_the_spelling_of_an_address_does_not_matter() -> None:
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as server,
        select.epoll() as loop,
    ):
        loop.register(server, select.EPOLLIN)
        with take_listener(("0:0:0:0:0:0:0:1", server.getsockname()[1])):
            pass


def test_nobody_listens_there(server: socket.socket) -> None:
    host, port = server.getsockname()[:2]
    server.close()
    with pytest.raises(OSError, match=f"does not listen at {host} port {port}"):
        take_listener((host, port))


def test_nothing_watches_the_listener(server: socket.socket) -> None:
    with pytest.raises(OSError, match="no event loop"):
        take_listener(server.getsockname()[:2])


def test_no_other_descriptor_is_kept(tmp_path: Path) -> None:
    """A copy of a locked file's descriptor would keep its lock."""
    path = tmp_path / "lock"
    # Opened before the listener, so that its descriptor is looked at before the listener's.
    with (
        path.open("w") as locked,
        socket.create_server(("127.0.0.1", 0)) as server,
        select.epoll() as loop,
    ):
        fcntl.flock(locked, fcntl.LOCK_EX)
        loop.register(server, select.EPOLLIN)
        taken = take_listener(server.getsockname()[:2])
        locked.close()
        with taken, path.open("w") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
