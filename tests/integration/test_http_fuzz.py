"""Requests with something wrong about them, in all dialects: each is answered, none with 500.

``benchmarks/fuzz_http.py`` sends many more of them to an agent with a real model.
"""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2
import pytest
from support.http.api_server import running_api
from support.http.documents import DOCUMENTS
from support.http.fuzzing import fuzz
from support.http.mutations import GET_PATHS, body_of, request_of
from support.http.toy_gateway import MODEL, ToyGateway, ToyTokenizer, toy_chat
from support.processes.waiting import done_within
from support.text.chat_templates import CHATML

from potluck.api.config import ApiConfig, ApiLimits
from potluck.text.tool_formats import choose_output_format
from potluck.types.gateway import ServedModel
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling

NUM_REQUESTS = 3_000
NUM_BODIES = 300
"""For each dialect."""
MAX_GROWTH_BYTES = 24 * 2**20


def toy_pair(query: str, document: str, *, instruction: str | None = None) -> list[int]:
    return list(f"{instruction or ''}{query}?{document}".encode())


def able_model(gateway: ToyGateway) -> ServedModel:
    """The toy model as one that can do everything: think, call tools, embed and rank."""
    return ServedModel(
        model_id=MODEL,
        tokenizer=ToyTokenizer(),
        encode_chat=toy_chat,
        vocab_size=ToyTokenizer.vocab_size,
        context_tokens=gateway.status.context_tokens or 0,
        sampling_defaults={},
        output_format=choose_output_format(CHATML, (), tool_format="hermes"),
        can_think=True,
        vector_size=4,
        embedding=EmbeddingConfig(pooling=Pooling.LAST, is_normalized=True),
        rerank=RerankConfig(pooling=Pooling.LAST),
        encode_pair=toy_pair,
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("POTLUCK_FUZZ_SEED") or secrets.randbits(32))
    print(f"POTLUCK_FUZZ_SEED={seed}")
    return seed


def test_no_request_breaks_the_server(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    limits = ApiLimits(head_seconds=5, body_seconds=5)
    with running_api(ApiConfig(limits=limits)) as api:
        api.gateway.served = able_model(api.gateway)
        warm = NUM_REQUESTS // 4
        requests = partial(request_of, seed)
        first = fuzz(api.port, requests, 0, warm)
        before = resident_bytes()
        second = fuzz(api.port, requests, warm, NUM_REQUESTS)
        grown = resident_bytes() - before
        assert (first.failures, second.failures) == ((), ()), seed
        metrics = httpx2.get(f"{api.url}/metrics").text
        assert httpx2.get(f"{api.url}/health").json() == {"status": "ok"}
        assert 'status="500"' not in metrics
        assert "potluck_http_requests_running 0.0" in metrics
        assert "potluck_http_requests_queued 0.0" in metrics
    assert grown < MAX_GROWTH_BYTES, f"{grown / 2**20:.0f} MiB, seed {seed}"
    assert {200, 400, 404} <= set(second.statuses), second.statuses
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert not errors, (seed, errors[:3])


@pytest.mark.parametrize("dialect", sorted(DOCUMENTS))
def test_no_body_breaks_a_dialect(
    dialect: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with running_api() as api:  # at whose end no block may be in use
        api.gateway.served = able_model(api.gateway)
        if dialect == "vectors":
            api.gateway.served = replace(api.gateway.served, has_logits=False)
        requests = partial(body_of, seed, dialect=dialect, model=MODEL)
        fuzzed = fuzz(api.port, requests, 0, NUM_BODIES)
        assert fuzzed.failures == (), seed
        # Mutations leave 12 % (ollama) to 35 % (anthropic) of the bodies valid; a test of bodies of
        # which few are valid would test little.
        assert fuzzed.statuses[200] > NUM_BODIES // 20, fuzzed.statuses
        assert fuzzed.statuses[400] > NUM_BODIES // 10, fuzzed.statuses
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert not errors, (seed, errors[:3])


@pytest.mark.parametrize("path", [*GET_PATHS, "/nothing", "/v1/completions"])
def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    with running_api() as api, socket.create_connection(("127.0.0.1", api.port), timeout=20) as raw:
        answers = []
        for method in ("GET", "HEAD", "GET"):
            with done_within(3):
                raw.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                response = http.client.HTTPResponse(raw, method=method)
                response.begin()
                body = response.read()
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
