"""Lets these tests import the modules of ``benchmarks``, which are no package, and keeps paths
short.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short: that of a socket has 107 bytes at most (``unix(7)``), and
    pytest's own fixture puts the test's name into it.
    """
    return tmp_path_factory.mktemp("t")
