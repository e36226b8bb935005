"""Lets these tests import the modules of ``benchmarks``, which are no package, and serves the toy
model to those of the HTTP API.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.http.api_server import RunningApi, running_api

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="module")
def running() -> Iterator[RunningApi]:
    with running_api() as running:
        yield running


@pytest.fixture(scope="module")
def http(running: RunningApi) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.url, timeout=20) as client:
        yield client
