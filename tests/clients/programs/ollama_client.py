"""Ollama's client: chat, generate, and what it shows of models."""

from __future__ import annotations

import json
from typing import Any

import ollama
from cases import (
    FUNCTION,
    MAX_SEED,
    MAX_TOKENS,
    MODEL,
    PROMPT,
    QUESTION,
    RESULT,
    SCHEMA,
    TOOL,
    report,
)


def streamed(url: str) -> object:
    arguments: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "options": {"temperature": 0, "num_predict": MAX_TOKENS},
    }
    whole = ollama.Client(url).chat(**arguments)
    chunks = list(ollama.Client(url).chat(**arguments, stream=True))
    assert (chunks[-1].done, chunks[-1].eval_count) == (True, MAX_TOKENS)
    return {
        "whole": whole.message.content,
        "streamed": "".join(chunk.message.content or "" for chunk in chunks),
    }


def tool(url: str) -> object:
    client = ollama.Client(url)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for seed in range(MAX_SEED):  # there is no tool_choice: a call, or an answer of this format
        chunks = client.chat(
            model=MODEL,
            messages=messages,
            tools=[FUNCTION],
            format=SCHEMA,
            options={"temperature": 1, "seed": seed, "num_predict": 120},
            stream=True,
        )
        calls = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
        if calls:
            break
    call = calls[0]
    messages += [
        ollama.Message(role="assistant", tool_calls=[call]),
        {"role": "tool", "tool_name": TOOL, "content": RESULT},
    ]
    answer = client.chat(
        model=MODEL, messages=messages, tools=[FUNCTION], options={"num_predict": MAX_TOKENS}
    )
    return {
        "name": call.function.name,
        "arguments": dict(call.function.arguments),
        "answer": answer.message.content,
    }


def schema(url: str) -> object:
    answer = ollama.Client(url).chat(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], format=SCHEMA
    )
    return json.loads(answer.message.content or "")


def generate_streamed(url: str) -> object:
    arguments: Any = {
        "model": f"{MODEL}:latest",
        "prompt": PROMPT,
        "options": {"temperature": 0, "num_predict": MAX_TOKENS},
        "keep_alive": "5m",
    }
    whole = ollama.Client(url).generate(**arguments)
    chunks = ollama.Client(url).generate(**arguments, stream=True)
    return {"whole": whole.response, "streamed": "".join(chunk.response for chunk in chunks)}


def models(url: str) -> object:
    client = ollama.Client(url)
    shown = client.show(MODEL)
    return {
        "listed": [each.model for each in client.list().models],
        "running": [each.model for each in client.ps().models],
        "capabilities": shown.capabilities,
    }


report(
    {
        "streamed": streamed,
        "tool": tool,
        "schema": schema,
        "generate_streamed": generate_streamed,
        "models": models,
    }
)
