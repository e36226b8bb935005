"""Chats with tools and thoughts, as Potluck's types and as the dictionaries of clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.types.text import ChatMessage, Tokenizer, Tool, ToolCall

Message = dict[str, Any]


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    **options: Any,
) -> list[int]:
    """The tokens of ``prompt_chat``'s prompt."""
    return list(prompt_chat(tokenizer, template, messages, **options).tokens)


WEATHER: Message = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city, today or later.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name, e.g. Žilina"},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
                "place": {
                    "type": "object",
                    "description": "Where exactly",
                    "properties": {
                        "latitude": {"type": "number", "description": "In degrees"},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["latitude"],
                },
            },
            "required": ["city"],
        },
    },
}
CLOCK: Message = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "Tell the time.",
        "parameters": {"type": "object", "properties": {}},
    },
}


def call(call_id: str, name: str, **arguments: Any) -> Message:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str = "", **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def result(call_id: str, name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


SYSTEM: Message = {"role": "system", "content": 'You are brief, and <exact> & "kind".'}
ONE_CALL = [
    user("Weather in Žilina?"),
    assistant(
        tool_calls=[
            call("abcdef012", "get_weather", city="Žilina", days=2, place={"latitude": 49.2})
        ]
    ),
    result("abcdef012", "get_weather", '{"sky": "clear", "°C": [1, 2.5, null]}'),
]
TWO_CALLS = [
    user("Weather and time?"),
    assistant(
        "I shall look.",
        tool_calls=[
            call("abcdef012", "get_weather", city='A "quoted"\nname', units="metric"),
            call("abcdef013", "clock"),
        ],
    ),
    result("abcdef012", "get_weather", "clear"),
    result("abcdef013", "clock", "noon"),
    assistant("Clear, and noon."),
    user("Thanks! 再见"),
]
THOUGHTS = [
    user("2+2?"),
    assistant("4", reasoning_content="Two and two\nmake four."),
    user("And 3+3?"),
]
THOUGHTS_AND_CALLS = [
    user("Weather?"),
    assistant(
        reasoning_content="I need to look.",
        tool_calls=[call("abcdef012", "get_weather", city="Rome")],
    ),
    result("abcdef012", "get_weather", "rain"),
]
TURNS = [user("Hi"), assistant("Hello."), user(" Once upon\n\n"), assistant("a time"), user("!")]


def messages_of(dicts: Iterable[Message]) -> list[ChatMessage]:
    """Clients' messages as Potluck's."""
    return [
        ChatMessage(
            role=each["role"],
            content=each["content"],
            name=each.get("name"),
            tool_calls=tuple(
                ToolCall(
                    call_id=made["id"],
                    name=made["function"]["name"],
                    arguments=json.dumps(made["function"]["arguments"], ensure_ascii=False),
                )
                for made in each.get("tool_calls", ())
            ),
            tool_call_id=each.get("tool_call_id"),
            reasoning=each.get("reasoning_content"),
        )
        for each in dicts
    ]


def tools_of(dicts: Iterable[Message]) -> list[Tool]:
    """Clients' tools as Potluck's."""
    return [
        Tool(
            name=each["function"]["name"],
            description=each["function"]["description"],
            parameters=each["function"]["parameters"],
        )
        for each in dicts
    ]


def with_texts(value: Any, change: Mapping[str, str]) -> Any:
    """``value`` with each of its texts, but for keys and roles, changed as ``change`` says."""
    if isinstance(value, str):
        return change.get(value, value)
    if isinstance(value, dict):
        return {
            key: each if key in ("role", "type") else with_texts(each, change)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [with_texts(each, change) for each in value]
    return value
