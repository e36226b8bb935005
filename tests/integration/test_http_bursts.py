"""Bursts of connections: the server answers on, and holds neither descriptors nor a long log."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support.http.api_server import running_api
from support.process_facts import num_descriptors
from support.processes.waiting import done_within, eventually

from potluck.api.config import ApiConfig, ApiLimits

LIMIT = 160
NUM_CONNECTS = 700


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallServer:
    url: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rsplit(":", 1)[1])

    @property
    def num_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def small_server(log: Path, num_held: int) -> Iterator[SmallServer]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "support.http.small_server", str(LIMIT), str(num_held)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        yield SmallServer(url=child.stdout.readline().strip(), pid=child.pid)
        child.communicate("", timeout=20)
    assert child.returncode == 0


@contextmanager
def burst(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    """As many connections as there is room for here, begun at once."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            assert connection.connect_ex(address) in (0, errno.EINPROGRESS)
            opened.append(connection)
        yield opened
    finally:
        for connection in opened:
            connection.close()


@pytest.mark.parametrize("num_held", [0, 90])
def test_a_burst_of_connections_leaves_descriptors_and_a_short_log(
    tmp_path: Path, num_held: int
) -> None:
    """With 90 taken by others, half of the limit is more than there is left."""
    log = tmp_path / "log"
    with small_server(log, num_held) as server:
        idle = server.num_descriptors
        most = 0
        for _ in range(3):
            with burst(server.address, NUM_CONNECTS):
                for _ in range(10):
                    with done_within(5):
                        assert httpx2.get(f"{server.url}/health", timeout=40).status_code == 200
                    most = max(most, server.num_descriptors)
        assert most <= (idle + LIMIT // 2 + 1 if num_held == 0 else LIMIT)
        eventually(
            lambda: server.num_descriptors <= idle + 2,
            what="connections that were closed are no longer held",
        )
    assert log.stat().st_size < 4000, log.read_text()[:4000]


def test_there_are_never_more_connections_than_the_limit() -> None:
    limits = ApiLimits(max_connections=20, max_concurrent_requests=64)
    with running_api(ApiConfig(limits=limits), step_seconds=0.05) as api:
        address = ("127.0.0.1", api.port)
        before = num_descriptors()
        with burst(address, 400) as clients:
            for _ in range(20):
                held = num_descriptors() - before - len(clients)
                assert held <= 20 + 1
                time.sleep(0.01)


def test_a_connection_beyond_busy_ones_is_refused_in_words() -> None:
    body = b'{"model": "toy/model", "prompt": "go", "seed": 1, "max_tokens": 400}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    limits = ApiLimits(max_connections=2)
    with running_api(ApiConfig(limits=limits), step_seconds=0.05) as api:
        address = ("127.0.0.1", api.port)
        with socket.create_connection(address) as one, socket.create_connection(address) as two:
            for busy in (one, two):
                busy.sendall(head % len(body) + body)
            eventually(lambda: len(api.gateway.live) == 2)
            with socket.create_connection(address, timeout=20) as third:
                assert third.recv(1000).startswith(b"HTTP/1.1 503 ")
