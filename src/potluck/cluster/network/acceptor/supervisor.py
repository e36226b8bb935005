"""The agent's side of the acceptor process. For asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Self

from potluck.cluster.network.acceptor.process import AcceptorSettings
from potluck.cluster.network.acceptor.routes import check_name, send_route
from potluck.cluster.network.trust.connection_sources import connection_channel
from potluck.host.python_child import ConnectedChild, start_connected_child
from potluck.types.cluster import NodeId

ACCEPTOR_MODULE = "potluck.cluster.network.acceptor"
_log = logging.getLogger(__name__)

_END_SECONDS = 1.0
"""How long the process may take to exit after its agent has closed the socket; then it is killed.
"""

_RESTART_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Child:
    connected: ConnectedChild
    routes: _RouteSender


class _RouteSender:
    """Sends route changes to a child in order; those that would block are sent later."""

    def __init__(self, channel: socket.socket) -> None:
        """Take ownership of ``channel``."""
        self._channel = channel
        self._unsent: deque[tuple[str, socket.socket | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._is_waiting = False

    def send(self, name: str, sending: socket.socket | None) -> None:
        """Send where connections for ``name`` go from now on; None refuses them."""
        self._unsent.append((name, None if sending is None else sending.dup()))
        self._flush()

    def close(self) -> None:
        """Discard what is unsent, and close the channel."""
        self._stop_waiting()
        self._drop()
        self._channel.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                name, sending = self._unsent[0]
                send_route(self._channel, name, sending)
                self._unsent.popleft()
                if sending is not None:
                    sending.close()
        except BlockingIOError:
            if not self._is_waiting:
                self._is_waiting = True
                self._loop.add_writer(self._channel, self._flush)
            return
        except OSError:  # it has exited; its successor is sent all routes
            self._drop()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._loop.remove_writer(self._channel)

    def _drop(self) -> None:
        for _, sending in self._unsent:
            if sending is not None:
                sending.close()
        self._unsent.clear()


class AcceptorProcess:
    """Created by :meth:`start`; restarts the process if it exits. For use in its own loop only."""

    def __init__(self, server: socket.socket, settings: AcceptorSettings, child: _Child) -> None:
        self._server = server
        self._settings = settings
        self._child = child
        self._connections: Counter[tuple[NodeId, str]] = Counter()
        self._routes: dict[str, socket.socket] = {}
        self._supervising = asyncio.create_task(self._supervise(is_running=True))

    @classmethod
    async def start(cls, server: socket.socket, settings: AcceptorSettings) -> Self:
        """Start accepting at ``server``, which this object then owns. Raises ``OSError``."""
        return cls(server, settings, await _spawn(server, settings))

    def host_of(self, node_id: NodeId) -> str | None:
        """Return the IP address that a member is connected from, as proven by TLS; None if it is
        not.
        """
        return next((host for node, host in self._connections if node == node_id), None)

    def end_removed(self) -> None:
        """Tell the process to close the connections of nodes in the file of removed nodes."""
        self._child.connected.writer.write(b"removed\n")

    def add_route(self, name: str) -> socket.socket:
        """Route connections that ask for ``name`` to the returned socket.

        It is the receiving end for ``trust.connection_sources.HandedConnections``; the caller owns
        it and may pass it to a child process. An existing route of the same name is replaced.
        Clients that learn the name afterwards will find the route. Raises ``ValueError`` for an
        invalid name.
        """
        check_name(name)
        receiving, sending = connection_channel()
        self.remove_route(name)
        self._routes[name] = sending
        self._child.routes.send(name, sending)
        return receiving

    def remove_route(self, name: str) -> None:
        """Remove the route of ``name``. Idempotent."""
        sending = self._routes.pop(name, None)
        if sending is not None:
            sending.close()
            self._child.routes.send(name, None)

    async def move(self, server: socket.socket, settings: AcceptorSettings) -> None:
        """Accept at ``server``, which this object then owns, instead of the address so far.

        All connections are closed; the routes stay.
        """
        await self._stop_process()
        self._server.close()
        self._server, self._settings = server, settings
        self._supervising = asyncio.create_task(self._supervise(is_running=False))

    async def close(self) -> None:
        """Stop accepting and close all connections, within about a second. Idempotent."""
        await self._stop_process()
        self._server.close()
        for sending in self._routes.values():
            sending.close()
        self._routes.clear()

    async def _stop_process(self) -> None:
        self._supervising.cancel()
        await asyncio.gather(self._supervising, return_exceptions=True)
        await _end(self._child)
        self._connections.clear()

    async def _supervise(self, *, is_running: bool) -> None:
        """Start the process unless it is running, and again whenever it has exited."""
        while True:
            if is_running:
                await self._listen()
                status = self._child.connected.process.returncode
                _log.error("the acceptor process exited (status %s)", status)
                await asyncio.sleep(_RESTART_SECONDS)
            is_running = await self._respawn()

    async def _listen(self) -> None:
        """Take the process's lines until it exits."""
        with contextlib.suppress(OSError):
            async for line in self._child.connected.reader:
                self._take(line.decode("utf-8", "replace").rstrip("\n"))
        await _end(self._child)
        self._connections.clear()

    async def _respawn(self) -> bool:
        """Start the process; return whether that succeeded."""
        try:
            self._child = await _spawn(self._server, self._settings)
        except OSError as error:
            _log.error("cannot start the acceptor process: %s", error.strerror)
            await asyncio.sleep(_RESTART_SECONDS)
            return False
        for name, sending in self._routes.items():
            self._child.routes.send(name, sending)
        return True

    def _take(self, line: str) -> None:
        kind, _, text = line.partition(" ")
        if kind == "log":
            _log.warning("%s", text)
            return
        node, _, host = text.partition(" ")
        key = (NodeId(node), host)
        self._connections[key] += 1 if kind == "opened" else -1
        if self._connections[key] <= 0:
            del self._connections[key]


async def _spawn(server: socket.socket, settings: AcceptorSettings) -> _Child:
    our_routes, their_routes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with their_routes, contextlib.ExitStack() as unless_started:
        unless_started.callback(our_routes.close)
        descriptors = (server.fileno(), their_routes.fileno())
        connected = await start_connected_child(
            ACCEPTOR_MODULE,
            *map(str, descriptors),
            json.dumps(asdict(settings)),
            descriptors=descriptors,
        )
        unless_started.pop_all()
    return _Child(connected, _RouteSender(our_routes))


async def _end(child: _Child) -> None:
    child.routes.close()
    await child.connected.end(timeout_seconds=_END_SECONDS)
