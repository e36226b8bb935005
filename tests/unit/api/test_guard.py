"""Who may pass, and in whose words errors are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import create_autospec

import pytest
from support.http.api_server import ask_app
from support.http.toy_gateway import ToyGateway

from potluck.api.app import DIALECTS, build_app
from potluck.api.config import ApiConfig
from potluck.api.dialect import Dialect
from potluck.api.dialects.anthropic import Anthropic
from potluck.api.dialects.ollama import Ollama
from potluck.api.dialects.openai import OpenAI
from potluck.api.errors import ApiError, renamed
from potluck.api.guard import PathTable
from potluck.api.keys import ApiKeys, create_api_key
from potluck.api.service import ApiService

OPENAI_PATHS = (
    "/v1/chat/completions",
    "/v1/models",
    "/v1/responses/resp_1",
    "/cluster",
    "/",
    "//x",
)
ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches/1")
OLLAMA_PATHS = ("/api/chat", "/api/pull", "/api/blobs/sha256:0", "/api")


def table() -> PathTable:
    service = create_autospec(ApiService, instance=True)
    return PathTable({each: tuple(each.endpoints(service)) for each in DIALECTS})


@pytest.mark.parametrize(
    ("dialect", "path"),
    [
        *((OpenAI, path) for path in OPENAI_PATHS),
        *((Anthropic, path) for path in ANTHROPIC_PATHS),
        *((Ollama, path) for path in OLLAMA_PATHS),
    ],
)
def test_every_address_has_a_dialect(dialect: type[Dialect], path: str) -> None:
    assert type(table().find(path)[0]) is dialect


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/messages", "/v1/messages"),
        ("/v1/responses/resp_1", "/v1/responses"),
        ("/v1/models/a/b", "/v1/models"),
        ("/v1/messages/batches", "other"),
        ("/api/pull", "other"),
        ("/" * 100_000, "other"),
    ],
)
def test_labels_are_few(path: str, label: str) -> None:
    assert table().find(path)[1] == label


def answer(
    method: str, path: str, headers: dict[str, str], *, keys: ApiKeys | None = None
) -> tuple[int, Any]:
    """What an application answers."""

    gateway = ToyGateway()
    try:
        app = build_app(gateway, ApiConfig(keys=keys), asyncio.Event())
        response = ask_app(app, method, path, url="http://127.0.0.1", headers=headers)
    finally:
        gateway.dispatcher.close()
    return response.status_code, response.json()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ApiKeys]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    key = create_api_key(path, "me")
    return key, ApiKeys.load(path)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", {"Authorization": "Bearer KEY"}, 200),
        ("/v1/models", {"x-api-key": "KEY"}, 200),  # where Anthropic's clients list models, too
        ("/v1/models", {}, 401),
        ("/v1/models", {"x-api-key": "KEY2"}, 401),
        ("/v1/messages", {"Authorization": "bearer  KEY"}, 405),
        ("/v1/messages", {"x-api-key": "KEY"}, 405),
        ("/v1/messages", {}, 401),
        ("/api/tags", {"Authorization": "Bearer KEY"}, 200),
        ("/api/tags", {}, 401),
        ("/api/tags", {"Authorization": "Basic KEY"}, 401),
        ("/health", {}, 200),
    ],
)
def test_keys(
    key_file: tuple[str, ApiKeys], path: str, headers: dict[str, str], status: int
) -> None:
    key, keys = key_file
    shown = {name: value.replace("KEY", key) for name, value in headers.items()}
    assert answer("GET", path, shown, keys=keys)[0] == status


@pytest.mark.parametrize("path", OPENAI_PATHS[:3])
def test_openai_clients_are_refused_in_their_words(
    key_file: tuple[str, ApiKeys], path: str
) -> None:
    status, body = answer("GET", path, {}, keys=key_file[1])
    assert status == 401
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ANTHROPIC_PATHS)
def test_anthropic_clients_are_refused_in_their_words(
    key_file: tuple[str, ApiKeys], path: str
) -> None:
    status, body = answer("POST", path, {}, keys=key_file[1])
    assert (status, body["type"], body["error"]["type"]) == (401, "error", "authentication_error")


@pytest.mark.parametrize("path", OLLAMA_PATHS)
def test_ollama_clients_are_refused_in_their_words(
    key_file: tuple[str, ApiKeys], path: str
) -> None:
    status, body = answer("POST", path, {}, keys=key_file[1])
    assert status == 401
    assert isinstance(body["error"], str)


def test_an_address_that_is_not_there_is_told_in_the_words_of_its_neighbours() -> None:
    status, body = answer("POST", "/v1/messages/batches", {})
    assert (status, body["error"]["type"]) == (404, "not_found_error")
    status, body = answer("POST", "/api/pull", {})
    assert (status, list(body)) == (404, ["error"])
    assert "/api/pull" in body["error"]
    status, body = answer("POST", "/v1/audio/speech", {})
    assert (status, body["error"]["code"]) == (404, "unknown_url")


def test_fields_have_the_names_of_the_dialect() -> None:
    error = ApiError(
        400, "top_k is 0, and my_top_k 1 (give another top_k)", param="top_k", code="c"
    )
    result = renamed(error, {"top_k": "options.top_k"})
    assert result.message == "options.top_k is 0, and my_top_k 1 (give another options.top_k)"
    assert (result.status, result.param, result.code) == (400, "options.top_k", "c")
    assert renamed(error, {"top_p": "x"}) is error
    assert json.loads(DIALECTS[2].error(result)) == {"error": result.message}
