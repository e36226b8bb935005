"""Fixtures of the acceptor's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster.acceptors import Door, an_acceptor


@pytest.fixture
def door() -> Iterator[Door]:
    with an_acceptor() as door:
        yield door
