"""Run the application on an address, in the current event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn

from potluck.api.acceptor import Acceptor, max_connections
from potluck.api.app import Page, build_app
from potluck.api.config import ApiConfig
from potluck.api.protocol import LimitedProtocol
from potluck.errors import PotluckError, UsageError
from potluck.types.gateway import Gateway

_SEND_BUFFER_BYTES = 128 * 2**10
"""Kernel send buffer per connection: data that a client does not read must be noticed soon."""

_PROBE_IDLE_SECONDS = 20
_PROBE_INTERVAL_SECONDS = 10
_VANISHED_SECONDS = 60
"""Time after which a client whose machine is gone without closing the connection is detected,
whether or not data is being sent: nothing is sent to queued requests. It is three times as long as
a client may leave a response unread, because a closed window looks the same to the kernel
(``tcp(7)``)."""

_TICK_SECONDS = 1.0
_LAST_WORDS_SECONDS = 1.0
"""Grace period for sending the final errors at a shutdown, and again for unresponsive connections.
"""


@asynccontextmanager
async def serve(
    gateway: Gateway, config: ApiConfig, page: Page | None = None
) -> AsyncIterator[str]:
    """Serve until the block exits; yields the URL, ``http://IP:PORT`` or ``https://…``.

    With ``page``, the web page is served at ``/``.

    When the block exits, the server stops listening, lets requests run for ``shutdown_seconds``,
    and ends the remaining ones with an error within two more seconds. Raises ``UsageError`` for an
    address that is not loopback if there are no keys, and ``PotluckError`` if it cannot listen on
    the address.
    """
    listener = _listen(config)
    ending = asyncio.Event()
    server = _Server(_uvicorn_config(gateway, config, ending, page), config, ending)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        await server.wait_started(task)
        yield _url(listener, "http" if config.tls is None else "https")
    finally:
        server.stop()
        try:
            await task
        finally:
            listener.close()


def _uvicorn_config(
    gateway: Gateway, config: ApiConfig, ending: asyncio.Event, page: Page | None
) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(gateway, config, ending, page),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=config.limits.idle_seconds,
    )


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, its polling, and its unlimited shutdown."""

    def __init__(self, server: uvicorn.Config, config: ApiConfig, ending: asyncio.Event) -> None:
        super().__init__(server)
        self._limits = config.limits
        self._tls = config.tls
        self._ending = ending
        self._stopping = asyncio.Event()
        self._listening = asyncio.Event()
        self._acceptors: list[Acceptor] = []

    async def wait_started(self, task: asyncio.Task[None]) -> None:
        """Return when the server listens; raise the exception if ``task`` ended before that."""
        listening = asyncio.ensure_future(self._listening.wait())
        try:
            await asyncio.wait((listening, task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if task.done():
            task.result()

    def stop(self) -> None:
        """Begin to shut down."""
        self.should_exit = True
        self._stopping.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the agent."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await self.lifespan.startup()
        limit = max_connections(self._limits.max_connections)
        self._acceptors = [
            Acceptor(
                each,
                self.server_state.connections,
                self._new_protocol,
                limit,
                tls=self._tls,
                handshake_seconds=self._limits.head_seconds,
            )
            for each in sockets or ()
        ]
        for acceptor in self._acceptors:
            acceptor.start()
        self.started = True
        self._listening.set()

    def _new_protocol(self) -> asyncio.Protocol:
        return LimitedProtocol(self._limits, self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        """Wait for the end; meanwhile keep the date in the headers up to date."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down gracefully first, then forcibly."""
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_until_idle(self._limits.shutdown_seconds)
        self._ending.set()
        await self._wait_until_idle(_LAST_WORDS_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._wait_until_idle(_LAST_WORDS_SECONDS)

    async def _wait_until_idle(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.02)


def _listen(config: ApiConfig) -> socket.socket:
    if not 0 <= config.port < 1 << 16:
        raise UsageError(f"{config.port} is not a valid port", hint="use a port from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"cannot listen on {config.host!r}: no such address",
            hint="use an IP address of this machine, or omit it",
        ) from error
    if config.keys is None and not ipaddress.ip_address(address[0]).is_loopback:
        raise UsageError(
            f"{address[0]} is reachable from other machines, but no API keys are set",
            hint="set --api-key-file FILE (created with a first key), or listen on 127.0.0.1",
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_options_of_connections(listener)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise PotluckError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror}",
            hint="choose another address with --http HOST:PORT (port 0: any free port), or "
            "use --no-http",
        ) from error
    return listener


def _set_options_of_connections(listener: socket.socket) -> None:
    """Set socket options that accepted connections inherit."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _PROBE_IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, _PROBE_INTERVAL_SECONDS),
        (socket.TCP_USER_TIMEOUT, 1000 * _VANISHED_SECONDS),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
