"""Bodies of Anthropic's Messages API, and what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from potluck import grammars
from potluck.api.dialects.anthropic.bodies import parse_messages, parse_prompt
from potluck.api.dialects.anthropic.requests import messages_request, prompt_request
from potluck.api.errors import ApiError
from potluck.api.requests import ChatRequest
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatEnding, ChatMessage, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FIND = {"name": "find", "description": "Finds.", "input_schema": SCHEMA}
USER = {"role": "user", "content": "hi"}


def to_request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return messages_request(parse_messages(json.dumps(body).encode()))


def refused(**fields: Any) -> str | None:
    with pytest.raises(ApiError) as error:
        to_request(**fields)
    assert error.value.status == 400
    return error.value.param


def test_a_plain_request() -> None:
    assert to_request() == ChatRequest(
        max_new_tokens=5,
        messages=[ChatMessage(role="user", content="hi")],
        ending=ChatEnding.NEW_TURN,
    )


def test_every_field() -> None:
    read = to_request(
        system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}],
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["END", "STOP"],
        metadata={"user_id": "somebody"},
        stream=True,
        tools=[{**FIND, "strict": True}, {"name": "clock", "input_schema": {}}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 5000},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert read.messages[0] == ChatMessage(role="system", content="Be\n\nbrief")
    assert read.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    assert read.stop == ["END", "STOP"]
    assert read.user == "somebody"
    assert read.tool_use == ToolUse(
        tools=(
            Tool(name="find", description="Finds.", parameters=SCHEMA, is_strict=True),
            Tool(name="clock"),
        ),
        mode=ToolMode.AUTO,
        is_parallel=False,
    )
    assert (read.thinks, read.reasoning_effort) == (True, "medium")
    assert read.grammar == grammars.json_schema(SCHEMA)


def test_a_turn_with_tools_is_a_chat_in_order() -> None:
    read = to_request(
        system="Be brief",
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "find", "input": {"a": "ä"}},
                    {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
                    },
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
        tools=[FIND],
    )
    assert read.messages == [
        ChatMessage(role="system", content="Be brief"),
        ChatMessage(role="user", content="What is it?"),
        ChatMessage(
            role="assistant",
            content="I look.",
            reasoning="Hm.",
            tool_calls=(
                ToolCall(call_id="t1", name="find", arguments='{"a":"ä"}'),
                ToolCall(call_id="t2", name="clock", arguments="{}"),
            ),
        ),
        ChatMessage(role="tool", content="a b", tool_call_id="t1"),
        ChatMessage(role="tool", content="Error: no", tool_call_id="t2"),
        ChatMessage(role="user", content="And?"),
    ]
    assert read.ending is ChatEnding.NEW_TURN


def test_text_before_a_result_comes_before_it() -> None:
    read = to_request(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Here:"},
                    {"type": "tool_result", "tool_use_id": "t1"},
                ],
            }
        ]
    )
    assert [(each.role, each.content) for each in read.messages] == [
        ("user", "Here:"),
        ("tool", ""),
    ]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    assert to_request(messages=[USER, {"role": "assistant", "content": "I"}]).ending is (
        ChatEnding.CONTINUED
    )


@pytest.mark.parametrize(
    ("choice", "mode", "name"),
    [
        (None, ToolMode.AUTO, None),
        ({"type": "auto"}, ToolMode.AUTO, None),
        ({"type": "any"}, ToolMode.REQUIRED, None),
        ({"type": "tool", "name": "find"}, ToolMode.REQUIRED, "find"),
        ({"type": "none"}, ToolMode.NONE, None),
    ],
)
def test_the_choice_of_a_tool(choice: object, mode: ToolMode, name: str | None) -> None:
    use = to_request(tools=[FIND], tool_choice=choice).tool_use
    assert (use.mode, use.name, use.is_parallel) == (mode, name, True)


@pytest.mark.parametrize(
    ("thinking", "thinks", "effort"),
    [
        (None, None, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "enabled", "budget_tokens": 4096}, True, "low"),
        ({"type": "enabled", "budget_tokens": 16384}, True, "medium"),
        ({"type": "enabled", "budget_tokens": 16385}, True, "high"),
    ],
)
def test_thinking(thinking: object, thinks: bool | None, effort: str | None) -> None:
    read = to_request(thinking=thinking)
    assert (read.thinks, read.reasoning_effort) == (thinks, effort)


def test_an_effort_comes_before_a_budget() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert to_request(thinking=thinking, output_config={"effort": "max"}).reasoning_effort == "max"


def test_what_says_nothing_about_the_answer_is_taken() -> None:
    ephemeral = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    plain = to_request(system="s", tools=[FIND])
    assert plain == to_request(
        **ephemeral,
        service_tier="auto",
        speed="standard",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        system=[{"type": "text", "text": "s", **ephemeral}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **ephemeral}]}],
        tools=[{**FIND, "type": "custom", "eager_input_streaming": True, **ephemeral}],
    )


def test_to_count_tokens_takes_the_fields_of_a_prompt_alone() -> None:
    body = {"model": "m", "messages": [USER], "system": "s", "tools": [FIND]}
    assert prompt_request(parse_prompt(json.dumps(body).encode())).messages[0].content == "s"
    with pytest.raises(ApiError) as error:
        parse_prompt(json.dumps({**body, "max_tokens": 5}).encode())
    assert error.value.param == "max_tokens"


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
                ]
            },
            "messages[1].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [FIND, FIND]}, "tools[1].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [FIND], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [FIND], "tool_choice": {"type": "any", "name": "find"}}, "tool_choice.name"),
        ({"tools": [FIND], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management",
        ),
        ({"n": 2}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": {"user_id": "a", "more": 1}}, "metadata.more"),
        (
            {"messages": [{"role": "user", "content": ["x", {"type": "video"}]}]},
            "messages[0].content[1].type",
        ),
        ({"cache_control": [1]}, "cache_control"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields) == param
