"""Convert the output of a response to messages, for chats that continue it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.types.text import ChatMessage, ToolCall


def output_message(output: Sequence[Any]) -> ChatMessage:
    """Return the assistant message that a response's items make up."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for item in output:
        match item:
            case {"type": "message", "content": [{"text": str(text)}]}:
                texts.append(text)
            case {"type": "reasoning", "content": [{"text": str(text)}]}:
                thoughts.append(text)
            case {"type": "function_call", "call_id": str(call_id), "name": str(name)}:
                calls.append(ToolCall(call_id=call_id, name=name, arguments=item["arguments"]))
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        tool_calls=tuple(calls),
        reasoning="".join(thoughts) or None,
    )
