from __future__ import annotations

import asyncio

import pytest
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.gateway import LatestReports
from potluck.errors import CallError
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport

ONE, OTHER = NodeId("1" * 16), NodeId("2" * 16)
BOTH = frozenset({ONE, OTHER})


def report_of(node: NodeId, name: str) -> NodeReport:
    return node_report(node, name=name)


class Nodes:
    """Nodes that take ``seconds`` to answer; None never answers, and is given up after 0.6 s."""

    def __init__(self) -> None:
        self.seconds: dict[NodeId, float | None] = {ONE: 0.0, OTHER: 0.0}
        self.requests: list[NodeId] = []

    async def ask(self, node: NodeId) -> NodeReport:
        self.requests.append(node)
        seconds = self.seconds[node]
        if seconds is None:
            await asyncio.sleep(0.6)
            raise CallError("no answer")
        await asyncio.sleep(seconds)
        return report_of(node, f"answer {self.requests.count(node)}")


def test_a_node_that_does_not_answer_is_shown_as_it_last_was_until_it_is_given_up() -> None:
    async def body() -> None:
        nodes = Nodes()
        latest = LatestReports(nodes.ask, shown_seconds=0.1)
        await latest.refresh(BOTH)
        assert [each.name for each in latest.reports(BOTH)] == ["answer 1", "answer 1"]
        nodes.seconds[OTHER] = None
        start = asyncio.get_running_loop().time()
        await latest.refresh(BOTH)
        assert asyncio.get_running_loop().time() - start == pytest.approx(0.1)
        assert [each.name for each in latest.reports(BOTH)] == ["answer 2", "answer 1"]
        assert latest.silent(BOTH) == []
        await latest.refresh(BOTH)
        assert nodes.requests.count(OTHER) == 2, "it was asked again before it had answered"
        await asyncio.sleep(0.6)
        assert [each.node_id for each in latest.reports(BOTH)] == [ONE]
        assert latest.silent(BOTH) == [OTHER]
        nodes.seconds[OTHER] = 0.0
        await latest.refresh(BOTH)
        assert [each.name for each in latest.reports(BOTH)] == ["answer 4", "answer 3"]
        assert latest.silent(BOTH) == []

    run_in_virtual_time(body())


def test_a_node_that_never_answered_is_silent_at_once_and_one_that_left_is_forgotten() -> None:
    async def body() -> None:
        nodes = Nodes()
        nodes.seconds[OTHER] = 0.2
        latest = LatestReports(nodes.ask, shown_seconds=0.05)
        await latest.refresh(BOTH)
        assert latest.silent(BOTH) == [OTHER]
        await asyncio.sleep(0.2)
        assert len(latest.reports(BOTH)) == 2  # a late answer counts
        assert latest.reports({ONE}) == latest.reports(BOTH)[:1]
        await latest.refresh({ONE})
        nodes.seconds[OTHER] = None
        await latest.refresh(BOTH)
        assert latest.silent(BOTH) == [OTHER], "what it said before it left is still shown"

    run_in_virtual_time(body())
