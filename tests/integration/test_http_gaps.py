"""Filling in the middle of texts, and Ollama's embeddings, over HTTP against the toy model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import numpy as np
import pytest
from support.http.api_server import RunningApi
from support.http.toy_gateway import (
    CONTEXT_TOKENS,
    MODEL,
    VOCAB_SIZE,
    ToyGateway,
    ToyTokenizer,
    expected_tokens,
    toy_chat,
)
from support.scheduling.toy_pipeline import toy_vector

from potluck.types.gateway import ServedModel
from potluck.types.model import EmbeddingConfig
from potluck.types.step import Pooling
from potluck.types.text import Tokenizer


@dataclass(frozen=True)
class ToyGaps:
    """``>prefix<suffix_``; what is filled in ends with any of 900 tokens."""

    ends = frozenset(range(99, 999))

    def prompt(
        self, tokenizer: Tokenizer, prefix: str, suffix: str, *, max_tokens: int | None = None
    ) -> list[int]:
        return tokenizer.encode(f">{prefix}<{suffix}_")


SERVED = ServedModel(
    model_id=MODEL,
    tokenizer=ToyTokenizer(),
    encode_chat=toy_chat,
    vocab_size=VOCAB_SIZE,
    context_tokens=CONTEXT_TOKENS,
    sampling_defaults={},
    vector_size=4,
    embedding=EmbeddingConfig(pooling=Pooling.LAST, is_normalized=True),
    fill_in=ToyGaps(),
)


@pytest.fixture
def gateway(running: RunningApi) -> Iterator[ToyGateway]:
    running.gateway.live.clear()
    running.gateway.served = SERVED
    yield running.gateway
    running.gateway.served = None


def prompt_of(gateway: ToyGateway) -> bytes:
    return bytes(gateway.live[-1].request.prompt_tokens)


def test_a_gap_is_filled_in_both_dialects(gateway: ToyGateway, http: httpx2.Client) -> None:
    payload = {"model": MODEL, "prompt": "ab", "suffix": "cd", "seed": 0, "max_tokens": 50}
    answer = http.post("/v1/completions", json=payload).json()
    assert prompt_of(gateway) == b">ab<cd_"
    generated = expected_tokens(list(b">ab<cd_"), 0, 50)
    first_end = next(
        n for n, token in enumerate(generated) if token in ToyGaps.ends or token == 999
    )
    assert answer["choices"][0]["text"] == ToyTokenizer().decode(generated[:first_end])
    assert answer["choices"][0]["finish_reason"] == "stop"
    for prompt in ("ab", ""):
        body = {"model": MODEL, "prompt": prompt, "suffix": "cd", "stream": False}
        answer = http.post("/api/generate", json=body).json()
        assert answer["done_reason"] == "stop"
        assert prompt_of(gateway) == f">{prompt}<cd_".encode()
    http.post("/v1/completions", json={**payload, "suffix": ""})
    assert prompt_of(gateway) == b"ab"
    capabilities = http.post("/api/show", json={"model": MODEL}).json()["capabilities"]
    assert capabilities == ["completion", "embedding", "insert"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", "a" * CONTEXT_TOKENS]}, "prompt"),
    ],
)
def test_what_does_not_go_with_a_gap(
    gateway: ToyGateway, http: httpx2.Client, fields: dict[str, Any], param: str
) -> None:
    response = http.post("/v1/completions", json={"model": MODEL, "suffix": "x", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_model_without_such_tokens_refuses(gateway: ToyGateway, http: httpx2.Client) -> None:
    gateway.served = replace(SERVED, fill_in=None)
    body = {"model": MODEL, "prompt": "a", "suffix": "b"}
    response = http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "suffix")
    response = http.post("/api/generate", json=body)
    assert response.status_code == 400
    assert "fill-in" in response.json()["error"]
    assert "insert" not in http.post("/api/show", json={"model": MODEL}).json()["capabilities"]


def vector(text: str) -> list[float]:
    plain = np.frombuffer(toy_vector(list(text.encode())), "<f4").astype(np.float64)
    return [float(each) for each in (plain / np.linalg.norm(plain)).astype(np.float32)]


def close(given: Sequence[float], wanted: Sequence[float]) -> bool:
    return bool(np.allclose(given, wanted, atol=1e-6))


def test_ollamas_embeddings(gateway: ToyGateway, http: httpx2.Client) -> None:
    body = {"model": f"{MODEL}:latest", "input": ["one", "three"], "keep_alive": "5m"}
    answer = http.post("/api/embed", json={**body, "options": {"num_ctx": 512}}).json()
    assert answer["model"] == f"{MODEL}:latest"
    assert answer["prompt_eval_count"] == 8
    assert answer["total_duration"] > 0
    for given, text in zip(answer["embeddings"], ("one", "three"), strict=True):
        assert close(given, vector(text))
    answer = http.post("/api/embed", json={"model": MODEL, "input": "one", "dimensions": 2}).json()
    assert len(answer["embeddings"][0]) == 2
    answer = http.post("/api/embeddings", json={"model": MODEL, "prompt": "one"}).json()
    assert close(answer["embedding"], vector("one"))


def test_inputs_that_are_too_long_are_cut_unless_that_is_refused(
    gateway: ToyGateway, http: httpx2.Client
) -> None:
    class Closing(ToyTokenizer):
        closing_tokens = (77,)

    gateway.served = replace(SERVED, tokenizer=Closing())
    body = {"model": MODEL, "input": "a" * (CONTEXT_TOKENS + 5)}
    assert http.post("/api/embed", json=body).status_code == 200
    tokens = gateway.live[-1].request.prompt_tokens
    assert tokens == (*b"a" * (CONTEXT_TOKENS - 1), 77)
    response = http.post("/api/embed", json={**body, "truncate": False})
    assert response.status_code == 400
    assert "context" in response.json()["error"]


def test_no_input_asks_only_that_the_model_is_there(
    gateway: ToyGateway, http: httpx2.Client
) -> None:
    inputs: tuple[object, ...] = ("", [])
    for each in inputs:
        answer = http.post("/api/embed", json={"model": MODEL, "input": each})
        assert answer.json()["embeddings"] == []
    assert http.post("/api/embeddings", json={"model": MODEL}).json() == {"embedding": []}
    assert not gateway.live


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "input"),
        ({"input": ["a", ""]}, "empty"),
        ({"input": [1]}, "input"),
        ({"input": "a", "dimensions": 9}, "dimensions"),
        ({"input": "a", "options": {"num_ctx": CONTEXT_TOKENS + 1}}, "num_ctx"),
        ({"input": "a", "what": 1}, "what"),
    ],
)
def test_what_makes_no_sense_is_refused(
    gateway: ToyGateway, http: httpx2.Client, fields: dict[str, Any], says: str
) -> None:
    response = http.post("/api/embed", json={"model": MODEL, **fields})
    assert response.status_code == 400
    assert says in response.json()["error"]
