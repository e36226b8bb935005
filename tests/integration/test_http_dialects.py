"""Every dialect over HTTP, against a model that thinks, calls tools and writes what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.http.api_server import RunningApi, running_api
from support.http.scripted_gateway import ScriptedGateway
from support.http.toy_gateway import CONTEXT_TOKENS, MODEL
from support.processes.waiting import eventually
from support.text.rendered import Event, events, lines

from potluck.api.config import ApiConfig, ApiLimits
from potluck.errors import EngineError
from potluck.types.sequence import SequenceRequest

TOOL_TURN = (
    b"<think>Hmm.</think>I look.\n"
    b'<tool_call>\n{"name": "find", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    b'<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PROMPT = "user:hi\nassistant:"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningApi]:
    limits = ApiLimits(silence_seconds=0.2)
    with running_api(ApiConfig(limits=limits), gateway=ScriptedGateway()) as running:
        yield running


@pytest.fixture
def gateway(running: RunningApi) -> Iterator[ScriptedGateway]:
    gateway = running.gateway
    assert isinstance(gateway, ScriptedGateway)
    gateway.live.clear()
    gateway.script = TOOL_TURN
    yield gateway
    gateway.failure_after = None
    gateway.first_seconds = 0.0
    gateway.is_cut_off = False


@pytest.fixture
def client(running: RunningApi, gateway: ScriptedGateway) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.url, timeout=20) as client:
        yield client


def post(client: httpx2.Client, path: str, body: Event, status: int = 200) -> Any:
    response = client.post(path, json={"model": MODEL, **body})
    assert response.status_code == status, response.text
    return response.json()


def streamed(client: httpx2.Client, path: str, body: Event) -> bytes:
    response = client.post(path, json={"model": MODEL, "stream": True, **body})
    assert response.status_code == 200, response.text
    return response.content


def request(gateway: ScriptedGateway) -> SequenceRequest:
    """What the last sequence was asked for."""
    return gateway.live[-1].request


def prompt(gateway: ScriptedGateway) -> str:
    return bytes(request(gateway).prompt_tokens).decode()


def test_an_answer_whose_grammar_cannot_be_followed_is_an_error(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    gateway.is_cut_off = True
    body: Event = {"messages": [{"role": "user", "content": "hi"}]}
    constrained = {**body, "response_format": {"type": "json_object"}}
    error = post(client, "/v1/chat/completions", constrained, 503)["error"]
    assert "cannot apply the grammar" in error["message"]
    assert post(client, "/v1/chat/completions", {**constrained, "max_tokens": 1})["choices"]
    assert post(client, "/v1/chat/completions", body)["choices"]


# Anthropic

ANTHROPIC: Event = {
    "max_tokens": 300,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [
        {"name": "find", "input_schema": SCHEMA},
        {"name": "clock", "input_schema": {"type": "object"}},
    ],
}


def blocks_of(found: list[Event]) -> list[Event]:
    """The blocks of a stream, put together as clients do it."""
    blocks: list[Event] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            assert event["index"] == len(blocks) - 1
            name = {"input_json_delta": "json"}.get(delta["type"], delta["type"][:-6])
            blocks[-1][name] += delta.get("partial_json", delta.get(name))
    for block in blocks:
        text = block.pop("json")
        if text:
            block["input"] = json.loads(text)
    return blocks


def test_anthropic_tools(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    answer = post(client, "/v1/messages", ANTHROPIC)
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"] == {
        "input_tokens": len(PROMPT) - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": len(TOOL_TURN) + 1,
    }
    found = events(streamed(client, "/v1/messages", ANTHROPIC))
    blocks = blocks_of(found)
    for each in (*blocks, *answer["content"]):
        each.pop("id", None)
    assert blocks == answer["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "find", "input": {"city": "Rome"}},
        {"type": "tool_use", "name": "clock", "input": {}},
    ]
    assert found[-2]["usage"] == answer["usage"]
    assert request(gateway).grammar is None


def test_anthropic_answers_go_back_as_they_came(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    first = post(client, "/v1/messages", ANTHROPIC)
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": block["name"]}
        for block in first["content"]
        if block["type"] == "tool_use"
    ]
    gateway.script = b"It is noon."
    second = post(
        client,
        "/v1/messages",
        {
            **ANTHROPIC,
            "messages": [
                *ANTHROPIC["messages"],
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
            ],
        },
    )
    assert second["content"] == [{"type": "text", "text": "It is noon."}]
    assert second["stop_reason"] == "end_turn"
    assert prompt(gateway) == (
        "user:hi\nassistant:I look.\ntool:find\ntool:clock\nuser:And?\nassistant:"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "clock"}},
        {"tools": [{"name": "find", "input_schema": SCHEMA, "strict": True}]},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "tools": None},
    ],
)
def test_anthropic_grammars(client: httpx2.Client, gateway: ScriptedGateway, fields: Event) -> None:
    post(client, "/v1/messages", {**ANTHROPIC, **fields})
    assert request(gateway).grammar is not None


def test_anthropic_stop_sequences(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    gateway.script = b"one two three"
    answer = post(client, "/v1/messages", {**ANTHROPIC, "stop_sequences": ["two", "zwei"]})
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "two")
    assert answer["content"] == [{"type": "text", "text": "one "}]
    eventually(lambda: not gateway.num_open)


def test_anthropic_counts_the_tokens_of_the_prompt(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    body = {name: value for name, value in ANTHROPIC.items() if name != "max_tokens"}
    assert post(client, "/v1/messages/count_tokens", body) == {"input_tokens": len(PROMPT)}
    assert gateway.live == []


def test_anthropic_errors(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    unknown = post(client, "/v1/messages", {**ANTHROPIC, "model": "gpt"}, status=404)
    assert unknown["error"]["type"] == "not_found_error"
    error_body = post(client, "/v1/messages", {**ANTHROPIC, "stop_sequences": [""]}, status=400)
    assert error_body["error"]["message"].startswith("stop_sequences has a text of 0 characters")
    bad = {"type": "json_schema", "schema": {"$ref": "#/nowhere"}}
    error_body = post(
        client, "/v1/messages", {**ANTHROPIC, "output_config": {"format": bad}}, status=400
    )
    assert "$ref" in error_body["error"]["message"]
    gateway.failure_after = (5, EngineError("stage 1 is gone"))
    error_body = post(client, "/v1/messages", ANTHROPIC, status=503)
    assert error_body["error"] == {"type": "overloaded_error", "message": "stage 1 is gone"}
    gateway.failure_after = (len("<think>Hmm.</think>I "), EngineError("stage 1 is gone"))
    found = events(streamed(client, "/v1/messages", ANTHROPIC))
    assert found[0]["type"] == "message_start"
    assert found[-1] == error_body


def test_anthropic_streams_that_wait(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    gateway.first_seconds = 0.7
    data = streamed(client, "/v1/messages", ANTHROPIC)
    assert data.startswith(b": waiting\n\n")
    assert data.replace(b": waiting\n\n", b"").startswith(b"event: message_start\n")


def test_a_client_that_goes_away_ends_its_sequence(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    gateway.script = b"x" * 900
    body = {"model": MODEL, "stream": True, **ANTHROPIC, "max_tokens": 900}
    with client.stream("POST", "/v1/messages", json=body) as response:
        next(response.iter_raw())
    eventually(lambda: not gateway.num_open)


# Ollama

OLLAMA: Event = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [
        {"type": "function", "function": {"name": "find", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "clock"}},
    ],
}
CALLS = [
    {"function": {"index": 0, "name": "find", "arguments": {"city": "Rome"}}},
    {"function": {"index": 1, "name": "clock", "arguments": {}}},
]


def test_ollama_tools(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    answer = post(client, "/api/chat", {**OLLAMA, "stream": False})
    assert answer["message"] == {
        "role": "assistant",
        "content": "I look.",
        "thinking": "Hmm.",
        "tool_calls": CALLS,
    }
    assert (answer["done"], answer["done_reason"]) == (True, "stop")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (len(PROMPT), len(TOOL_TURN) + 1)
    found = lines(streamed(client, "/api/chat", OLLAMA))
    assert "".join(each["message"]["content"] for each in found) == "I look."
    assert "".join(each["message"].get("thinking", "") for each in found) == "Hmm."
    assert [call for each in found for call in each["message"].get("tool_calls", ())] == CALLS
    assert [each["done"] for each in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["eval_count"] == len(TOOL_TURN) + 1


def test_ollama_answers_go_back_as_they_came(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    first = post(client, "/api/chat", {**OLLAMA, "stream": False})
    gateway.script = b"It is noon."
    results = [
        {"role": "tool", "tool_name": call["function"]["name"], "content": "x"}
        for call in first["message"]["tool_calls"]
    ]
    messages = [*OLLAMA["messages"], first["message"], *results]
    second = post(client, "/api/chat", {**OLLAMA, "messages": messages, "stream": False})
    assert second["message"] == {"role": "assistant", "content": "It is noon."}
    assert prompt(gateway) == "user:hi\nassistant:I look.\nfind:x\nclock:x\nassistant:"


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_ollama_formats(client: httpx2.Client, gateway: ScriptedGateway, form: object) -> None:
    gateway.script = b'{"city":"Rome"}'
    body = {"prompt": "hi", "format": form, "stream": False}
    assert post(client, "/api/generate", body)["response"] == '{"city":"Rome"}'
    assert request(gateway).grammar is not None


def test_ollama_lines_are_objects_while_a_stream_waits(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    gateway.first_seconds = 0.7
    found = lines(streamed(client, "/api/generate", {"prompt": "hi"}))
    assert [found[0][name] for name in ("response", "done")] == ["", False]
    assert found[-1]["done"]


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"keep_alive": "1h"}, {"response": ""}),
    ],
)
def test_ollama_loads_without_a_prompt(
    client: httpx2.Client, gateway: ScriptedGateway, path: str, body: Event, fields: Event
) -> None:
    (line,) = lines(streamed(client, path, body))
    for answer in (line, post(client, path, {**body, "stream": False})):
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert {name: answer[name] for name in fields} == fields
    assert gateway.live == []


def test_ollama_errors(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    unknown = post(client, "/api/chat", {**OLLAMA, "model": "gpt"}, status=404)
    assert unknown == {"error": "model 'gpt' is not deployed"}
    error_body = post(client, "/api/chat", {**OLLAMA, "options": {"repeat_penalty": 0}}, status=400)
    assert error_body["error"].startswith("options.repeat_penalty is 0")
    gateway.failure_after = (len("<think>Hmm.</think>I "), EngineError("stage 1 is gone"))
    found = lines(streamed(client, "/api/chat", OLLAMA))
    assert found[0]["message"]["thinking"]
    assert found[-1] == {"error": "stage 1 is gone"}
    assert post(client, "/api/chat", {**OLLAMA, "stream": False}, status=503) == found[-1]


def test_ollama_models(client: httpx2.Client) -> None:
    (listed,) = client.get("/api/tags").json()["models"]
    (running,) = client.get("/api/ps").json()["models"]
    assert listed["name"] == listed["model"] == running["name"] == MODEL
    for name in (MODEL, f"{MODEL}:latest"):
        shown = client.post("/api/show", json={"model": name}).json()
        assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])
        assert shown["details"] == listed["details"]
        assert shown["model_info"]["general.basename"] == MODEL.rpartition("/")[2]
        assert shown["model_info"]["general.parameter_count"] == 134_515_008
    assert listed["details"] == running["details"]
    assert listed["details"]["family"] == "toy"
    assert listed["details"]["families"] == ["toy"]
    assert listed["details"]["parameter_size"] == "134.52M"
    assert listed["details"]["quantization_level"] == "Q4_1"
    assert client.get("/").text == "Ollama is running"
    assert client.head("/").status_code == 200
    assert client.post("/api/show", json={"model": "gpt"}).status_code == 404
    assert client.post("/api/show", json={}).json() == {"error": "model is required"}


# Responses

RESPONSES: Event = {
    "input": "hi",
    "tools": [
        {"type": "function", "name": "find", "parameters": SCHEMA, "strict": False},
        {"type": "function", "name": "clock", "strict": False},
    ],
}


def test_responses_tools(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    answer = post(client, "/v1/responses", RESPONSES)
    assert [item["type"] for item in answer["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert answer["output"][2]["arguments"] == '{"city": "Rome"}'
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 3
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    found = events(streamed(client, "/v1/responses", RESPONSES))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    last = found[-1]["response"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    assert client.get(f"/v1/responses/{last['id']}").json() == last


def test_responses_go_on_from_earlier_ones(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    first = post(client, "/v1/responses", {**RESPONSES, "instructions": "Be brief"})
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": item["name"]}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    gateway.script = b"It is noon."
    body = {**RESPONSES, "previous_response_id": first["id"], "input": results}
    second = post(client, "/v1/responses", body)
    expected = "user:hi\nassistant:I look.\ntool:find\ntool:clock\nassistant:"
    assert prompt(gateway) == expected  # without the instructions, as in OpenAI's API
    third = {**RESPONSES, "previous_response_id": second["id"], "input": "And?"}
    post(client, "/v1/responses", third)
    assert prompt(gateway) == expected + "It is noon.\nuser:And?\nassistant:"

    assert client.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
    assert client.get(f"/v1/responses/{first['id']}").status_code == 404
    assert post(client, "/v1/responses", third)["status"] == "completed"
    gone = post(client, "/v1/responses", {**third, "previous_response_id": first["id"]}, 404)
    assert gone["error"]["param"] == "previous_response_id"
    manual = [{"role": "user", "content": "hi"}, *first["output"], *results]
    post(client, "/v1/responses", {**RESPONSES, "input": manual})
    assert prompt(gateway) == expected


def test_responses_with_tools_of_other_types(
    client: httpx2.Client, gateway: ScriptedGateway
) -> None:
    gateway.script = (
        b'I look.\n<tool_call>\n{"name": "sql", "arguments": {"input": "select 1"}}\n</tool_call>'
    )
    tools = [{"type": "custom", "name": "sql"}, {"type": "web_search"}]
    first = post(client, "/v1/responses", {"input": "hi", "tools": tools})
    assert [item["type"] for item in first["output"]] == ["message", "custom_tool_call"]
    assert first["output"][1]["input"] == "select 1"
    assert "web_search" in first["warnings"][0]
    assert first["tools"] == tools[:1]
    gateway.script = b"One."
    result = {"type": "custom_tool_call_output", "output": "1"}
    result["call_id"] = first["output"][1]["call_id"]
    more = {"previous_response_id": first["id"], "input": [result], "tools": tools[:1]}
    second = post(client, "/v1/responses", more)
    expected = "user:hi\nassistant:I look.\ntool:1\nassistant:"
    assert prompt(gateway) == expected
    assert "warnings" not in second
    # The same by references, which only this node can follow.
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    manual = [{"role": "user", "content": "hi"}, *references, result]
    answer = post(client, "/v1/responses", {"input": manual, "tools": tools[:1]})
    assert prompt(gateway) == expected
    assert "warnings" not in answer
    client.delete(f"/v1/responses/{first['id']}")
    answer = post(client, "/v1/responses", {"input": manual, "tools": tools[:1]})
    assert "item_reference" in answer["warnings"][0]


def test_tools_of_other_servers_can_be_refused() -> None:
    config = ApiConfig(strict_tools=True)
    with (
        running_api(config, gateway=ScriptedGateway()) as running,
        httpx2.Client(base_url=running.url, timeout=20) as client,
    ):
        body = {"input": "hi", "tools": [{"type": "file_search"}, {"type": "web_search"}]}
        error = post(client, "/v1/responses", body, 400)["error"]
        assert error["param"] == "tools"
        assert "file_search, web_search" in error["message"]
        assert "--strict-tools" in error["message"]
        post(client, "/v1/responses", {"input": "hi", "tools": [{"type": "local_shell"}]})


def test_responses_that_are_not_stored(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    answer = post(client, "/v1/responses", {**RESPONSES, "store": False})
    assert answer["store"] is False
    assert client.get(f"/v1/responses/{answer['id']}").status_code == 404
    gateway.failure_after = (30, EngineError("stage 1 is gone"))
    found = events(streamed(client, "/v1/responses", RESPONSES))
    assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
    failed = found[-1]["response"]["id"]
    assert client.get(f"/v1/responses/{failed}").status_code == 404


def test_responses_with_a_schema(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    gateway.script = b'{"city":"Rome"}'
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    answer = post(client, "/v1/responses", {"input": "hi", "text": {"format": form}})
    assert answer["output"][0]["content"][0]["text"] == '{"city":"Rome"}'
    assert request(gateway).grammar is not None
    error_body = post(client, "/v1/responses", {**RESPONSES, "max_output_tokens": 0}, status=400)
    assert error_body["error"]["param"] == "max_output_tokens"
    cut = post(client, "/v1/responses", {**RESPONSES, "max_output_tokens": 4})
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_long_whole_answers(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    text = "0123456789" * 250
    gateway.script = text.encode()
    message = {"messages": [{"role": "user", "content": "hi"}]}
    found = post(client, "/v1/messages", {**message, "max_tokens": 3000})
    assert found["content"] == [{"type": "text", "text": text[:CONTEXT_TOKENS]}]
    assert post(client, "/api/chat", {**message, "stream": False})["message"]["content"] == text
    answer = post(client, "/v1/responses", {"input": "hi"})
    assert answer["output"][0]["content"][0]["text"] == text
    assert client.get(f"/v1/responses/{answer['id']}").json() == answer


# OpenAI's chat

CHAT: Event = {"messages": [{"role": "user", "content": "hi"}], "tools": OLLAMA["tools"]}


def test_chat_tools(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    answer = post(client, "/v1/chat/completions", {**CHAT, "n": 2})
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == ("I look.", "Hmm.")
        functions = [call["function"] for call in message["tool_calls"]]
        assert functions == [
            {"name": "find", "arguments": '{"city": "Rome"}'},
            {"name": "clock", "arguments": "{}"},
        ]
    ids = {call["id"] for each in answer["choices"] for call in each["message"]["tool_calls"]}
    assert len(ids) == 4
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    details = answer["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (4, 2)

    data = streamed(client, "/v1/chat/completions", CHAT)
    chunks = events(data.removesuffix(b"data: [DONE]\n\n"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Hmm."
    assert "".join(each.get("content") or "" for each in deltas) == "I look."
    calls: list[str] = ["", ""]
    starts: list[tuple[int, str]] = []
    for gained in (each for delta in deltas for each in delta.get("tool_calls", ())):
        calls[gained["index"]] += gained["function"].get("arguments", "")
        if "id" in gained:
            starts.append((gained["index"], gained["function"]["name"]))
    assert calls == ['{"city": "Rome"}', "{}"]
    assert starts == [(0, "find"), (1, "clock")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_chat_answers_go_back_as_they_came(client: httpx2.Client, gateway: ScriptedGateway) -> None:
    message = post(client, "/v1/chat/completions", CHAT)["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "x"}
        for call in message["tool_calls"]
    ]
    post(
        client, "/v1/chat/completions", {**CHAT, "messages": [*CHAT["messages"], message, *results]}
    )
    assert prompt(gateway) == "user:hi\nassistant:I look.\ntool:x\ntool:x\nassistant:"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "reasoning": "y"}, "messages[0].role"),
        ({"role": "user", "content": "x", "tool_call_id": "y"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
    ],
)
def test_chat_fields_in_messages_of_other_roles(
    client: httpx2.Client, message: Event, param: str
) -> None:
    error_body = post(client, "/v1/chat/completions", {"messages": [message]}, status=400)
    assert error_body["error"]["param"] == param
