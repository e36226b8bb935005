from __future__ import annotations

import asyncio
import datetime
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster.certificates import TestAuthority
from support.cluster.members import Events, Handlers, make_config, node_id, opened, own_threads
from support.processes.waiting import done_within, until

from potluck.cluster.network.membership import Address, Membership, MembershipConfig, PemPaths
from potluck.errors import JoinError
from potluck.types.cluster import WIRE_VERSION


@contextmanager
def listening(*, accepts: bool) -> Iterator[Address]:
    """A TCP listener on loopback that says nothing, or hangs up on everybody."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        if not accepts:
            yield Address(host="127.0.0.1", port=server.getsockname()[1])
            return

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            yield Address(host="127.0.0.1", port=server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


async def refusal(config: MembershipConfig, *, within: float) -> str:
    """What ``open`` ends with; fails the test when it takes longer."""
    with done_within(within), pytest.raises(JoinError) as refused:
        await Membership.open(config)
    assert refused.value.hint
    return refused.value.message


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def pem(tmp_path: Path) -> PemPaths:
    return TestAuthority(tmp_path / "ca").issue("node")


def test_members_with_certificates_of_one_authority_join_and_call(tmp_path: Path) -> None:
    async def body() -> None:
        authority = TestAuthority(tmp_path / "ca")
        first, second = (authority.issue(name) for name in ("first", "second"))
        methods = Handlers().table()
        async with (
            opened(make_config(0, pem=first), methods=methods) as server,
            opened(make_config(1, server.address, pem=second)) as client,
        ):
            assert await client.call(node_id(0), "echo", bytes(1 << 20)) == bytes(1 << 20)

    asyncio.run(body())


def test_a_node_with_another_authority_never_appears_and_is_told_why(tmp_path: Path) -> None:
    async def body() -> None:
        ours, theirs = (TestAuthority(tmp_path / name).issue("node") for name in ("a", "b"))
        events = Events()
        observer = events.observer()
        async with opened(make_config(0, pem=ours), observer=observer) as member:
            stranger = make_config(1, member.address, pem=theirs, join_timeout_seconds=1)
            message = await refusal(stranger, within=3)
            assert message == (
                f"could not join at {member.address}: the agent there has a different secret"
            )
            assert member.nodes() == frozenset()
        assert events.seen == []

    asyncio.run(body())


def test_a_node_with_only_our_authority_certificate_is_not_let_in(tmp_path: Path) -> None:
    """It believes us, and shows a certificate of its own making."""

    async def body() -> None:
        ours, theirs = (TestAuthority(tmp_path / name).issue("node") for name in ("a", "b"))
        forged = replace(theirs, authority=ours.authority)
        events = Events()
        observer = events.observer()
        async with opened(make_config(0, pem=ours), observer=observer) as member:
            stranger = make_config(1, member.address, pem=forged, join_timeout_seconds=1)
            message = await refusal(stranger, within=3)
            assert message.endswith("the agent there has a different secret")
        assert events.seen == []

    asyncio.run(body())


def test_a_plain_node_does_not_join_a_secured_one(pem: PemPaths) -> None:
    async def body() -> None:
        events = Events()
        observer = events.observer()
        async with opened(make_config(0, pem=pem), observer=observer) as member:
            stranger = make_config(1, member.address, join_timeout_seconds=1)
            message = await refusal(stranger, within=3)
            assert message.endswith(
                "something answers there, but it is not a member of this cluster"
            )
        assert events.seen == []

    asyncio.run(body())


def test_an_expired_certificate_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        authority = TestAuthority(tmp_path / "ca")
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        expired, sound = authority.issue("expired", until=past), authority.issue("sound")
        async with opened(make_config(0, pem=expired)) as member:
            joiner = make_config(1, member.address, pem=sound, join_timeout_seconds=1)
            message = await refusal(joiner, within=3)
            assert message.endswith("this node rejects its certificate: certificate has expired")

    asyncio.run(body())


def test_addresses_where_no_member_is_are_explained(pem: PemPaths) -> None:
    async def body() -> None:
        nothing = Address(host="127.0.0.1", port=free_port())
        with listening(accepts=False) as silent, listening(accepts=True) as hanging_up:
            config = make_config(1, nothing, silent, hanging_up, pem=pem, join_timeout_seconds=1)
            message = await refusal(config, within=3)
            assert f"could not join at {nothing}: nothing is listening there; " in message
            assert f"{silent}: something answers there, but" in message
            assert f"{hanging_up}: something answers there, but it is not a member" in message

    asyncio.run(body())


def test_one_address_with_a_member_is_enough() -> None:
    async def body() -> None:
        nothing = Address(host="127.0.0.1", port=free_port())
        async with opened(make_config(0)) as first:
            joining = make_config(1, nothing, first.address)
            async with opened(joining) as second:
                assert second.nodes() == {node_id(0)}

    asyncio.run(body())


def test_another_wire_version_is_reported_on_both_sides() -> None:
    async def body() -> None:
        old, new, later = Events(), Events(), WIRE_VERSION + 1
        async with opened(make_config(0), observer=old.observer()) as member:
            newer = make_config(1, member.address, wire_version=later)
            with pytest.raises(JoinError) as refused:
                await Membership.open(newer, observer=new.observer())
            assert refused.value.message == (
                f"could not join at {member.address}: the nodes there speak wire version "
                f"{WIRE_VERSION}, and this node {later}"
            )
            await until(lambda: old.seen == [f"incompatible {node_id(1)} {later}"], within=2)
            assert new.seen == [f"incompatible {node_id(0)} {WIRE_VERSION}"]
            assert member.nodes() == frozenset()

    asyncio.run(body())


def test_clusters_with_other_ids_do_not_mix() -> None:
    async def body() -> None:
        async with opened(make_config(0)) as member:
            config = make_config(1, member.address, join_timeout_seconds=1)
            other = replace(config, cluster_id="other")
            assert "not a member of this cluster" in await refusal(other, within=3)
            assert member.nodes() == frozenset()

    asyncio.run(body())


def test_an_address_in_use_and_bad_certificates_are_errors_in_words(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(make_config(0)) as member:
            taken = MembershipConfig(node_id=node_id(1), cluster_id="test", listen=member.address)
            message = await refusal(taken, within=2)
            assert message == f"cannot listen on {member.address}: address already in use"
        empty = tmp_path / "empty.pem"
        empty.write_text("")
        broken = PemPaths(authority=empty, certificate=empty, key=empty, removed=empty)
        message = await refusal(make_config(1, pem=broken), within=2)
        assert "the secure transport could not be set up" in message

    asyncio.run(body())


def test_a_join_that_is_cancelled_leaves_nothing() -> None:
    async def body() -> None:
        nothing = Address(host="127.0.0.1", port=free_port())
        for seconds in (0, 0.01, 0.7):
            opening = asyncio.create_task(Membership.open(make_config(1, nothing)))
            await asyncio.sleep(seconds)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

        await until(lambda: own_threads() == [], within=3)

    asyncio.run(body())
