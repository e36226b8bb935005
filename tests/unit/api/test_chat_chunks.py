"""Chunks of a streamed chat completion."""

from __future__ import annotations

from support.http.toy_gateway import ToyTokenizer

from potluck.api.delta import Delta
from potluck.api.dialects.openai.chat import ChatChoices
from potluck.types.output import ToolCallArguments, ToolCallStart


def test_a_chunk_has_one_entry_for_each_call() -> None:
    """OpenAI's client takes a second entry for a second call, whatever its index."""
    choices = ChatChoices(ToyTokenizer(), logprobs=False)
    parts = (
        ToolCallStart(index=0, name="f"),
        ToolCallArguments(index=0, text='{"a"'),
        ToolCallArguments(index=0, text=":1}"),
        ToolCallStart(index=1, name="g"),
    )
    chunk = choices.part(0, Delta(parts=parts, tokens=()))
    calls = chunk["delta"]["tool_calls"]  # type: ignore[index]
    assert [(call["index"], call["function"]["arguments"]) for call in calls] == [
        (0, '{"a":1}'),
        (1, ""),
    ]
    chunk = choices.part(0, Delta(parts=(ToolCallArguments(index=1, text="{"),), tokens=()))
    assert chunk["delta"]["tool_calls"] == [  # type: ignore[index]
        {"index": 1, "function": {"arguments": "{"}}
    ]
