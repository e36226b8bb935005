"""Lets these tests import the modules of ``benchmarks``, which are no package, keeps paths short,
gives the tests more time than others, and has the agents that most of them start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import Fleet

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

_SECONDS = 300
"""The longest takes a minute on two free cores: agents, loading, a loss, and recovery."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short: that of a socket has 107 bytes at most (``unix(7)``), and
    pytest's own fixture puts the test's name into it.
    """
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Agents of one cluster, none of which is started yet."""
    with Fleet(tmp_path) as fleet:
        yield fleet
