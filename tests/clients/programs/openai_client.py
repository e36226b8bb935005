"""OpenAI's client: chat completions, responses and completions."""

from __future__ import annotations

import functools
import json
from typing import Any, Literal

import openai
from cases import (
    DESCRIPTION,
    FUNCTION,
    MAX_TOKENS,
    MODEL,
    PROMPT,
    QUESTION,
    RESULT,
    SCHEMA,
    TEXT,
    TOOL,
    report,
)
from pydantic import BaseModel


class Weather(BaseModel):
    city: Literal["Oslo", "Paris", "Rome"]
    is_sunny: bool


@functools.cache  # each new one reads the system's certificates
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def streamed(url: str) -> object:
    arguments: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_completion_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    whole = client(url).chat.completions.create(**arguments)
    with client(url).chat.completions.stream(
        **arguments, stream_options={"include_usage": True}
    ) as stream:
        text = "".join(each.delta for each in stream if each.type == "content.delta")
        usage = stream.current_completion_snapshot.usage
    assert usage is not None
    assert usage.completion_tokens == MAX_TOKENS
    return {"whole": whole.choices[0].message.content, "streamed": text}


def tool(url: str) -> object:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    arguments: Any = {"model": MODEL, "tools": [FUNCTION], "parallel_tool_calls": False}
    with client(url).chat.completions.stream(
        **arguments, messages=messages, tool_choice="required"
    ) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls", final
    calls = list(final.message.tool_calls or ())
    assert len(calls) == 1, calls
    call = calls[0]
    messages += [
        {
            "role": "assistant",
            "tool_calls": [call.model_dump()],
        },
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    answer = client(url).chat.completions.create(
        **arguments, messages=messages, tool_choice="none", max_tokens=MAX_TOKENS
    )
    return {
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "answer": answer.choices[0].message.content,
    }


def schema(url: str) -> object:
    answer = client(url).chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_format=Weather
    )
    parsed = answer.choices[0].message.parsed
    assert parsed is not None
    return parsed.model_dump()


def responses_streamed(url: str) -> object:
    arguments: Any = {
        "model": MODEL,
        "input": PROMPT,
        "max_output_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    whole = client(url).responses.create(**arguments)
    with client(url).responses.stream(**arguments) as stream:
        text = "".join(each.delta for each in stream if each.type == "response.output_text.delta")
    return {"whole": whole.output_text, "streamed": text}


def responses_tool(url: str) -> object:
    tools: Any = [
        {"type": "function", "name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA}
    ]
    with client(url).responses.stream(
        model=MODEL,
        input=QUESTION,
        tools=tools,
        tool_choice={"type": "function", "name": TOOL},
        parallel_tool_calls=False,
    ) as stream:
        final = stream.get_final_response()
    (call,) = (item for item in final.output if item.type == "function_call")
    answer = client(url).responses.create(
        model=MODEL,
        previous_response_id=final.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}],
        max_output_tokens=MAX_TOKENS,
    )
    return {
        "name": call.name,
        "arguments": json.loads(call.arguments),
        "answer": answer.output_text,
    }


def responses_schema(url: str) -> object:
    answer = client(url).responses.parse(model=MODEL, input=QUESTION, text_format=Weather)
    assert answer.output_parsed is not None
    return answer.output_parsed.model_dump()


def completions_streamed(url: str) -> object:
    arguments: Any = {
        "model": MODEL,
        "prompt": TEXT,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    whole = client(url).completions.create(**arguments)
    stream = client(url).completions.create(**arguments, stream=True)
    return {
        "whole": whole.choices[0].text,
        "streamed": "".join(chunk.choices[0].text for chunk in stream),
    }


report(
    {
        "streamed": streamed,
        "tool": tool,
        "schema": schema,
        "responses_streamed": responses_streamed,
        "responses_tool": responses_tool,
        "responses_schema": responses_schema,
        "completions_streamed": completions_streamed,
    }
)
