"""Requests that wait: for stages that are loaded again, or for a long prompt."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from support.http.api_server import RunningApi, running_api
from support.http.toy_gateway import MODEL, expected_text
from support.processes.waiting import eventually

from potluck.api.config import ApiConfig, ApiLimits
from potluck.errors import EngineError
from potluck.types.deployment import DeploymentState

SILENCE_SECONDS = 0.2
WAITING = ": waiting"
CONFIG = ApiConfig(limits=ApiLimits(silence_seconds=SILENCE_SECONDS))


@contextmanager
def held_api(num_tokens: int) -> Iterator[tuple[RunningApi, threading.Event]]:
    """Sequences get ``num_tokens``, and more once the event is set."""
    with running_api(CONFIG) as api:
        released = threading.Event()
        api.gateway.pause_after = (num_tokens, released)
        try:
            yield api, released
        finally:
            released.set()


@contextmanager
def lines_of(api: RunningApi, **fields: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream that are not empty, as they come."""
    body = {"model": MODEL, "prompt": "go", "seed": 1, "stream": True, **fields}
    with (
        httpx2.Client(timeout=20) as client,
        client.stream("POST", f"{api.url}/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (line for line in response.iter_lines() if line)


def text_of(lines: list[str]) -> str:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return "".join(json.loads(each)["choices"][0]["text"] for each in data)


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_stream_that_waits_is_sent_comments_and_then_the_same_text(num_tokens: int) -> None:
    with (
        held_api(num_tokens) as (api, released),
        lines_of(api, max_tokens=20) as lines,
    ):
        started = time.monotonic()
        got = [next(lines) for _ in range(num_tokens)]
        assert [next(lines) for _ in range(4)] == [WAITING] * 4
        seconds = time.monotonic() - started
        if num_tokens:  # otherwise one of them was there already
            assert seconds > 3.5 * SILENCE_SECONDS
        released.set()
        rest = [line for line in lines if line != WAITING]
    assert rest[-1] == "data: [DONE]"
    assert text_of(got + rest) == expected_text("go", 1, 20)


def test_a_stream_that_flows_has_no_comments() -> None:
    limits = ApiLimits(silence_seconds=2.0)
    with (
        running_api(ApiConfig(limits=limits), step_seconds=0.05) as api,
        lines_of(api, max_tokens=60) as lines,
    ):
        got = list(lines)
    assert WAITING not in got
    assert text_of(got) == expected_text("go", 1, 60)


def test_tokens_that_give_no_text_yet_are_no_reason_for_silence() -> None:
    """A stop text that the answer may be about to give holds its beginning back."""
    text = expected_text("go", 1, 30)
    with (
        running_api(CONFIG, step_seconds=0.04) as api,
        lines_of(api, max_tokens=30, stop=[text + "!"]) as lines,
    ):
        got = list(lines)
    assert got.count(WAITING) >= 3
    assert text_of(got) == text


def test_the_official_client_does_not_see_comments() -> None:
    with held_api(2) as (api, released):

        def chat() -> list[str]:
            with openai.OpenAI(base_url=api.base_url, api_key="none", max_retries=0) as client:
                stream = client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "hello"}],
                    max_tokens=12,
                    seed=5,
                    stream=True,
                )
                return [chunk.choices[0].delta.content or "" for chunk in stream]

        async def chat_async() -> list[str]:
            async with openai.AsyncOpenAI(base_url=api.base_url, api_key="none") as client:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "hello"}],
                    max_tokens=12,
                    seed=5,
                    stream=True,
                )
                return [chunk.choices[0].delta.content or "" async for chunk in stream]

        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(chat), pool.submit(lambda: asyncio.run(chat_async()))]
            eventually(lambda: len(api.gateway.live) == 2)
            time.sleep(4 * SILENCE_SECONDS)
            released.set()
            for answer in answers:
                assert "".join(answer.result()) == expected_text("user:hello\nassistant:", 5, 12)


