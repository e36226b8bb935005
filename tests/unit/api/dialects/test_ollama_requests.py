"""Bodies of Ollama's API, and what they ask for: https://docs.ollama.com/api"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.http.toy_gateway import CONTEXT_TOKENS, MODEL, ToyGateway

from potluck import grammars
from potluck.api.dialects.ollama.bodies import parse_chat, parse_generate
from potluck.api.dialects.ollama.requests import chat_request, generate_request
from potluck.api.errors import ApiError
from potluck.api.requests import ChatRequest, CompletionRequest
from potluck.text.template_gaps import fill_gaps
from potluck.types.gateway import ServedModel
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatEnding, ChatMessage, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FIND = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
USER = {"role": "user", "content": "hi"}
WITH_CALLS = "{{ tools }}{{ messages[0].tool_calls }}"
"""A template that gets calls and results as they are."""


@pytest.fixture(scope="module")
def model() -> ServedModel:
    gateway = ToyGateway()
    gateway.dispatcher.close()
    return asyncio.run(gateway.served_model(MODEL))


def chat(model: ServedModel, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return chat_request(parse_chat(json.dumps(body).encode()), model)


def generate(model: ServedModel, **fields: Any) -> ChatRequest | CompletionRequest:
    body = {"model": "m", "prompt": "hi", **fields}
    return generate_request(parse_generate(json.dumps(body).encode()), model)


def test_a_plain_chat(model: ServedModel) -> None:
    assert chat(model) == ChatRequest(
        messages=[ChatMessage(role="user", content="hi")],
        ending=ChatEnding.NEW_TURN,
    )


def test_every_field(model: ServedModel) -> None:
    read = chat(
        model,
        format=SCHEMA,
        stream=False,
        think="low",
        logprobs=True,
        top_logprobs=3,
        tools=[FIND],
        keep_alive="5m",
        options={
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": -3,
            "num_predict": 11,
            "num_ctx": CONTEXT_TOKENS,
            "stop": ["END"],
            "repeat_penalty": 1.2,
            "repeat_last_n": -1,
            "presence_penalty": 0.3,
            "frequency_penalty": 0.4,
            "num_gpu": 99,
            "mirostat": 0,
        },
    )
    assert read == ChatRequest(
        messages=[ChatMessage(role="user", content="hi")],
        sampling={
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.3,
            "frequency_penalty": 0.4,
        },
        seed=-3,
        stop=("END",),
        max_new_tokens=11,
        top_logprobs=3,
        grammar=grammars.json_schema(SCHEMA),
        tool_use=ToolUse(tools=(Tool(name="find", parameters=SCHEMA),), mode=ToolMode.AUTO),
        thinks=True,
        reasoning_effort="low",
    )


@pytest.mark.parametrize("limit", [-2, -1, 0])
def test_a_number_below_one_is_no_limit(model: ServedModel, limit: int) -> None:
    assert chat(model, options={"num_predict": limit}).max_new_tokens is None


def test_formats(model: ServedModel) -> None:
    assert chat(model, format="").grammar is None
    assert chat(model, format="json").grammar == grammars.json_object()


@pytest.mark.parametrize(
    ("think", "thinks", "effort"),
    [(None, None, None), (True, True, None), (False, False, None), ("high", True, "high")],
)
def test_thinking(
    model: ServedModel, think: object, thinks: bool | None, effort: str | None
) -> None:
    for read in (chat(model, think=think), generate(model, think=think)):
        assert isinstance(read, ChatRequest)
        assert (read.thinks, read.reasoning_effort) == (thinks, effort)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"function": {"name": name, "arguments": arguments}}


def test_results_of_tools_answer_the_calls_in_their_order(model: ServedModel) -> None:
    calls = [call("find", a="x"), call("clock"), call("find", a="y")]
    read = chat(
        model,
        messages=[
            USER,
            {"role": "assistant", "thinking": "Hm", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_name": "clock", "content": "12"},
            {"role": "tool", "tool_name": "find", "content": "X"},
            {"role": "tool", "content": "Y"},
            {"role": "tool", "content": "more"},
        ],
    )
    made = read.messages[1]
    assert made.reasoning == "Hm"
    assert [(each.name, each.arguments) for each in made.tool_calls] == [
        ("find", '{"a":"x"}'),
        ("clock", "{}"),
        ("find", '{"a":"y"}'),
    ]
    ids = [each.call_id for each in made.tool_calls]
    assert len(set(ids)) == 3
    results = fill_gaps(read.messages, (), source=WITH_CALLS, special_tokens={})[2:]
    assert [each.tool_call_id for each in results] == [ids[1], ids[0], ids[2], ""]
    assert [each.name for each in read.messages[2:]] == ["clock", "find", None, None]


def test_ids_are_kept_where_clients_send_them(model: ServedModel) -> None:
    read = chat(
        model,
        messages=[
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", **call("a")}, {"id": "c2", **call("a")}],
            },
            {"role": "tool", "tool_call_id": "c2", "content": "x"},
            {"role": "tool", "tool_name": "a", "content": "y"},
        ],
    )
    assert read.messages[0].tool_calls[0] == ToolCall(call_id="c1", name="a", arguments="{}")
    results = fill_gaps(read.messages, (), source=WITH_CALLS, special_tokens={})[1:]
    assert [each.tool_call_id for each in results] == ["c2", "c1"]


def test_a_prompt_is_a_chat_unless_it_is_raw(model: ServedModel) -> None:
    assert generate(model, system="s") == ChatRequest(
        messages=[
            ChatMessage(role="system", content="s"),
            ChatMessage(role="user", content="hi"),
        ],
    )
    raw = generate(model, raw=True, context=[], images=[], template="")
    assert raw == CompletionRequest(prompts=["hi"], parses_control_tokens=True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{**USER, "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{**USER, "tool_calls": [call("a")]}]}, "messages[0].role"),
        ({"messages": [{**USER, "thinking": "x"}]}, "messages[0].role"),
        ({"messages": [{**USER, "tool_name": "x"}]}, "messages[0].role"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].name"),
        ({"tools": [FIND, FIND]}, "tools[1].name"),
        ({"options": {"num_ctx": CONTEXT_TOKENS + 1}}, "options.num_ctx"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"temperatur": 1}}, "options.temperatur"),
        ({"options": {"num_gpu": "all"}}, "options.num_gpu"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"format": "xml"}, "format"),
        ({"keep_alive": []}, "keep_alive"),
        ({"shift": True}, "shift"),
        ({"n": 2}, "n"),
        ({"prompt": "x"}, "prompt"),
        ({"stream": 1}, "stream"),
    ],
)
def test_what_is_refused_is_named(model: ServedModel, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(model, **fields)
    assert (error.value.status, error.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"raw": True, "system": "s"}, "system"),
        ({"context": [1, 2]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"tools": [FIND]}, "tools"),
        ({"width": 512}, "width"),
    ],
)
def test_what_prompts_refuse_is_named(
    model: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as error:
        generate(model, **fields)
    assert (error.value.status, error.value.param) == (400, param)
