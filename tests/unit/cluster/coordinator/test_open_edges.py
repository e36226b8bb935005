"""The coordinator's two edges: nothing is left, and nobody waits, when opening them ends early."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine

import pytest
from support.cluster.edges import LIMITS, RECEIVER, SENDER, credentials
from support.processes.waiting import done_within, eventually

from potluck.cluster.coordinator.starting import open_edges
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.frames import Scope
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.wire.worker_messages import Peer
from potluck.errors import EdgeError, EngineError
from potluck.types.cluster import DeploymentId, Epoch

SCOPE = Scope(deployment=DeploymentId("demo"), epoch=Epoch(number=1, coordinator=SENDER))


async def open_to(address: tuple[str, int], stages: Coroutine[object, object, None]) -> None:
    stage = Peer.at(RECEIVER, EdgeAddress(host=address[0], port=address[1]))
    await open_edges(
        EdgeEndpoint(credentials=credentials(SENDER), listen_host="127.0.0.1"),
        first=stage,
        last=stage,
        num_stages=1,
        scope=SCOPE,
        limits=LIMITS,
        tell_stages=lambda _: [stages],
    )


def num_edge_threads() -> int:
    return sum(thread.name == "open-edge" for thread in threading.enumerate())


def test_a_stage_that_fails_ends_it_at_once_though_another_is_silent() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise EngineError("the stage met a problem")

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        done_within(2),
        pytest.raises(EngineError, match="met a problem"),
    ):
        asyncio.run(open_to(silent.getsockname()[:2], fail()))
    # The end of the silent one's socket ends the thread that was left to itself.
    eventually(lambda: num_edge_threads() == 0, within=5)


def test_cancelling_it_ends_it_at_once() -> None:
    async def run(address: tuple[str, int]) -> None:
        forever = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await forever

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await open_to(address, wait())
        assert forever.cancelled()

    with socket.create_server(("127.0.0.1", 0)) as silent, done_within(2):
        asyncio.run(run(silent.getsockname()[:2]))


def test_a_host_that_cannot_be_listened_on_is_an_error_of_the_edge() -> None:
    async def nothing() -> None:
        return

    async def run() -> None:
        stage = Peer.at(RECEIVER, EdgeAddress(host="127.0.0.1", port=1))
        await open_edges(
            # An address of no machine (RFC 5737).
            EdgeEndpoint(credentials=credentials(SENDER), listen_host="192.0.2.1"),
            first=stage,
            last=stage,
            num_stages=1,
            scope=SCOPE,
            limits=LIMITS,
            tell_stages=lambda _: [],
        )

    with pytest.raises(EdgeError, match="cannot listen"):
        asyncio.run(run())
