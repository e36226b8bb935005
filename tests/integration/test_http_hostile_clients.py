"""Clients that go away, say nothing, speak or read a byte a second, or want too much."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest
from support.http.api_server import RunningApi, running_api
from support.http.toy_gateway import MODEL, expected_text
from support.processes.waiting import done_within, eventually

from potluck.api.config import ApiConfig, ApiLimits


def body_of(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "go", "seed": 1, **fields}).encode()


def head_of(length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@contextmanager
def connected(api: RunningApi) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", api.port), timeout=10) as connection:
        yield connection


def ask(api: RunningApi, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{api.url}/v1/completions", content=body_of(**fields), timeout=60)


def seconds_until_closed(connection: socket.socket) -> float:
    started = time.monotonic()
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - started


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_blocks_within_a_step(stream: bool) -> None:
    with running_api(step_seconds=0.5) as api:
        with connected(api) as connection:
            body = body_of(max_tokens=900, n=3, stream=stream)
            connection.sendall(head_of(len(body)) + body)
            eventually(lambda: len(api.gateway.live) == 3 and bool(api.gateway.live[2].committed))
            assert api.gateway.num_used_blocks == 3
            before = [len(live.committed) for live in api.gateway.live]
        eventually(lambda: api.gateway.num_used_blocks == 0)
        for live, count in zip(api.gateway.live, before, strict=True):
            assert len(live.committed) <= count + 2
        metrics = httpx2.get(f"{api.url}/metrics").text
        assert 'potluck_http_requests_total{endpoint="/v1/completions",status="499"} 1.0' in metrics
        assert "potluck_http_requests_running 0.0" in metrics


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue() -> None:
    limits = ApiLimits(max_concurrent_requests=1)
    with running_api(ApiConfig(limits=limits), step_seconds=0.02) as api:
        with connected(api) as first:
            body = body_of(max_tokens=900)
            first.sendall(head_of(len(body)) + body)
            eventually(lambda: bool(api.gateway.live))
            with connected(api) as second:
                second.sendall(head_of(len(body)) + body)
                eventually(lambda: _gauge(api, "potluck_http_requests_queued") == 1)
            eventually(lambda: _gauge(api, "potluck_http_requests_queued") == 0)
        assert ask(api, max_tokens=2).status_code == 200
        assert len(api.gateway.live) == 2


def _gauge(api: RunningApi, name: str) -> float:
    lines = httpx2.get(f"{api.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_too_many_requests_are_told_when_to_come_again() -> None:
    limits = ApiLimits(max_concurrent_requests=2, max_queued_requests=1, retry_after_seconds=7)
    answers: list[httpx2.Response] = []
    with running_api(ApiConfig(limits=limits)) as api:
        released = threading.Event()
        api.gateway.pause_after = (3, released)

        def client() -> None:
            answers.append(ask(api, max_tokens=30))

        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: _gauge(api, "potluck_http_requests_queued") == 1)
        refused = ask(api)
        released.set()
        for thread in threads:
            thread.join()
        assert ask(api, max_tokens=3).status_code == 200
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "7"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts == [expected_text("go", 1, 30)] * 3


def test_bodies_that_are_too_large_are_refused() -> None:
    limits = ApiLimits(max_body_bytes=1000)
    with running_api(ApiConfig(limits=limits)) as api, httpx2.Client(base_url=api.url) as client:
        pad = " " * (1000 - len(body_of(max_tokens=1)))
        fits = body_of(max_tokens=1) + pad.encode()
        assert client.post("/v1/completions", content=fits).status_code == 200
        for content in (fits + b" ", iter([fits, b" "]), b"x" * 3_000_000):
            response = client.post("/v1/completions", content=content)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        with connected(api) as connection:
            connection.sendall(head_of(10**15))
            assert b" 413 " in connection.recv(65536)
        assert client.post("/v1/completions", content=fits).status_code == 200


def test_all_bodies_together_are_limited() -> None:
    limits = ApiLimits(max_body_bytes=5000, max_buffered_bytes=6000)
    metadata = {str(number): "x" * 500 for number in range(4)}
    with running_api(ApiConfig(limits=limits)) as api:
        with connected(api) as first:
            first.sendall(head_of(5000) + b" " * 4900)
            eventually(lambda: ask(api, metadata=metadata).status_code == 429)
        eventually(lambda: ask(api, metadata=metadata).status_code == 200)


def test_a_body_at_a_byte_a_second_is_cut_off_and_others_are_served() -> None:
    limits = ApiLimits(body_seconds=1.0)
    with running_api(ApiConfig(limits=limits)) as api, connected(api) as slow:
        started = time.monotonic()
        with done_within(2):
            slow.sendall(head_of(100))
            while not select.select([slow], [], [], 0.25)[0]:
                slow.send(b" ")
                assert ask(api, max_tokens=2).status_code == 200
            assert b" 408 " in slow.recv(65536)
            assert time.monotonic() - started > 0.8
            seconds_until_closed(slow)


def test_a_head_at_a_byte_a_second_is_cut_off() -> None:
    limits = ApiLimits(head_seconds=1.0)
    with running_api(ApiConfig(limits=limits)) as api, connected(api) as slow:
        started = time.monotonic()
        with done_within(2):
            for byte in head_of(9):
                if select.select([slow], [], [], 0.25)[0]:
                    break
                slow.send(bytes([byte]))
            seconds_until_closed(slow)
        assert time.monotonic() - started > 0.8


def test_a_connection_that_says_nothing_is_closed() -> None:
    limits = ApiLimits(head_seconds=0.5)
    with (
        running_api(ApiConfig(limits=limits)) as api,
        connected(api) as silent,
        done_within(2),  # it has 10 s by default
    ):
        assert seconds_until_closed(silent) > 0.3


def test_the_next_head_of_a_connection_has_its_time_too() -> None:
    limits = ApiLimits(head_seconds=0.5, idle_seconds=30)
    with running_api(ApiConfig(limits=limits)) as api, connected(api) as connection:
        body = body_of(max_tokens=1)
        for _ in range(3):
            connection.sendall(head_of(len(body)) + body)
            received = b""
            while not received.endswith(b"}}"):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200 ")
            time.sleep(0.6)  # between requests it may be silent for longer
        connection.sendall(b"POST /v1/comp")
        with done_within(2):
            assert seconds_until_closed(connection) > 0.3


def test_200_connections_that_say_nothing_keep_nobody_out() -> None:
    limits = ApiLimits(max_connections=100, head_seconds=60)
    with running_api(ApiConfig(limits=limits)) as api, ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(connected(api))
        with done_within(5):
            for _ in range(5):
                assert ask(api, max_tokens=3).status_code == 200


def test_silence_costs_a_busy_connection_nothing() -> None:
    limits = ApiLimits(max_connections=3)
    answers: list[httpx2.Response] = []
    with running_api(ApiConfig(limits=limits), step_seconds=0.02) as api, ExitStack() as silent:
        thread = threading.Thread(target=lambda: answers.append(ask(api, max_tokens=30)))
        thread.start()
        eventually(lambda: bool(api.gateway.live))
        for _ in range(10):
            silent.enter_context(connected(api))
        thread.join()
    assert answers[0].json()["choices"][0]["text"] == expected_text("go", 1, 30)


def test_a_stream_that_nobody_reads_is_cut_off() -> None:
    limits = ApiLimits(send_seconds=0.5, max_concurrent_requests=1)
    with running_api(ApiConfig(limits=limits), step_seconds=0.002) as api:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.settimeout(10)
            stalled.connect(("127.0.0.1", api.port))
            body = body_of(max_tokens=900, n=4, stream=True, logprobs=20)
            stalled.sendall(head_of(len(body)) + body)
            eventually(lambda: len(api.gateway.live) == 4)
            with done_within(10):
                assert ask(api, max_tokens=3).status_code == 200  # the one slot is free again
            assert any(len(live.committed) < 900 for live in api.gateway.live[:4])
        assert api.gateway.num_used_blocks == 0


def test_a_slow_reader_who_keeps_reading_gets_everything() -> None:
    limits = ApiLimits(send_seconds=1.5)
    with running_api(ApiConfig(limits=limits)) as api, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        slow.settimeout(10)
        slow.connect(("127.0.0.1", api.port))
        body = body_of(max_tokens=900, logprobs=20, n=2)
        slow.sendall(head_of(len(body)) + body)
        received = b""
        started = time.monotonic()
        while b"\r\n\r\n" not in received or len(received) < _expected_length(received):
            part = slow.recv(20_000)
            assert part, "cut off"
            received += part
            time.sleep(0.15)
        assert time.monotonic() - started > 3
        answer = json.loads(received.split(b"\r\n\r\n", 1)[1])
        assert answer["choices"][0]["text"] == expected_text("go", 1, 900)


def _expected_length(received: bytes) -> int:
    head, _, _ = received.partition(b"\r\n\r\n")
    length = next(
        line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length")
    )
    return len(head) + 4 + int(length)


def test_what_is_not_http_is_refused_and_others_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_api() as api:
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"A" * 100_000):
            with connected(api) as connection:
                connection.sendall(garbage)
                if garbage.endswith(b"\n") or len(garbage) > 1000:
                    seconds_until_closed(connection)
        assert ask(api, max_tokens=2).status_code == 200
