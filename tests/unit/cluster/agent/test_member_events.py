from __future__ import annotations

import asyncio

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.member_events import MemberEvents
from potluck.errors import NodeIdInUseError
from potluck.types.cluster import NodeId

A, B = NodeId("a" * 16), NodeId("b" * 16)


def test_events_of_the_time_before_anyone_listens_are_passed_on_in_order() -> None:
    async def run() -> None:
        events = MemberEvents()
        observer = events.observer()
        observer.on_join(A)
        observer.on_join(B)
        observer.on_leave(A)
        seen: list[str] = []
        task = asyncio.ensure_future(
            events.run(
                joined=[lambda node: seen.append(f"+{node[0]}")],
                left=[lambda node: seen.append(f"-{node[0]}")],
            )
        )
        await asyncio.sleep(0.01)
        assert seen == ["+a", "+b", "-a"]
        observer.on_join(A)
        await asyncio.sleep(0.01)
        assert seen[-1] == "+a"
        task.cancel()

    run_in_virtual_time(run())


def test_a_defect_in_acting_on_a_node_is_logged_and_later_events_are_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        events = MemberEvents()
        seen: list[NodeId] = []

        def fail(node: NodeId) -> None:
            raise KeyError(node)

        task = asyncio.ensure_future(events.run(joined=[fail], left=[seen.append]))
        events.observer().on_join(A)
        events.observer().on_leave(A)
        await asyncio.sleep(0.01)
        assert seen == [A]
        assert f"could not handle a change of node {A}" in caplog.text
        task.cancel()

    run_in_virtual_time(run())


def test_what_cannot_take_part_is_remembered_until_it_can() -> None:
    async def run() -> None:
        events = MemberEvents()
        observer = events.observer()
        observer.on_incompatible(A, 7)
        assert events.incompatible == {A: 7}
        observer.on_join(A)
        assert events.incompatible == {}
        assert not events.failed.done()
        observer.on_conflict(NodeIdInUseError(A, "in use", hint=""))
        observer.on_conflict(NodeIdInUseError(A, "again", hint=""))
        with pytest.raises(NodeIdInUseError, match="in use"):
            await events.failed

    run_in_virtual_time(run())
