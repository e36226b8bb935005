"""Lets these tests import the modules of ``benchmarks``, which are no package, and serves the toy
model to those of the HTTP API.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx2
    from support.http.api_server import RunningApi

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="module")
def running() -> Iterator[RunningApi]:
    from support.http.api_server import running_api  # other tests do without HTTP

    with running_api() as running:
        yield running


@pytest.fixture(scope="module")
def http(running: RunningApi) -> Iterator[httpx2.Client]:
    import httpx2

    with httpx2.Client(base_url=running.url, timeout=20) as client:
        yield client
