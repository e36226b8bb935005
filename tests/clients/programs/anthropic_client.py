"""Anthropic's client: messages."""

from __future__ import annotations

import functools
import json
from typing import Any, Literal

import anthropic
from cases import DESCRIPTION, MAX_TOKENS, MODEL, PROMPT, QUESTION, RESULT, SCHEMA, TOOL, report
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Oslo", "Paris", "Rome"]
    is_sunny: bool


@functools.cache  # each new one reads the system's certificates
def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def streamed(url: str) -> object:
    arguments: Any = {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": PROMPT}],
        "extra_body": {"temperature": 0},  # which this client no longer has
    }
    whole = client(url).messages.create(**arguments)
    with client(url).messages.stream(**arguments) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert (final.usage.output_tokens, final.stop_reason) == (MAX_TOKENS, "max_tokens")
    return {"whole": text_of(whole), "streamed": text}


def tool(url: str) -> object:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"name": TOOL, "description": DESCRIPTION, "input_schema": SCHEMA}]
    with client(url).messages.stream(
        model=MODEL,
        max_tokens=500,
        messages=messages,
        tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use", final
    (call,) = (block for block in final.content if block.type == "tool_use")
    messages += [
        {"role": "assistant", "content": final.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT}],
        },
    ]
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=messages,
        tools=tools,
        tool_choice={"type": "none"},
    )
    return {"name": call.name, "arguments": call.input, "answer": text_of(answer)}


def schema(url: str) -> object:
    answer = client(url).messages.create(
        model=MODEL,
        max_tokens=500,
        messages=[{"role": "user", "content": QUESTION}],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    return json.loads(text_of(answer))


def parsed(url: str) -> object:
    answer = client(url).messages.parse(
        model=MODEL,
        max_tokens=500,
        messages=[{"role": "user", "content": QUESTION}],
        output_format=Weather,
    )
    assert answer.parsed_output is not None
    return answer.parsed_output.model_dump()


def count(url: str) -> object:
    messages: Any = [{"role": "user", "content": PROMPT}]
    counted = client(url).messages.count_tokens(model=MODEL, messages=messages)
    message = client(url).messages.create(model=MODEL, max_tokens=1, messages=messages)
    usage = message.usage
    used = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return {"counted": counted.input_tokens, "used": used}


report({"streamed": streamed, "tool": tool, "schema": schema, "parsed": parsed, "count": count})
