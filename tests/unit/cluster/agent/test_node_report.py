"""What a node says it has left, with stages that have not taken all that was planned for them."""

from __future__ import annotations

import pytest

from potluck.cluster.agent import node
from potluck.cluster.agent.node import NodeFacts, report
from potluck.types.cluster import NodeId
from potluck.types.memory import MemoryLimit

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "planned", "untaken", "usable"),
    [
        (None, 0, 0, 8 * GIB),
        (None, 3 * GIB, 2 * GIB, 6 * GIB),
        (2 * GIB, 0, 0, 2 * GIB),
        (2 * GIB, GIB, 0, GIB),
        (2 * GIB, 3 * GIB, GIB, 0),
        (20 * GIB, GIB, GIB, 7 * GIB),
    ],
)
def test_usable_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, planned: int, untaken: int, usable: int
) -> None:
    monkeypatch.setattr(node, "available_memory", lambda: MemoryLimit(bytes=8 * GIB, reason=""))
    facts = NodeFacts(node_id=NodeId("a" * 16), address="", memory_limit_bytes=limit, num_threads=1)
    said = report(
        facts,
        http_address=None,
        is_draining=False,
        planned_bytes=planned,
        untaken_bytes=untaken,
    )
    assert said.units[0].usable_bytes == usable
    assert said.untaken_bytes == untaken
