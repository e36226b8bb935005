"""Deltas as renderers get them, and the events of streams as clients read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from potluck.api.delta import Delta, ScoredToken
from potluck.api.rendering import Renderer, Usage
from potluck.types.output import (
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
)
from potluck.types.sequence import FinishReason

USAGE = Usage(num_prompt_tokens=20, num_new_tokens=7, num_cached_tokens=16, num_reasoning_tokens=2)

Event = dict[str, Any]


def text_delta(text: str) -> Delta:
    return Delta(parts=(TextPart(text=text),))


def reasoning_delta(text: str) -> Delta:
    return Delta(parts=(ReasoningPart(text=text),))


def tool_call_delta(index: int, name: str, *arguments: str) -> Delta:
    parts: list[OutputPart] = [ToolCallStart(index=index, name=name)]
    parts += [ToolCallArguments(index=index, text=text) for text in arguments]
    return Delta(parts=tuple(parts))


def arguments_delta(index: int, arguments: str) -> Delta:
    return Delta(parts=(ToolCallArguments(index=index, text=arguments),))


def scored_delta(token: int, text: str = "", logprob: float = -0.5) -> Delta:
    parts = (TextPart(text=text),) if text else ()
    return Delta(parts=parts, tokens=(ScoredToken(token=token, logprob=logprob, top=(), offset=0),))


def finish_delta(reason: FinishReason = FinishReason.STOP, *, by: str | None = None) -> Delta:
    return Delta(finish_reason=reason, stopped_by=by)


def stream(renderer: Renderer, deltas: Iterable[Delta], usage: Usage = USAGE) -> bytes:
    """A whole stream of one choice."""
    begun = renderer.begin(usage)
    pieces = [renderer.delta(0, delta) for delta in deltas]
    return b"".join([begun, *pieces, renderer.end(usage)])


def whole(renderer: Renderer, deltas: Sequence[Delta], usage: Usage = USAGE) -> Event:
    renderer.begin(usage)
    answer: Event = json.loads(renderer.whole({0: deltas}, usage))
    return answer


def events(data: bytes) -> list[Event]:
    """The events of a stream of server-sent events; names and types must agree."""
    assert data.endswith(b"\n\n")
    found: list[Event] = []
    for block in data.decode().split("\n\n")[:-1]:
        lines = block.split("\n")
        document = json.loads(lines[-1].removeprefix("data: "))
        assert lines[:-1] == ([f"event: {document['type']}"] if "type" in document else [])
        found.append(document)
    return found


def lines(data: bytes) -> list[Event]:
    """The documents of a stream of one a line."""
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]
