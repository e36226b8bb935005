"""The address at the level of HTTP: events, errors, keys, metrics, the beginning and the end."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.http.api_server import RunningApi, running_api
from support.http.toy_gateway import MODEL, ToyGateway, expected_text
from support.processes.waiting import done_within, eventually

from potluck.api.config import ApiConfig, ApiLimits
from potluck.api.keys import ApiKeys, create_api_key
from potluck.api.server import serve
from potluck.errors import PotluckError, UsageError


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "go", "seed": 1, **fields}


def error_of(response: httpx2.Response) -> dict[str, Any]:
    document = response.json()
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def test_the_events_of_a_stream(http: httpx2.Client) -> None:
    with http.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            "seed": 5,
            "max_tokens": 3,
            "stream": True,
        },
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-length" not in response.headers
        body = response.read().decode()
    assert body.endswith("data: [DONE]\n\n")
    events = body.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert chunks[-1]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]
    assert all("usage" not in chunk for chunk in chunks)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1])
    assert text == expected_text("user:hello\nassistant:", 5, 3)


def test_models_say_what_requests_that_leave_it_open_get(running: RunningApi) -> None:
    with httpx2.Client(base_url=running.url, timeout=20) as http:
        (listed,) = http.get("/v1/models").json()["data"]
        assert http.get(f"/v1/models/{MODEL}").json() == listed
    assert listed["default_sampling"] == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 1.0,
        "min_p": 0.05,
        "repetition_penalty": 1.0,
    }


def test_compressed_bodies_are_read_within_the_limits(http: httpx2.Client) -> None:
    body = json.dumps(completion(max_tokens=4)).encode()
    headers = {"Content-Encoding": "gzip"}
    plain = http.post("/v1/completions", content=body)
    packed = http.post("/v1/completions", content=gzip.compress(body), headers=headers)
    assert packed.json()["choices"] == plain.json()["choices"]
    bomb = gzip.compress(bytes(100 * 2**20))
    assert http.post("/v1/completions", content=bomb, headers=headers).status_code == 413
    other = http.post("/v1/completions", content=body, headers={"Content-Encoding": "zstd"})
    assert (other.status_code, "zstd" in error_of(other)["message"]) == (415, True)


def test_what_is_no_request_is_refused_in_openais_words(http: httpx2.Client) -> None:
    for body in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 50_000, b'{"user": "\\ud800"}'):
        response = http.post("/v1/chat/completions", content=body)
        assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json")
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", f"/v1/models/{MODEL}", 405),
    ):
        response = http.request(method, path)
        assert response.status_code == status
        assert error_of(response)["type"] == "invalid_request_error"


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
_fields = st.sampled_from(
    [
        "messages", "prompt", "model", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "logit_bias", "seed", "stop", "n", "stream", "stream_options", "user", "logprobs",
        "top_logprobs", "tools", "response_format", "structured_outputs", "guided_json",
        "guided_regex", "guided_choice", "guided_grammar", "echo", "best_of",
    ]
)  # fmt: skip


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    fields=st.dictionaries(_fields | st.text(max_size=6), _json_values, max_size=4),
    is_complete=st.booleans(),
)
def test_no_body_whatever_is_a_mistake_of_ours(
    http: httpx2.Client, path: str, fields: dict[str, Any], is_complete: bool
) -> None:
    base: dict[str, Any] = {"max_tokens": 2}
    if is_complete:
        base |= {"model": MODEL, "prompt": "x"}
        if "chat" in path:
            base = base | {"messages": [{"role": "user", "content": "x"}]}
            del base["prompt"]
    response = http.post(path, content=json.dumps(base | fields))
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert error_of(response)["message"]
        assert len(response.content) < 4000


def test_state_and_metrics(running: RunningApi, http: httpx2.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/cluster").json()["nodes"] == [
        {"state": "silent", "node_id": "00000000000000aa"}
    ]
    before = _samples(http)
    http.post("/v1/completions", json=completion(max_tokens=5, n=2))
    http.get("/v1/models/other")
    after = _samples(http)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    label = f'{{model="{MODEL}"}}'
    assert gained('potluck_http_requests_total{endpoint="/v1/completions",status="200"}') == 1
    assert gained('potluck_http_requests_total{endpoint="/v1/models",status="404"}') == 1
    assert gained(f"potluck_prompt_tokens_total{label}") == 2
    assert gained(f"potluck_generated_tokens_total{label}") == 10
    assert gained(f"potluck_time_to_first_token_seconds_count{label}") == 1
    assert gained(f"potluck_time_between_tokens_seconds_count{label}") == 8
    assert after[f"potluck_model_ready{label}"] == 1
    assert after[f'potluck_kv_blocks{{model="{MODEL}",state="used"}}'] == 12
    for name, number in (
        ("blocks", 9),
        ("admissions_total", 21),
        ("hits_total", 14),
        ("saved_tokens_total", 1234),
        ("evictions_total", 6),
        ("restored_tokens_total", 96),
        ("checkpoints_total", 8),
        ("checkpoint_hits_total", 5),
        ("checkpoint_evictions_total", 2),
        ("uncovered_tokens_total", 77),
    ):
        assert after[f'potluck_prefix_cache_{name}{{model="{MODEL}"}}'] == number
    for name, number in (
        ("tokens", 40),
        ("accepted_tokens", 30),
        ("verifications", 10),
        ("samples", 41),
        ("cancelled_steps", 2),
    ):
        assert after[f"potluck_draft_{name}_total{label}"] == number
    for state, number in (("live", 3), ("checkpoint", 4), ("free", 1)):
        of_model = f'{{model="{MODEL}",state="{state}"}}'
        assert after[f"potluck_state_slots{of_model}"] == number
        assert after[f"potluck_state_bytes{of_model}"] == number * 1000
    assert after[f'potluck_sequences{{model="{MODEL}",state="running"}}'] == 3
    stage = f'{{model="{MODEL}",node="00000000000000aa",stage="0"}}'
    assert after[f"potluck_stage_steps_total{stage}"] == 7
    assert after[f"potluck_stage_compute_seconds_total{stage}"] == 1.5
    assert after[f"potluck_stage_cpu_seconds_total{stage}"] == 1.25
    assert after[f"potluck_stage_memory_bytes{stage}"] == 4096
    assert after[f"potluck_stage_dropped_frames_total{stage}"] == 2
    assert after[f"potluck_stage_slowdown{stage}"] == 1.25
    assert after[f"potluck_stage_exchanges_total{stage}"] == 13
    assert after[f"potluck_stage_exchange_seconds_total{stage}"] == 0.75
    assert after[f"potluck_model_epoch{label}"] == 5
    assert after[f"potluck_model_recoveries_total{label}"] == 4
    assert after[f"potluck_model_recovery_seconds{label}"] == 2.5
    assert after[f"potluck_model_spare_stages{label}"] == 1
    assert after[f"potluck_model_moves_total{label}"] == 3
    assert after[f"potluck_model_move_gain_ratio{label}"] == 0.25

    def shown(name: str, **labels: str) -> float:
        given = sorted({"model": MODEL, **labels}.items())
        return after[name + "{" + ",".join(f'{key}="{value}"' for key, value in given) + "}"]

    rate = "potluck_model_tokens_per_second"
    assert shown(rate, streams="1", figure="measured") == 40
    assert shown(rate, streams="5", figure="measured") == 90
    assert shown(rate, streams="1", figure="predicted") == 45
    assert shown(rate, streams="8", figure="predicted") == 120
    of_stage = {"node": "00000000000000aa", "stage": "0"}
    for name, measured, predicted in (
        ("decode", 0.02, 0.021),
        ("prefill_token", 0.001, 0.0015),
    ):
        name = f"potluck_stage_{name}_seconds"
        assert shown(name, figure="measured", **of_stage) == measured
        assert shown(name, figure="predicted", **of_stage) == predicted
    loaded = "potluck_stage_loaded_decode_seconds"
    assert shown(loaded, figure="predicted", **of_stage) == 0.05
    assert not any(each.startswith(loaded) and "measured" in each for each in after)
    edge = f'edge="0",model="{MODEL}",receiver="00000000000000aa",sender="00000000000000aa"'
    assert after[f"potluck_edge_frames_total{{{edge}}}"] == 8
    assert after[f"potluck_edge_bytes_total{{{edge}}}"] == 900
    assert after[f"potluck_edge_send_seconds_total{{{edge}}}"] == 0.25


def _samples(http: httpx2.Client) -> dict[str, float]:
    lines = http.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_pages_of_others_cannot_use_an_address_without_keys(
    running: RunningApi, http: httpx2.Client
) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Host": "[x"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        response = http.get("/v1/models", headers=headers)
        assert response.status_code == 403
    for allowed in (
        {"Host": "localhost:1234"},
        {"Host": "[::1]:1234"},
        {"Origin": running.url},
    ):
        assert http.get("/v1/models", headers=allowed).status_code == 200


def test_keys_are_needed_where_they_are_in_force(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = create_api_key(path, "laptop")
    with (
        running_api(ApiConfig(keys=ApiKeys.load(path))) as running,
        httpx2.Client(base_url=running.url) as http,
    ):
        assert http.get("/health").status_code == 200
        for address in ("/v1/models", "/metrics", "/cluster", "/nothing"):
            assert http.get(address).status_code == 401
        for header in ("Bearer wrong", f"Basic {key}", key, "Bearer", f"Bearer {key}x"):
            response = http.post(
                "/v1/completions", json=completion(), headers={"Authorization": header}
            )
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert running.gateway.live == []
        right = {"Authorization": f"bearer {key}"}
        for address in ("/v1/models", "/metrics", "/cluster"):
            assert http.get(address, headers=right).status_code == 200
        response = http.post("/v1/completions", json=completion(), headers=right)
        assert response.status_code == 200


def _start(config: ApiConfig) -> str:
    async def start() -> str:
        gateway = ToyGateway()
        try:
            async with serve(gateway, config) as url:
                return url
        finally:
            gateway.dispatcher.close()

    return asyncio.run(start())


def test_other_machines_are_not_let_in_without_keys(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UsageError, match="no API keys"):
            _start(ApiConfig(host=host))
    for host in ("", "no.such.name.invalid", "a" * 100):
        with pytest.raises(UsageError, match="no such address"):
            _start(ApiConfig(host=host))
    create_api_key(tmp_path / "keys", "x")
    keys = ApiKeys.load(tmp_path / "keys")
    assert _start(ApiConfig(host="0.0.0.0", keys=keys)).startswith("http://0.0.0.0:")


def test_addresses_that_cannot_be_had_are_errors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PotluckError, match=f"cannot listen on 127.0.0.1 port {port}"):
            _start(ApiConfig(port=port))
    with pytest.raises(UsageError, match="70000 is not a valid port"):
        _start(ApiConfig(port=70_000))


def test_version_6_addresses() -> None:
    with running_api(ApiConfig(host="::1")) as running:
        assert running.url.startswith("http://[::1]:")
        assert httpx2.get(f"{running.url}/health").status_code == 200
        assert httpx2.get(f"{running.url}/v1/models").status_code == 200


def test_the_end_lets_requests_go_on_for_a_while() -> None:
    limits = ApiLimits(shutdown_seconds=40)
    answers: list[httpx2.Response] = []

    def ask(url: str) -> None:
        answers.append(
            httpx2.post(f"{url}/v1/completions", json=completion(max_tokens=20), timeout=60)
        )

    with done_within(5), running_api(ApiConfig(limits=limits), step_seconds=0.02) as running:
        thread = threading.Thread(target=ask, args=(running.url,))
        thread.start()
        eventually(lambda: running.gateway.num_used_blocks > 0)
    thread.join(20)
    assert answers[0].json()["choices"][0]["text"] == expected_text("go", 1, 20)


def test_the_end_comes_in_time_and_says_so() -> None:
    limits = ApiLimits(shutdown_seconds=0.2)
    results: dict[str, httpx2.Response] = {}

    def ask(url: str, name: str, stream: bool) -> None:
        body = completion(max_tokens=900, stream=stream)
        results[name] = httpx2.post(f"{url}/v1/completions", json=body, timeout=60)

    with done_within(5), running_api(ApiConfig(limits=limits), step_seconds=0.05) as running:
        threads = [
            threading.Thread(target=ask, args=(running.url, "whole", False)),
            threading.Thread(target=ask, args=(running.url, "stream", True)),
        ]
        for thread in threads:
            thread.start()
        eventually(
            lambda: len(running.gateway.live) == 2 and running.gateway.live[1].committed != []
        )
        silent = socket.create_connection(("127.0.0.1", running.port))
        half = socket.create_connection(("127.0.0.1", running.port))
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        )
        time.sleep(0.1)
    for thread in threads:
        thread.join(20)
    assert results["whole"].status_code == 503
    assert error_of(results["whole"])["code"] == "shutting_down"
    last = results["stream"].text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    for connection in (silent, half):
        connection.close()
