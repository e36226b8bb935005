"""Supervisors of processes leave nothing open where the start of one is abandoned."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.cluster.calls import A

from potluck.cluster.network.acceptor.process import AcceptorSettings
from potluck.cluster.network.acceptor.supervisor import AcceptorProcess
from potluck.cluster.transfer.messages import TransferSettings
from potluck.cluster.transfer.supervisor import TransferProcess

Start = Callable[[Path], Awaitable[object]]


async def start_acceptor(folder: Path) -> object:
    settings = AcceptorSettings(
        inner_host="127.0.0.1",
        inner_port=1,
        node_id=A,
        stall_milliseconds=2000,
        authority=str(folder),
        certificate=str(folder),
        key=str(folder),
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        return await AcceptorProcess.start(server, settings)


async def start_transfer(folder: Path) -> object:
    settings = TransferSettings(
        host="127.0.0.1",
        node_id=A,
        authority=str(folder),
        certificate=str(folder),
        key=str(folder),
        store_folder=str(folder),
        limit_bytes=0,
    )
    return await TransferProcess.start(settings)


@pytest.mark.parametrize("start", [start_acceptor, start_transfer])
@pytest.mark.parametrize("step", ["open_connection", "start_child"])
def test_a_start_that_is_cancelled_closes_all_sockets(
    start: Start, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    real_pair = socket.socketpair

    def pair(*arguments: int) -> tuple[socket.socket, socket.socket]:
        both = real_pair(*arguments)
        made.extend(both)
        return both

    async def cancelled(*_: object, sock: socket.socket | None = None, **__: object) -> object:
        if sock is not None:  # asyncio closes what it was given
            sock.close()
        raise asyncio.CancelledError

    async def run() -> None:
        # The loop has a pair of its own, made before.
        monkeypatch.setattr(socket, "socketpair", pair)
        if step == "open_connection":
            monkeypatch.setattr(asyncio, "open_connection", cancelled)
        else:
            monkeypatch.setattr("potluck.host.python_child.start_child", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await start(tmp_path)
        await asyncio.sleep(0)  # transports close what they own in the loop
        assert [each for each in made if each.fileno() >= 0] == []

    asyncio.run(run())
    assert len(made) == 4
