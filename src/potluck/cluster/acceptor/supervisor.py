"""The acceptor's process as its agent sees it. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Self

from potluck.child_environment import child_environment
from potluck.cluster.acceptor.process import AcceptorSettings
from potluck.types.cluster import NodeId

ACCEPTOR_MODULE = "potluck.cluster.acceptor"
_log = logging.getLogger(__name__)

_END_SECONDS = 1.0
"""How long the process may take to end after its agent has closed the socket; then it is killed."""

_RESTART_SECONDS = 0.5


@dataclass(slots=True)
class _Child:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class AcceptorProcess:
    """Made by :meth:`start`; starts the process again should it end. For its own loop only."""

    def __init__(self, server: socket.socket, settings: AcceptorSettings, child: _Child) -> None:
        self._server = server
        self._settings = settings
        self._child = child
        self._connections: Counter[tuple[NodeId, str]] = Counter()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, server: socket.socket, settings: AcceptorSettings) -> Self:
        """Accept at ``server``, which is this object's if it returns. Raises ``OSError``."""
        return cls(server, settings, await _spawn(server, settings))

    def host_of(self, node_id: NodeId) -> str | None:
        """The IP address that a member, proven by its certificate, is connected from."""
        return next((host for node, host in self._connections if node == node_id), None)

    async def close(self) -> None:
        """Stop accepting and end all connections. Idempotent; a second or so at worst."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._server.close()
        await _end(self._child)

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                async for line in self._child.reader:
                    self._take(line.decode("utf-8", "replace").rstrip("\n"))
            await _end(self._child)
            self._connections.clear()
            status = self._child.process.returncode
            _log.error("the acceptor of control connections ended (status %s)", status)
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                self._child = await _spawn(self._server, self._settings)
            except OSError as error:
                _log.error("the acceptor cannot be started: %s", error.strerror)

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
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        descriptors = (server.fileno(), theirs.fileno())
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                ACCEPTOR_MODULE,
                *map(str, descriptors),
                json.dumps(asdict(settings)),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                env=child_environment(),
            )
        except BaseException:
            writer.close()
            raise
    return _Child(process=process, reader=reader, writer=writer)


async def _end(child: _Child) -> None:
    child.writer.close()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await child.process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()
        await child.process.wait()
