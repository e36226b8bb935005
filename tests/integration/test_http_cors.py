"""Web pages of other origins, and lines of system messages that are dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.http.api_server import running_api
from support.http.toy_gateway import MODEL

from potluck.api.config import ApiConfig
from potluck.api.cors import checked_origin
from potluck.api.keys import ApiKeys, create_api_key
from potluck.errors import ParameterError

PAGE = "http://localhost:3000"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    config = ApiConfig(cors_origins=frozenset({PAGE, "app://obsidian.md"}))
    with running_api(config) as running, httpx2.Client(base_url=running.url) as client:
        yield client


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx2.Client, str]]:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    key = create_api_key(path, "first")
    config = ApiConfig(keys=ApiKeys.load(path), cors_origins=frozenset({PAGE}))
    with running_api(config) as running, httpx2.Client(base_url=running.url) as client:
        yield client, key


@pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md"])
def test_a_page_of_the_list_may_use_the_address(http: httpx2.Client, origin: str) -> None:
    preflight = http.options("/v1/chat/completions", headers={**PREFLIGHT, "Origin": origin})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "access-control-allow-private-network" not in preflight.headers
    for stream in (False, True):
        body = {**CHAT, "stream": stream}
        answer = http.post("/v1/chat/completions", json=body, headers={"Origin": origin})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert "origin" in answer.headers["vary"].lower()
        assert "access-control-allow-credentials" not in answer.headers


def test_errors_can_be_read_by_the_page_as_well(http: httpx2.Client) -> None:
    for answer in (
        http.post("/v1/chat/completions", json={}, headers={"Origin": PAGE}),
        http.get("/nothing", headers={"Origin": PAGE}),
    ):
        assert answer.status_code in (400, 404)
        assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_private_network_may_be_asked_for(http: httpx2.Client) -> None:
    headers = {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
    answer = http.options("/v1/models", headers=headers)
    assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3001", "https://localhost:3000"]
)
def test_other_pages_are_refused(http: httpx2.Client, origin: str) -> None:
    for answer in (
        http.options("/v1/models", headers={**PREFLIGHT, "Origin": origin}),
        http.get("/v1/models", headers={"Origin": origin}),
    ):
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        assert "origin" in answer.headers["vary"].lower()


def test_a_name_that_could_be_anybodys_is_refused_all_the_same(http: httpx2.Client) -> None:
    for answer in (
        http.get("/v1/models", headers={"Origin": PAGE, "Host": "evil.example"}),
        http.options("/v1/models", headers={**PREFLIGHT, "Host": "evil.example"}),
    ):
        assert answer.status_code == 403


def test_keys_are_asked_of_pages_but_not_of_preflights(
    with_keys: tuple[httpx2.Client, str],
) -> None:
    client, key = with_keys
    assert client.options("/v1/models", headers=PREFLIGHT).status_code == 204
    refused = client.get("/v1/models", headers={"Origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE
    headers = {"Origin": PAGE, "Authorization": f"Bearer {key}"}
    assert client.get("/v1/models", headers=headers).status_code == 200
    other = client.options("/v1/models", headers={**PREFLIGHT, "Origin": "http://a.example"})
    assert other.status_code == 401
    assert "access-control-allow-origin" not in other.headers


def test_headers_that_are_none_are_not_given_back(http: httpx2.Client) -> None:
    for requested_headers in ("a\tb", "a:b", "x" * 3000):
        headers = {**PREFLIGHT, "Access-Control-Request-Headers": requested_headers}
        answer = http.options("/v1/models", headers=headers)
        assert answer.status_code == 204
        assert "access-control-allow-headers" not in answer.headers


def test_nothing_is_allowed_by_default() -> None:
    with running_api() as running:
        answer = httpx2.get(f"{running.url}/v1/models")
        assert "vary" not in answer.headers
        assert httpx2.options(f"{running.url}/v1/models", headers=PREFLIGHT).status_code == 403


def test_origins_as_browsers_write_them() -> None:
    assert checked_origin("http://Localhost:3000/") == PAGE
    assert checked_origin("chrome-extension://abc") == "chrome-extension://abc"
    for wrong in (
        "*",
        "null",
        "localhost:3000",
        "http://a/b",
        "http://",
        "http://a b",
        "http://a,",
    ):
        with pytest.raises(ParameterError, match="not an origin"):
            checked_origin(wrong)


HEADER = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize("dropped", [True, False])
def test_lines_that_change_are_dropped_in_every_dialect(dropped: bool) -> None:
    config = ApiConfig() if dropped else ApiConfig(dropped_system_lines=())
    line = "" if dropped else f"{HEADER}\n\n"
    user = {"role": "user", "content": HEADER}
    with running_api(config) as running, httpx2.Client(base_url=running.url) as client:
        system = f"{HEADER}\n\nbe"
        body = {"model": MODEL, "max_tokens": 1}
        chat = {**body, "messages": [{"role": "system", "content": system}, user]}
        anthropic = {**body, "messages": [user], "system": system}
        ollama = {"model": MODEL, "messages": chat["messages"], "options": {"num_predict": 1}}
        responses = {"model": MODEL, "instructions": system, "input": HEADER}
        for path, sent in (
            ("/v1/chat/completions", chat),
            ("/v1/messages", anthropic),
            ("/api/chat", ollama),
            ("/v1/responses", {**responses, "max_output_tokens": 1}),
        ):
            answer = client.post(path, json=sent)
            assert answer.status_code == 200, answer.text
            prompt = bytes(running.gateway.live[-1].request.prompt_tokens).decode()
            assert prompt == f"system:{line}be\nuser:{HEADER}\nassistant:"
        counted = client.post(
            "/v1/messages/count_tokens", json={"model": MODEL, "messages": [user], "system": system}
        ).json()
        assert counted == {"input_tokens": len(prompt)}
