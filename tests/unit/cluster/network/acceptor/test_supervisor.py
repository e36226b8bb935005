"""The acceptor's process: routes outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest
from support.cluster.edges import RECEIVER, SENDER, credentials
from support.processes.waiting import until

from potluck.cluster.network.acceptor.process import AcceptorSettings
from potluck.cluster.network.acceptor.supervisor import AcceptorProcess
from potluck.cluster.network.trust.connection_sources import HandedConnections

NAME = "0123456789abcdef.stage.potluck"


async def await_handed(address: tuple[str, int], source: HandedConnections) -> None:
    """Return when a connection that asks for the name has arrived."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = credentials(SENDER).client_context().wrap_bio(incoming, outgoing, server_hostname=NAME)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with socket.create_connection(address, timeout=10) as raw:
        raw.sendall(outgoing.read())

        def has_arrived() -> bool:
            with contextlib.suppress(BlockingIOError):
                source.accept()[0].close()
                return True
            return False

        await until(has_arrived)


@pytest.mark.slow
def test_routes_are_there_again_after_the_process_was_killed(tmp_path: Path) -> None:
    proof = credentials(RECEIVER)
    files = {
        "authority": proof.authority_pem,
        "certificate": proof.certificate_pem,
        "key": proof.private_key_pem,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    async def run() -> None:
        server = socket.create_server(("127.0.0.1", 0))
        address = server.getsockname()
        settings = AcceptorSettings(
            inner_host="127.0.0.1",
            inner_port=1,
            node_id=RECEIVER,
            stall_milliseconds=2000,
            **{name: str(tmp_path / name) for name in files},
        )
        acceptor = await AcceptorProcess.start(server, settings)
        source = HandedConnections(acceptor.add_route(NAME))
        try:
            await await_handed(address, source)
            os.kill(acceptor._child.connected.process.pid, signal.SIGKILL)
            await await_handed(address, source)
            acceptor.remove_route(NAME)
        finally:
            source.close()
            await acceptor.close()

    asyncio.run(run())
