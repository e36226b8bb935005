"""A member whose address changes: it and the others lose each other, and meet again."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster.certificates import TestAuthority
from support.cluster.members import Events, Handlers, leaving, make_config, node_id, opened
from support.processes.waiting import until

from potluck.cluster.network.membership import Membership
from potluck.cluster.network.trust.connection_sources import HandedConnections
from potluck.errors import JoinError, NodeLostError


def meets(first: Membership, second: Membership) -> bool:
    return first.nodes() == {second.node_id} and second.nodes() == {first.node_id}


def test_members_meet_again_at_the_new_address(tmp_path: Path) -> None:
    async def body() -> None:
        authority = TestAuthority(tmp_path / "ca")
        ours, theirs = (authority.issue(name) for name in ("first", "second"))
        seen_here, seen_there = Events(), Events()
        first = await Membership.open(
            make_config(0, pem=ours), methods=Handlers().table(), observer=seen_here.observer()
        )
        before = first.address
        second = await Membership.open(
            make_config(1, before, pem=theirs),
            methods=Handlers().table(),
            observer=seen_there.observer(),
        )
        async with leaving(first), leaving(second):
            await until(lambda: meets(first, second))
            waiting = [
                asyncio.ensure_future(first.call(node, "sleep", b"30", timeout_seconds=40))
                for node in (first.node_id, second.node_id)
            ]
            waiting.append(
                asyncio.ensure_future(second.call(node_id(0), "sleep", b"30", timeout_seconds=40))
            )
            await asyncio.sleep(0.1)
            await first.move(replace(before, host="127.0.0.2"), (second.address,))
            assert str(first.address) == f"127.0.0.2:{before.port}"
            await until(lambda: meets(first, second))
            for ended in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(ended, NodeLostError), ended
            events = ["join", "leave", "join"]
            await until(lambda: seen_here.seen == [f"{each} {node_id(1)}" for each in events])
            await until(lambda: seen_there.seen == [f"{each} {node_id(0)}" for each in events])
            for caller in (first, second):
                for called in (first, second):
                    assert await caller.call(called.node_id, "echo", b"here") == b"here"
            with (
                pytest.raises(ConnectionRefusedError),
                socket.create_connection((before.host, before.port), timeout=10),
            ):
                pass

    asyncio.run(body())


def test_routes_lead_to_the_same_process_at_the_new_address(tmp_path: Path) -> None:
    async def body() -> None:
        pem = TestAuthority(tmp_path / "ca").issue("first")
        async with opened(make_config(0, pem=pem)) as member:
            channel = member.add_route("edges.potluck")
            assert channel is not None
            with closing(HandedConnections(channel)) as connections:
                await member.move(replace(member.address, host="127.0.0.2"), ())

                def greet() -> None:
                    context = ssl.create_default_context()
                    with (
                        socket.create_connection(
                            (member.address.host, member.address.port), timeout=20
                        ) as connection,
                        suppress(OSError),  # nothing there speaks TLS
                        context.wrap_socket(connection, server_hostname="edges.potluck"),
                    ):
                        pass

                greeting = asyncio.create_task(asyncio.to_thread(greet))
                await until(lambda: select.select([connections], [], [], 0)[0])
                connections.accept()[0].close()
                await greeting

    asyncio.run(body())


def test_a_node_that_leaves_while_it_moves_is_gone(tmp_path: Path) -> None:
    async def body() -> None:
        authority = TestAuthority(tmp_path / "ca")
        ours, theirs = (authority.issue(name) for name in ("first", "second"))
        first = await Membership.open(make_config(0, pem=ours))
        async with opened(make_config(1, first.address, pem=theirs)) as second:
            moving = asyncio.ensure_future(
                first.move(replace(first.address, host="127.0.0.2"), (second.address,))
            )
            await asyncio.sleep(0)
            await first.close()
            await moving
            await until(lambda: not second.nodes())
            for host in (first.address.host, "127.0.0.2"):
                with (
                    pytest.raises(ConnectionRefusedError),
                    socket.create_connection((host, first.address.port), timeout=10),
                ):
                    pass

    asyncio.run(body())


def test_an_address_that_is_not_of_this_machine_changes_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        authority = TestAuthority(tmp_path / "ca")
        ours, theirs = (authority.issue(name) for name in ("first", "second"))
        seen = Events()
        async with (
            opened(make_config(0, pem=ours), methods=Handlers().table()) as first,
            opened(make_config(1, first.address, pem=theirs), observer=seen.observer()) as second,
        ):
            await until(lambda: meets(first, second))
            before = first.address
            with pytest.raises(JoinError, match=r"cannot listen on 192\.0\.2\.1"):
                await first.move(replace(before, host="192.0.2.1"), (second.address,))
            assert first.address == before
            assert await second.call(node_id(0), "echo", b"here") == b"here"
            assert seen.seen == [f"join {node_id(0)}"]

    asyncio.run(body())
