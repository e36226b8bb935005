"""Bodies of the Responses API, and what they ask for.

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from potluck import grammars
from potluck.api.dialects.openai.responses.bodies import ResponseBody, parse_response
from potluck.api.dialects.openai.responses.requests import input_messages, response_request
from potluck.api.errors import ApiError
from potluck.api.requests import ChatRequest
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatEnding, ChatMessage, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FIND = {"type": "function", "name": "find", "parameters": SCHEMA}


def parsed(**fields: Any) -> ResponseBody:
    return parse_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def to_request(**fields: Any) -> ChatRequest:
    body = parsed(**fields)
    return response_request(body, input_messages(body))


def messages(*items: object) -> list[ChatMessage]:
    return input_messages(parsed(input=list(items)))


def test_a_plain_request() -> None:
    assert to_request() == ChatRequest(
        model_id="m",
        messages=[ChatMessage(role="user", content="hi")],
        ending=ChatEnding.NEW_TURN,
    )


def test_every_field() -> None:
    read = to_request(
        instructions="Be brief",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        tools=[FIND, {"type": "function", "name": "clock", "description": "Time", "strict": False}],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}},
        include=["reasoning.encrypted_content"],
        metadata={"a": "b"},
        user="somebody",
        store=False,
        stream=True,
        stream_options={"include_obfuscation": False},
    )
    assert read == ChatRequest(
        model_id="m",
        messages=[
            ChatMessage(role="system", content="Be brief"),
            ChatMessage(role="user", content="hi"),
        ],
        sampling={"temperature": 0.5, "top_p": 0.9},
        max_new_tokens=9,
        top_logprobs=2,
        grammar=grammars.json_schema(SCHEMA),
        user="somebody",
        tool_use=ToolUse(
            tools=(
                Tool(name="find", parameters=SCHEMA, is_strict=True),
                Tool(name="clock", description="Time"),
            ),
            mode=ToolMode.REQUIRED,
            is_parallel=False,
        ),
        reasoning_effort="high",
        thinks=True,
    )


def test_log_probabilities_may_be_included() -> None:
    assert to_request().top_logprobs is None
    assert to_request(include=["message.output_text.logprobs"]).top_logprobs == 0


def test_no_effort_is_no_thought() -> None:
    assert to_request(reasoning={"effort": "none"}).thinks is False
    assert to_request(reasoning={}).thinks is None


def test_a_named_tool() -> None:
    use = to_request(tools=[FIND], tool_choice={"type": "function", "name": "find"}).tool_use
    assert (use.mode, use.name) == (ToolMode.REQUIRED, "find")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (None, None),
        ({}, None),
        ({"format": {"type": "text"}, "verbosity": "low"}, None),
        ({"format": {"type": "json_object"}}, grammars.json_object()),
    ],
)
def test_forms_of_the_text(text: object, grammar: str | None) -> None:
    assert to_request(text=text).grammar == grammar


def test_messages_of_all_roles() -> None:
    assert messages(
        {"role": "developer", "content": "Be brief"},
        {"role": "system", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "d", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "e"}]},
    ) == [
        ChatMessage(role="developer", content="Be brief"),
        ChatMessage(role="system", content="a"),
        ChatMessage(role="user", content="bc"),
        ChatMessage(role="assistant", content="de"),
    ]  # fmt: skip


def call(call_id: str, name: str = "find") -> dict[str, str]:
    return {
        "type": "function_call",
        "id": "fc",
        "call_id": call_id,
        "name": name,
        "arguments": "{}",
    }


def output(call_id: str, text: object) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_items_of_one_turn_are_one_message() -> None:
    thoughts = {"type": "reasoning", "id": "rs", "summary": [], "content": [
        {"type": "reasoning_text", "text": "Hm"}]}  # fmt: skip
    message = {"type": "message", "role": "assistant", "content": "I look."}
    assert messages(
        {"role": "user", "content": "hi"},
        thoughts,
        message,
        call("c1"),
        call("c2", "clock"),
        output("c1", "x"),
        output("c2", [{"type": "input_text", "text": "y"}]),
        thoughts,
        call("c3"),
        output("c3", ""),
    ) == [
        ChatMessage(role="user", content="hi"),
        ChatMessage(
            role="assistant",
            content="I look.",
            reasoning="Hm",
            tool_calls=(
                ToolCall(call_id="c1", name="find", arguments="{}"),
                ToolCall(call_id="c2", name="clock", arguments="{}"),
            ),
        ),
        ChatMessage(role="tool", content="x", tool_call_id="c1"),
        ChatMessage(role="tool", content="y", tool_call_id="c2"),
        ChatMessage(
            role="assistant",
            content="",
            reasoning="Hm",
            tool_calls=(ToolCall(call_id="c3", name="find", arguments="{}"),),
        ),
        ChatMessage(role="tool", content="", tool_call_id="c3"),
    ]


def test_thoughts_that_cannot_be_read_are_no_message() -> None:
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert messages(
        {"role": "user", "content": "hi"}, encrypted, {"role": "user", "content": "x"}
    ) == [
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="user", content="x"),
    ]


def test_a_summary_stands_for_thoughts() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    assert messages(summary, call("c"))[0].reasoning == "Hm"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [call("c"), output("c", [{"type": "input_file"}])]}, "input[1].output[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [FIND, FIND]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"stream_options": 5}, "stream_options"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"user": "x" * 513}, "user"),
        ({"n": 2}, "n"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"stop": "END"}, "stop"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        to_request(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_labels_of_a_client_may_be_long() -> None:
    labels = {"x-codex-turn-metadata": json.dumps({"workspace": "x" * 600}), "turn_id": "1"}
    document = {"model": "m", "input": "hello", "client_metadata": labels}
    assert parse_response(json.dumps(document).encode()).input == "hello"
    with pytest.raises(ApiError, match="client_metadata must be an object"):
        parse_response(json.dumps({**document, "client_metadata": "x"}).encode())
