"""LiteLLM, as a client of each of the three dialects."""

from __future__ import annotations

import json
from typing import Any

import litellm
from cases import FUNCTION, MAX_TOKENS, MODEL, PROMPT, QUESTION, RESULT, SCHEMA, report


def arguments_of(url: str, provider: str = "openai") -> dict[str, Any]:
    base = f"{url}/v1" if provider == "openai" else url
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": base,
        "api_key": "none",
        "num_retries": 0,
        "drop_params": False,
    }


def streamed(url: str, provider: str = "openai") -> object:
    arguments: Any = {
        **arguments_of(url, provider),
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    whole = litellm.completion(**arguments)
    chunks = litellm.completion(**arguments, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return {"whole": whole.choices[0].message.content, "streamed": text}


def tool(url: str) -> object:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    arguments = {**arguments_of(url), "tools": [FUNCTION]}
    chunks = list(
        litellm.completion(
            **arguments,
            messages=messages,
            tool_choice="required",
            parallel_tool_calls=False,
            stream=True,
        )
    )
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    (call,) = message.tool_calls
    messages += [
        message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": RESULT},
    ]
    answer = litellm.completion(
        **arguments, messages=messages, tool_choice="none", max_tokens=MAX_TOKENS
    )
    return {
        "name": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "answer": answer.choices[0].message.content,
    }


def schema(url: str) -> object:
    answer = litellm.completion(
        **arguments_of(url),
        messages=[{"role": "user", "content": QUESTION}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True},
        },
    )
    return json.loads(answer.choices[0].message.content)


report(
    {
        "streamed": streamed,
        "tool": tool,
        "schema": schema,
        "anthropic_streamed": lambda url: streamed(url, "anthropic"),
        "ollama_streamed": lambda url: streamed(url, "ollama_chat"),
    }
)
