from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster.members import (
    Events,
    Handlers,
    MemberProcess,
    make_config,
    node_id,
    opened,
    own_threads,
)
from support.processes.waiting import done_within, eventually, until

from potluck.cluster.network.membership import Membership, parse_address
from potluck.errors import NodeLostError


def test_every_member_sees_every_other_and_who_leaves() -> None:
    async def body() -> None:
        events = [Events() for _ in range(4)]
        first = await Membership.open(make_config(0), observer=events[0].observer())
        rest = [
            await Membership.open(
                make_config(number, first.address), observer=events[number].observer()
            )
            for number in (1, 2, 3)
        ]
        members = [first, *rest]
        everyone = frozenset(map(node_id, range(4)))
        await until(
            lambda: all(m.nodes() == everyone - {m.node_id} for m in members),
            within=2,
        )
        await first.close()  # the one that all joined at
        await until(lambda: all(node_id(0) not in m.nodes() for m in rest), within=2)
        assert all(len(m.nodes()) == 2 for m in rest)
        for member in rest:
            await member.close()
        for number, log in enumerate(events[1:], 1):
            others = [other for other in range(4) if other != number]
            joins = {f"join {node_id(other)}" for other in others}
            assert set(log.seen[:3]) == joins
            assert log.seen[3] == f"leave {node_id(0)}"

    asyncio.run(body())


def test_a_killed_process_is_seen_at_once_and_a_stopped_one_within_the_lease() -> None:
    async def body() -> None:
        events = Events()
        async with opened(make_config(0), observer=events.observer()) as member:
            with (
                MemberProcess(make_config(1, member.address)) as killed,
                MemberProcess(make_config(2, member.address)) as stopped,
            ):
                await until(lambda: len(member.nodes()) == 2, within=10)
                killed.process.kill()
                await until(lambda: f"leave {node_id(1)}" in events.seen, within=1)
                os.kill(stopped.process.pid, signal.SIGSTOP)
                seconds = await until(lambda: f"leave {node_id(2)}" in events.seen, within=3)
                assert seconds > 0.2, "the lease was not used"

    asyncio.run(body())


def test_a_node_that_restarts_within_its_lease_leaves_and_joins() -> None:
    async def body() -> None:
        events = Events()
        async with opened(make_config(0), observer=events.observer()) as member:
            with MemberProcess(make_config(1, member.address)) as before:
                await until(lambda: len(member.nodes()) == 1, within=10)
                me = node_id(1)
                call = asyncio.create_task(member.call(me, "sleep", b"60", timeout_seconds=60))
                # From now on the token of the first lingers until its lease ends.
                os.kill(before.process.pid, signal.SIGSTOP)
                with MemberProcess(make_config(1, member.address)) as after:
                    after.expect("open", within=40)
                    await until(lambda: len(events.seen) == 3, within=10)
                    with pytest.raises(NodeLostError, match=r"left the cluster|was lost"):
                        await asyncio.wait_for(call, 20)
                    assert events.seen == [f"join {me}", f"leave {me}", f"join {me}"]
                    await asyncio.sleep(0.5)
                    assert len(events.seen) == 3
                    assert await member.call(me, "echo", b"new") == b"new"
                    assert after.leave() == 0
                await until(lambda: not member.nodes(), within=2)

    asyncio.run(body())


def test_a_member_finds_its_way_back_to_the_address_it_joined_at() -> None:
    async def body() -> None:
        first = await Membership.open(make_config(0))
        address = first.address
        events = Events()
        joining = make_config(1, address)
        async with opened(joining, observer=events.observer()) as member:
            await until(lambda: member.nodes() == {node_id(0)}, within=5)
            await until(lambda: first.nodes() == {node_id(1)}, within=5)
            await asyncio.sleep(1)  # until what each has asked of the other is answered
            await first.close()
            await until(lambda: not member.nodes(), within=10)
            again = replace(make_config(0), listen=address)
            async with opened(again):
                await until(lambda: member.nodes() == {node_id(0)}, within=5)

    asyncio.run(body())


def test_nothing_is_left_of_a_closed_membership() -> None:
    def native_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    async def open_and_close() -> None:
        first = await Membership.open(make_config(0), methods=Handlers().table())
        second = await Membership.open(make_config(1, first.address))
        await second.call(node_id(0), "echo", b"")
        with done_within(1.4):  # one that does not end by itself is left after 3 s
            await second.close()
            await first.close()
            await first.close()

    asyncio.run(open_and_close())  # starts the threads that Zenoh keeps for all sessions
    before = native_threads()
    for _ in range(5):
        asyncio.run(open_and_close())

    eventually(lambda: own_threads() == [] and native_threads() <= before, within=3)


def test_a_process_ends_by_itself_when_it_leaves() -> None:
    with MemberProcess(make_config(0)) as first:
        address = parse_address(first.expect("open", within=40))
        with MemberProcess(make_config(1, address)) as second:
            second.expect("join", within=40)
            assert second.leave() == 0
        first.expect("leave", within=8)
        assert first.leave() == 0
