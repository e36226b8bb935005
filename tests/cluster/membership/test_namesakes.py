"""Two agents of one node id: the one that runs goes on, the other is told, and soon."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
from support.cluster.members import (
    Events,
    Handlers,
    MemberProcess,
    leaving,
    make_config,
    node_id,
    opened,
)
from support.processes.waiting import done_within, until

from potluck.cluster.network.membership import Membership, Observer
from potluck.cluster.network.membership import node_id_conflicts as module
from potluck.errors import CallError, NodeIdInUseError

SECONDS = 8.0
QUIET_SECONDS = 5.0
ME = node_id(1)


def grow_old(member: Membership) -> Membership:
    """As if it had run for a minute."""
    member._conflicts._started -= 60
    return member


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_copy_that_joins_the_original_is_told_where_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, leaves_first: bool
) -> None:
    """The original is told too, even if the copy has left before it is asked in turn."""

    async def body() -> None:
        async with leaving(grow_old(await Membership.open(make_config(1)))) as original:
            if leaves_first:
                monkeypatch.setattr(original._conflicts, "on_put", lambda _: None)
            with pytest.raises(CallError, match="not a run"):
                await original.call(ME, module._METHOD, b"?")
            with done_within(SECONDS), pytest.raises(NodeIdInUseError) as refused:
                await Membership.open(make_config(1, original.address))
            assert refused.value.message == (
                f"node id {ME} is in use by the agent at {original.address}: "
                "this state directory was probably copied"
            )
            assert "--new-node-id" in refused.value.hint

            def count_warnings() -> int:
                return caplog.text.count(f"also uses this node's id {ME}")

            await until(lambda: count_warnings() > 0, within=SECONDS)
            assert count_warnings() == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())


def test_a_copy_that_meets_another_member_first_disturbs_neither() -> None:
    async def body() -> None:
        events, conflicts = Events(), list[NodeIdInUseError]()
        async with opened(make_config(0), observer=events.observer()) as hub:
            with MemberProcess(make_config(1, hub.address)) as original:
                await until(lambda: events.seen == [f"join {ME}"], within=10)
                await asyncio.sleep(module._SURELY_OLDER_SECONDS + 0.1)
                call = asyncio.create_task(hub.call(ME, "sleep", b"1.5", timeout_seconds=40))
                observer = Observer(on_conflict=conflicts.append)
                with done_within(SECONDS):
                    try:
                        copy = await Membership.open(make_config(1, hub.address), observer=observer)
                    except NodeIdInUseError:
                        assert len(conflicts) == 1
                    else:
                        async with leaving(copy):
                            await until(lambda: bool(conflicts), within=SECONDS)
                assert await call == b"slept"
                assert await hub.call(ME, "echo", b"x") == b"x"
                assert events.seen == [f"join {ME}"]
                assert original.process.poll() is None

    asyncio.run(body())


def test_an_agent_that_hangs_is_not_taken_for_an_earlier_run() -> None:
    """Its threads in Zenoh go on: the token stays, and nobody answers."""

    async def body() -> None:
        methods = Handlers().table()
        async with leaving(
            grow_old(await Membership.open(make_config(1), methods=methods))
        ) as original:
            methods._methods[module._METHOD] = await methods.find(
                "sleep"
            )  # takes a number, and fails
            with (
                done_within(SECONDS),
                pytest.raises(NodeIdInUseError, match="agent that does not answer"),
            ):
                await Membership.open(make_config(1, original.address))

    asyncio.run(body())


def test_an_earlier_run_whose_token_lingers_is_waited_for() -> None:
    async def body() -> None:
        async with opened(make_config(0)) as hub:
            with MemberProcess(make_config(1, hub.address)) as before:
                await until(lambda: len(hub.nodes()) == 1, within=10)
                conflicts = list[NodeIdInUseError]()
                again = asyncio.create_task(
                    Membership.open(
                        make_config(1, hub.address), observer=Observer(on_conflict=conflicts.append)
                    )
                )
                os.kill(before.process.pid, signal.SIGSTOP)
                async with leaving(await again) as after:
                    await asyncio.sleep(QUIET_SECONDS)
                    assert conflicts == []
                    assert after.nodes() == {node_id(0)}
                    assert hub.nodes() == {ME}

    asyncio.run(body())


def test_of_two_that_start_together_one_stays() -> None:
    async def body() -> None:
        conflicts = list[int]()

        def make_observer(number: int) -> Observer:
            return Observer(on_conflict=lambda _: conflicts.append(number))

        async with opened(make_config(0)) as hub:
            both = await asyncio.gather(
                *(
                    Membership.open(make_config(1, hub.address), observer=make_observer(number))
                    for number in range(2)
                ),
                return_exceptions=True,
            )
            await until(lambda: bool(conflicts), within=SECONDS)
            await asyncio.sleep(0.3)
            for each in both:
                if isinstance(each, Membership):
                    await each.close()
        assert len(conflicts) == 1

    asyncio.run(body())
