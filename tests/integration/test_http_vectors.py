"""Embeddings, rerank and score over HTTP, against the toy model and with the official client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from support.http.api_server import RunningApi
from support.http.toy_gateway import (
    CONTEXT_TOKENS,
    MODEL,
    VOCAB_SIZE,
    ToyGateway,
    ToyTokenizer,
    toy_chat,
)
from support.processes.waiting import eventually
from support.scheduling.toy_pipeline import toy_vector

from potluck.errors import ChatTemplateError, EngineError
from potluck.types.gateway import ServedModel
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling

Floats = NDArray[np.float32]


def plain(prompt: list[int]) -> Floats:
    return np.frombuffer(toy_vector(prompt), "<f4")


def normalized(values: Floats) -> Floats:
    return np.asarray(values / np.linalg.norm(values.astype(np.float64)), np.float32)


def toy_pair(query: str, document: str, *, instruction: str | None = None) -> list[int]:
    if document == "no template":
        raise ChatTemplateError("the model has no template for queries and documents")
    return list(f"{instruction or ''}{query}?{document}".encode())


def served(**changes: Any) -> ServedModel:
    model = ServedModel(
        model_id=MODEL,
        tokenizer=ToyTokenizer(),
        encode_chat=toy_chat,
        vocab_size=VOCAB_SIZE,
        context_tokens=CONTEXT_TOKENS,
        sampling_defaults={},
        vector_size=4,
        embedding=EmbeddingConfig(pooling=Pooling.LAST, is_normalized=True),
    )
    return replace(model, **changes)


RERANKER = served(
    has_logits=False,
    embedding=None,
    rerank=RerankConfig(pooling=Pooling.LAST, positive_label=0),
    encode_pair=toy_pair,
)


@pytest.fixture
def gateway(running: RunningApi) -> Iterator[ToyGateway]:
    running.gateway.live.clear()
    yield running.gateway
    running.gateway.served = None
    running.gateway.failure_after = None


@pytest.fixture(scope="module")
def client(running: RunningApi) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings(gateway: ToyGateway, client: openai.OpenAI, encoding: Any) -> None:
    texts = ["hello", "a longer text", "x"]
    options = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model=MODEL, input=texts, **options)
    assert [each.index for each in answer.data] == [0, 1, 2]
    for each, text in zip(answer.data, texts, strict=True):
        given: Any = each.embedding
        if encoding == "base64":
            given = np.frombuffer(base64.b64decode(given), "<f4")
        wanted = normalized(plain(list(text.encode())))
        np.testing.assert_array_equal(np.asarray(given, np.float32), wanted)
    num_tokens = sum(map(len, texts))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)


def test_texts_and_tokens_in_all_forms(gateway: ToyGateway, client: openai.OpenAI) -> None:
    forms: list[Any] = ["hi", ["hi"], [104, 105], [[104, 105]]]
    answers = [client.embeddings.create(model=MODEL, input=form).data for form in forms]
    assert len({tuple(each[0].embedding) for each in answers}) == 1


def test_a_text_gets_the_closing_tokens_and_tokens_do_not(
    gateway: ToyGateway, client: openai.OpenAI
) -> None:
    class Closing(ToyTokenizer):
        closing_tokens = (77,)

    gateway.served = served(tokenizer=Closing())
    client.embeddings.create(model=MODEL, input="hi")
    client.embeddings.create(model=MODEL, input=[104, 105])
    prompts = [live.request.prompt_tokens for live in gateway.live]
    assert prompts == [(104, 105, 77), (104, 105)]


def test_dimensions_cut_before_it_is_normalized(gateway: ToyGateway, client: openai.OpenAI) -> None:
    (short,) = client.embeddings.create(model=MODEL, input="hello", dimensions=2).data
    wanted = normalized(plain(list(b"hello"))[:2])
    np.testing.assert_array_equal(np.asarray(short.embedding, np.float32), wanted)
    gateway.served = served(embedding=EmbeddingConfig(pooling=Pooling.MEAN, is_normalized=False))
    (whole,) = client.embeddings.create(model=MODEL, input="hello").data
    np.testing.assert_array_equal(np.asarray(whole.embedding, np.float32), plain(list(b"hello")))


def test_many_inputs_come_back_in_order(gateway: ToyGateway, client: openai.OpenAI) -> None:
    texts = ["a" * (1 + index % 7) + str(index) for index in range(300)]
    answer = client.embeddings.create(model=MODEL, input=texts)
    for each, text in zip(answer.data, texts, strict=True):
        wanted = normalized(plain(list(text.encode())))
        np.testing.assert_array_equal(np.asarray(each.embedding, np.float32), wanted)
    assert gateway.num_used_blocks == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 3]}, "input"),
        ({"input": {}}, "input"),
        ({"input": [VOCAB_SIZE]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a" * (CONTEXT_TOKENS + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "task": "query"}, "task"),
        ({}, "input"),
    ],
)
def test_what_makes_no_sense_is_refused(
    gateway: ToyGateway, http: httpx2.Client, fields: dict[str, Any], param: str
) -> None:
    response = http.post("/v1/embeddings", json={"model": MODEL, **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_model_is_used_for_what_it_was_made_for(gateway: ToyGateway, http: httpx2.Client) -> None:
    ranking = {"model": MODEL, "query": "q", "documents": ["d"]}
    response = http.post("/v1/rerank", json=ranking)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    gateway.served = RERANKER
    for path, fields in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = http.post(path, json={"model": MODEL, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


def toy_score(prompt: bytes) -> float:
    labels = plain(list(prompt)).astype(np.float64)
    return float(1 / np.exp(labels - labels[0]).sum())


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_rerank(gateway: ToyGateway, http: httpx2.Client, path: str) -> None:
    gateway.served = replace(RERANKER, rerank=RerankConfig(pooling=Pooling.LAST, positive_label=3))
    documents: list[Any] = ["one", {"text": "two!"}, "three"]
    response = http.post(path, json={"model": MODEL, "query": "q", "documents": documents})
    answer = response.json()
    assert response.status_code == 200, answer
    results = answer["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2]
    found = [each["relevance_score"] for each in results]
    assert found == sorted(found, reverse=True)
    texts = ["one", "two!", "three"]
    for each in results:
        text = texts[each["index"]]
        assert each["document"] == {"text": text}
        labels = plain(list(f"q?{text}".encode())).astype(np.float64)
        share = np.exp(labels[3] - labels.max()) / np.exp(labels - labels.max()).sum()
        assert each["relevance_score"] == pytest.approx(share, abs=1e-12)
    num_tokens = sum(len(f"q?{text}") for text in texts)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    body = {"model": MODEL, "query": "q", "documents": texts, "top_n": 1}
    (best,) = http.post(path, json={**body, "return_documents": False}).json()["results"]
    assert best == {key: results[0][key] for key in ("index", "relevance_score")}
    http.post(path, json={**body, "instruction": "why "})
    assert gateway.live[-1].request.prompt_tokens == tuple(b"why q?three")


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_score(gateway: ToyGateway, http: httpx2.Client, path: str) -> None:
    gateway.served = RERANKER

    def scores(first: Any, second: Any) -> list[float]:
        body = {"model": MODEL, "text_1": first, "text_2": second}
        answer = http.post(path, json=body).json()
        assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
        return [each["score"] for each in answer["data"]]

    assert scores("q", "d") == [pytest.approx(toy_score(b"q?d"))]
    one_with_each = scores("q", ["d", "e"])
    assert one_with_each == scores(["q", "q"], ["d", "e"]) == scores(["q"], ["d", "e"])
    response = http.post(path, json={"model": MODEL, "text_1": ["a", "b"], "text_2": ["c"]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "text_2")


def test_a_model_without_a_template_says_so(gateway: ToyGateway, http: httpx2.Client) -> None:
    gateway.served = RERANKER
    body = {"model": MODEL, "query": "q", "documents": ["no template"]}
    response = http.post("/v1/rerank", json=body)
    assert response.status_code == 400
    assert "template" in response.json()["error"]["message"]


def test_one_failure_ends_all_sequences(gateway: ToyGateway, http: httpx2.Client) -> None:
    gateway.failure_after = (0, EngineError("a stage was lost"))
    response = http.post("/v1/embeddings", json={"model": MODEL, "input": ["a"] * 40})
    assert response.status_code >= 500
    eventually(lambda: (gateway.num_open, gateway.num_used_blocks) == (0, 0), within=5)
