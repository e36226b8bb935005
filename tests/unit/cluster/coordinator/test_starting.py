"""What is said of several stages that load at the same time."""

from __future__ import annotations

import pytest

from potluck.cluster.coordinator.starting import _together
from potluck.cluster.wire.worker_messages import Progress
from potluck.types.cluster import NodeId
from potluck.types.content import Transfer

FETCHING = Progress(done_bytes=3, total_bytes=30, is_fetching=True)
LOADING = Progress(done_bytes=10, total_bytes=100)
WARMING_UP = Progress(done_bytes=200, total_bytes=200, is_warming_up=True)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([LOADING, LOADING], ("loading", 20, 200)),
        ([LOADING, FETCHING, WARMING_UP], ("fetching", 3, 30)),
        ([LOADING, WARMING_UP], ("loading", 210, 300)),
        ([WARMING_UP, WARMING_UP], ("warming up", 400, 400)),
    ],
)
def test_what_the_slowest_does_is_said(
    stages: list[Progress], expected: tuple[str, int, int]
) -> None:
    assert _together(stages, [NodeId(str(index)) for index in range(len(stages))]) == expected


def test_what_nodes_get_by_its_content_is_counted_once_for_each() -> None:
    first = Progress(
        done_bytes=5, total_bytes=10, transfer=Transfer(done_bytes=40, total_bytes=100)
    )
    other = Progress(done_bytes=0, total_bytes=7, transfer=Transfer(done_bytes=1, total_bytes=3))
    a, b = NodeId("a"), NodeId("b")
    assert _together([first, first, other], [a, a, b]) == ("fetching", 41, 103)
    done = Progress(done_bytes=5, total_bytes=9, transfer=Transfer(done_bytes=3, total_bytes=3))
    assert _together([done, LOADING], [a, b]) == ("loading", 15, 109)