def test_answers_that_are_not_streamed_are_json_however_long_they_wait() -> None:
    with held_api(0) as (api, released), ThreadPoolExecutor(1) as pool:
        body = {"model": MODEL, "prompt": "go", "seed": 1, "max_tokens": 5}
        answer = pool.submit(httpx2.post, f"{api.url}/v1/completions", json=body, timeout=20)
        eventually(lambda: len(api.gateway.live) == 1)
        time.sleep(4 * SILENCE_SECONDS)
        released.set()
        response = answer.result()
    assert response.headers["content-length"] == str(len(response.content))
    assert response.content.startswith(b"{")
    assert response.json()["choices"][0]["text"] == expected_text("go", 1, 5)


@pytest.mark.parametrize("state", [DeploymentState.LOADING, DeploymentState.DEGRADED])
def test_requests_for_a_model_that_is_not_ready_wait_for_it(state: DeploymentState) -> None:
    with held_api(0) as (api, released), ThreadPoolExecutor(1) as pool:
        api.gateway.status = replace(api.gateway.status, state=state, reason="node b is lost")
        body = {"model": MODEL, "prompt": "go", "seed": 1, "max_tokens": 5}
        answer = pool.submit(httpx2.post, f"{api.url}/v1/completions", json=body, timeout=20)
        eventually(lambda: len(api.gateway.live) == 1)
        assert httpx2.get(f"{api.url}/health/ready").status_code == 503
        assert not answer.done()
        released.set()
        assert answer.result().status_code == 200


def test_a_stream_whose_wait_ends_with_an_error_says_it_in_an_event() -> None:
    with held_api(0) as (api, released), lines_of(api, max_tokens=5) as lines:
        api.gateway.status = replace(api.gateway.status, state=DeploymentState.DEGRADED)
        api.gateway.failure_after = (0, EngineError("3 GiB are missing"))
        assert next(lines) == WAITING
        released.set()
        *_, last = lines
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("3 GiB are missing", "model_not_ready")


def test_an_error_before_the_first_comment_has_a_status() -> None:
    limits = ApiLimits(silence_seconds=30.0)
    with running_api(ApiConfig(limits=limits)) as api, ThreadPoolExecutor(1) as pool:
        released = threading.Event()
        api.gateway.pause_after = (0, released)
        api.gateway.failure_after = (0, EngineError("3 GiB are missing"))
        body = {"model": MODEL, "prompt": "go", "stream": True}
        answer = pool.submit(httpx2.post, f"{api.url}/v1/completions", json=body, timeout=20)
        eventually(lambda: len(api.gateway.live) == 1)
        released.set()
        assert answer.result().status_code == 503


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_client_that_goes_away_while_it_waits_ends_its_sequences(
    is_stream: bool, num_tokens: int
) -> None:
    with held_api(num_tokens) as (api, _):
        body = json.dumps(
            {"model": MODEL, "prompt": "go", "n": 2, "max_tokens": 50, "stream": is_stream}
        ).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", api.port), timeout=10) as connection:
            connection.sendall(head % len(body) + body)
            eventually(lambda: len(api.gateway.live) == 2)
            if is_stream:
                connection.recv(1)
            time.sleep(2 * SILENCE_SECONDS)
            assert api.gateway.num_open == 2
        eventually(lambda: api.gateway.num_open == 0)
        eventually(lambda: api.gateway.num_used_blocks == 0)


def test_a_server_that_ends_tells_a_stream_that_waits() -> None:
    limits = ApiLimits(silence_seconds=0.1, shutdown_seconds=0.1)
    got: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        with running_api(ApiConfig(limits=limits)) as api:
            api.gateway.pause_after = (0, threading.Event())

            def read() -> None:
                with lines_of(api, max_tokens=5) as lines:
                    for line in lines:
                        got.append(line)

            reading = pool.submit(read)
            eventually(lambda: len(got) >= 2)
        reading.result(40)
    assert set(got[:-1]) == {WAITING}
    assert json.loads(got[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
