"""Ten thousand requests with something wrong about them: each is answered, and none with 500."""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import socket
import threading
import time
from pathlib import Path

import httpx2
import pytest
from support.api_server import RunningApi, running_api
from support.http_mutations import GET_PATHS, request_of

from potluck.api import ApiConfig, ApiLimits

NUM_REQUESTS = 10_000
NUM_CLIENTS = 4
SECONDS_PER_ANSWER = 20.0
MAX_GROWTH_BYTES = 24 * 2**20


class Client:
    """Sends every ``NUM_CLIENTS``-th request, over one connection for as long as it lasts."""

    def __init__(self, port: int, seed: int, first: int) -> None:
        self._port = port
        self._seed = seed
        self._first = first
        self._connection: socket.socket | None = None
        self.statuses: dict[int, int] = {}
        self.failure: str | None = None

    def run(self, start: int, end: int) -> None:
        for number in range(start + self._first, end, NUM_CLIENTS):
            try:
                self._send(number)
            except Exception as error:  # noqa: BLE001 - told by the test, with the seed
                self.failure = f"request {number} of seed {self._seed}: {error!r}"
                break
        self._close()

    def _send(self, number: int) -> None:
        request = request_of(self._seed, number)
        if self._connection is None:
            self._connection = socket.create_connection(
                ("127.0.0.1", self._port), timeout=SECONDS_PER_ANSWER
            )
        try:
            self._connection.sendall(request.encoded())
            if not request.is_framed:
                self._connection.shutdown(socket.SHUT_WR)
                self._read_to_end()
                return
            response = http.client.HTTPResponse(self._connection, method=request.method.decode())
            response.begin()
            response.read()
        except (ConnectionError, BrokenPipeError):
            if request.is_framed:
                raise
            self._close()
            return
        assert response.status != 500, response.status
        self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
        if response.will_close:
            self._close()

    def _read_to_end(self) -> None:
        assert self._connection is not None
        received = b""
        while part := self._connection.recv(65536):
            received += part
        assert not received.startswith(b"HTTP/1.1 500")
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_clients(api: RunningApi, seed: int, start: int, end: int) -> dict[int, int]:
    clients = [Client(api.port, seed, first) for first in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run, args=(start, end)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [client.failure for client in clients] == [None] * NUM_CLIENTS
    return {
        status: sum(client.statuses.get(status, 0) for client in clients)
        for client in clients
        for status in client.statuses
    }


def test_no_request_breaks_the_server(caplog: pytest.LogCaptureFixture) -> None:
    seed = int(os.environ.get("POTLUCK_FUZZ_SEED") or secrets.randbits(32))
    print(f"POTLUCK_FUZZ_SEED={seed}")
    caplog.set_level(logging.WARNING)
    limits = ApiLimits(head_seconds=5, body_seconds=5)
    with running_api(ApiConfig(limits=limits)) as api:
        warm = NUM_REQUESTS // 5
        run_clients(api, seed, 0, warm)
        before = resident_bytes()
        statuses = run_clients(api, seed, warm, NUM_REQUESTS)
        grown = resident_bytes() - before
        metrics = httpx2.get(f"{api.url}/metrics").text
        assert httpx2.get(f"{api.url}/health").json() == {"status": "ok"}
        assert 'status="500"' not in metrics
        assert "potluck_http_requests_running 0.0" in metrics
        assert "potluck_http_requests_queued 0.0" in metrics
    assert grown < MAX_GROWTH_BYTES, f"{grown / 2**20:.0f} MiB, seed {seed}"
    assert {200, 400, 404} <= set(statuses), statuses
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert not errors, (seed, errors[:3])


@pytest.mark.parametrize("path", [*GET_PATHS, "/nothing", "/v1/completions"])
def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    with running_api() as api, socket.create_connection(("127.0.0.1", api.port), timeout=5) as raw:
        answers = []
        for method in ("GET", "HEAD", "GET"):
            started = time.monotonic()
            raw.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            response = http.client.HTTPResponse(raw, method=method)
            response.begin()
            body = response.read()
            assert time.monotonic() - started < 3
            headers = {name.lower(): value for name, value in response.getheaders()}
            answers.append((response.status, headers, body))
        got, head, again = answers
        assert (head[0], head[2]) == (got[0], b"")
        if path == "/metrics":  # the numbers have changed meanwhile
            assert int(head[1]["content-length"]) > 0
        else:
            assert head[1]["content-length"] == got[1]["content-length"] == str(len(got[2]))
        assert again[0] == got[0]


@pytest.mark.parametrize(
    "body", [b'{"model": "\xff"}', b'{"\xff": 1}', b"\xff", b'{"model": "x", "prompt": "\xc3("}']
)
def test_what_is_not_utf_8_is_said_to_be_so(body: bytes) -> None:
    with running_api() as api:
        for path in ("/v1/completions", "/v1/chat/completions"):
            answer = httpx2.post(f"{api.url}{path}", content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
