"""What nodes tell each other of their units, without anybody who watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.history import History
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.methods import FAREWELL, UNIT_CHANGED
from potluck.errors import CallError
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import ClusterEvent, EventKind

A, B, C = (NodeId(f"{number:016x}") for number in (1, 2, 3))
GPU = UnitId("gpu/x")

Method = Callable[[NodeId, bytes], Coroutine[Any, Any, bytes]]


class _Nodes:
    """Nodes by their ids; ``C`` knows no method at all, as an older version."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.methods: dict[NodeId, dict[str, Method]] = {C: {}}

    def history(self, node: NodeId) -> History:
        methods: dict[str, Method] = {}
        self.methods[node] = methods
        history = History(cast(Membership, _Member(node, self.methods)), spawn=self._spawn)
        history.register(cast(MethodTable, _Table(methods)))
        return history

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task


class _Table:
    def __init__(self, methods: dict[str, Method]) -> None:
        self._methods = methods

    def register_for_caller(self, name: str, method: Method) -> None:
        self._methods[name] = method


class _Member:
    def __init__(self, node_id: NodeId, methods: dict[NodeId, dict[str, Method]]) -> None:
        self.node_id = node_id
        self._methods = methods

    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self._methods) - {self.node_id}

    async def call(
        self, node: NodeId, method: str, payload: bytes, *, timeout_seconds: float
    ) -> bytes:
        known = self._methods[node].get(method)
        if known is None:
            raise CallError(f"there is no method {method}")
        async with asyncio.timeout(timeout_seconds):
            return await known(self.node_id, payload)


def kinds(history: History) -> list[EventKind]:
    return [each.what.kind for each in history.log.after(None)]


def test_all_nodes_log_that_a_unit_fails_and_recovers_though_nobody_watches() -> None:
    async def run() -> tuple[History, History, list[ClusterEvent]]:
        nodes = _Nodes()
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
        nodes = _Nodes()
        history = nodes.history(A)
        member = _Member(B, nodes.methods)
        with pytest.raises(CallError):
            await member.call(A, UNIT_CHANGED.name, payload, timeout_seconds=5)
        await member.call(A, FAREWELL.name, b"", timeout_seconds=5)
        return history

    assert kinds(run_in_virtual_time(run())) == []
