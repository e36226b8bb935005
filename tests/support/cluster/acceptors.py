"""An acceptor in a thread, and a TLS server of the test in the place of Zenoh."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from support.cluster.edges import RECEIVER, SENDER, credentials

from potluck.cluster.network.acceptor.process import Acceptor
from potluck.cluster.network.trust.credentials import Credentials


class Door:
    """The acceptor, what it reported, and the connections that it brought."""

    def __init__(
        self,
        address: tuple[str, int],
        inner: socket.socket,
        agent: socket.socket,
        routes: socket.socket,
    ) -> None:
        self.address = address
        self.routes = routes
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

    @contextlib.contextmanager
    def joined(self) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
        """A member's connection, and the one that it was joined to."""
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(self.connect)
            with self.arrival() as inside, connecting.result() as member:
                yield member, inside


@contextlib.contextmanager
def an_acceptor() -> Iterator[Door]:
    server = socket.create_server(("127.0.0.1", 0), backlog=300)
    inner = socket.create_server(("127.0.0.1", 0))
    inner.settimeout(10)
    ours, theirs = socket.socketpair()
    routes, their_routes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    acceptor = Acceptor(
        server,
        inner.getsockname(),
        credentials(RECEIVER),
        theirs,
        their_routes,
        stall_milliseconds=2000,
    )
    thread = threading.Thread(target=acceptor.run, daemon=True)
    thread.start()
    with contextlib.ExitStack() as opened:
        for each in (server, inner, ours, theirs, routes):
            opened.enter_context(each)
        yield Door(server.getsockname(), inner, ours, routes)
        ours.close()
        thread.join(5)
        assert not thread.is_alive()
