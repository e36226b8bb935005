"""What nodes tell each other of their units, without anybody who watches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from support.cluster.calls import MethodNetwork
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.history import History
from potluck.cluster.network.membership import MethodTable
from potluck.cluster.wire.methods import FAREWELL, UNIT_CHANGED
from potluck.errors import CallError
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import ClusterEvent, EventKind

A, B, C = (NodeId(f"{number:016x}") for number in (1, 2, 3))
GPU = UnitId("gpu/x")


class Nodes:
    """Nodes with a history each; ``C`` knows no method at all, as an older version."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.network = MethodNetwork({C: MethodTable()})

    def history(self, node: NodeId) -> History:
        table = self.network.tables[node] = MethodTable()
        history = History(self.network.member(node), spawn=self._spawn)
        history.register(table)
        return history

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task


def kinds(history: History) -> list[EventKind]:
    return [each.what.kind for each in history.log.after(None)]


def test_all_nodes_log_that_a_unit_fails_and_recovers_though_nobody_watches() -> None:
    async def run() -> tuple[History, History, list[ClusterEvent]]:
        nodes = Nodes()
        first, second = nodes.history(A), nodes.history(B)
        first.unit_changed(GPU, "it hung")
        await asyncio.gather(*nodes.tasks)
        events = list(second.log.after(None))
        first.unit_changed(GPU, "")
        await asyncio.gather(*nodes.tasks)
        return first, second, events

    first, second, (out,) = run_in_virtual_time(run())
    assert kinds(first) == kinds(second) == [EventKind.UNIT_OUT, EventKind.UNIT_BACK]
    assert out.what.node_id == A
    assert out.what.details == {"unit_id": GPU, "reason": "it hung"}


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xc1"])
def test_a_malformed_change_fails_its_own_call_only(payload: bytes) -> None:
    async def run() -> History:
        nodes = Nodes()
        history = nodes.history(A)
        member = nodes.network.member(B)
        with pytest.raises(CallError):
            await member.call(A, UNIT_CHANGED.name, payload, timeout_seconds=5)
        await member.call(A, FAREWELL.name, b"", timeout_seconds=5)
        return history

    assert kinds(run_in_virtual_time(run())) == []
