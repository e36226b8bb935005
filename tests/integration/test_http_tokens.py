"""``/tokenize`` and ``/detokenize`` over HTTP, against the toy model."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from support.http.api_server import RunningApi
from support.http.toy_gateway import CONTEXT_TOKENS, END_OF_TEXT, MODEL, VOCAB_SIZE, ToyGateway


def post(http: httpx2.Client, path: str, **fields: Any) -> dict[str, Any]:
    response = http.post(path, json=fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_prompt_as_vllm_asks(http: httpx2.Client) -> None:
    answer = post(http, "/tokenize", model=MODEL, prompt="hé", return_token_strs=True)
    assert answer == {
        "count": 3,
        "max_model_len": CONTEXT_TOKENS,
        "tokens": list("hé".encode()),
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }


def test_a_chat_as_vllm_asks(http: httpx2.Client) -> None:
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi"}]
    answer = post(http, "/tokenize", model=MODEL, messages=messages)
    assert bytes(answer["tokens"]) == b"developer:be\nuser:hi\nassistant:"
    closed = post(http, "/tokenize", messages=messages, add_generation_prompt=False)
    assert bytes(closed["tokens"]) == b"developer:be\nuser:hi\n"
    post(http, "/tokenize", messages=messages, chat_template_kwargs={"a": 1}, tools=[])


def test_a_content_as_llama_cpp_asks(http: httpx2.Client) -> None:
    answer = post(http, "/tokenize", content="hé", with_pieces=True, add_special=True)
    assert answer["tokens"] == [
        {"id": 104, "piece": "h"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


@pytest.mark.parametrize("fields", [{"model": MODEL}, {}])
def test_text_of_tokens(http: httpx2.Client, fields: dict[str, Any]) -> None:
    answer = post(http, "/detokenize", tokens=[*"hé".encode(), 300, END_OF_TEXT], **fields)
    assert answer == {"prompt": "hé w300</s>", "content": "hé w300</s>"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "a"}, "content"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools[0].type"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": [], "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        (
            "/tokenize",
            {"prompt": "a", "add_special": True, "add_special_tokens": False},
            "add_special",
        ),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, True]}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(
    http: httpx2.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    response = http.post(path, json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_model_is_named_where_there_are_several(
    running: RunningApi, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyGateway, "models", lambda gateway: (gateway.status, gateway.status))
    response = http.post("/tokenize", json={"prompt": "a"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    post(http, "/tokenize", prompt="a", model=MODEL)
    response = http.post("/tokenize", json={"prompt": "a", "model": "other"})
    assert response.status_code == 404
