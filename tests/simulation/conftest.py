"""``--seed N`` runs one random schedule and shows what happened in it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="one random schedule to run again")
