"""Responses of ``/v1/chat/completions``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.api.delta import Delta, ScoredToken
from potluck.api.dialects.openai.rendering import MIN_LOGPROB
from potluck.api.rendering import Json, scored_json
from potluck.types.output import ToolCallArguments, ToolCallStart
from potluck.types.sequence import FinishReason
from potluck.types.text import Tokenizer


class ChatChoices:
    """Renders the choices of a chat; remembers which of them have called tools."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = logprobs
        self._calling: set[int] = set()

    def whole(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        calls: list[_Call] = []
        for part in delta.parts:
            if isinstance(part, ToolCallStart):
                calls.append(_Call(call_id=_new_call_id(), name=part.name))
            elif isinstance(part, ToolCallArguments):
                calls[part.index].arguments.append(part.text)
        message: Json = {
            "role": "assistant",
            "content": None if calls and not delta.text else delta.text,
            "refusal": None,
        }
        if reasoning := delta.reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            self._calling.add(index)
            message["tool_calls"] = [call.to_json() for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(delta.tokens),
            "finish_reason": self._reason(index, delta.finish_reason),
        }

    def first(self, index: int) -> Json | None:
        """See ``Choices``."""
        return _chunk_choice(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def part(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        gained: Json = {}
        if reasoning := delta.reasoning:
            gained["reasoning_content"] = reasoning
        if (text := delta.text) or not delta.parts:
            gained["content"] = text
        # One entry for each call: clients take two entries for two calls.
        calls: dict[int, _Call | _CallPart] = {}
        for part in delta.parts:
            if isinstance(part, ToolCallStart):
                self._calling.add(index)
                calls[part.index] = _Call(call_id=_new_call_id(), name=part.name)
            elif isinstance(part, ToolCallArguments):
                calls.setdefault(part.index, _CallPart()).arguments.append(part.text)
        if calls:
            gained["tool_calls"] = [
                {"index": number, **call.to_json()} for number, call in calls.items()
            ]
        return _chunk_choice(index, gained, self._logprobs(delta.tokens))

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Choices``."""
        return {**_chunk_choice(index, {}, None), "finish_reason": self._reason(index, reason)}

    def _reason(self, index: int, reason: FinishReason | None) -> str | None:
        if reason is FinishReason.STOP and index in self._calling:
            return "tool_calls"
        return None if reason is None else reason.value

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        if not self._has_logprobs:
            return None
        content = [scored_json(each, self._tokenizer, least=MIN_LOGPROB) for each in tokens]
        return {"content": content, "refusal": None}


def _chunk_choice(index: int, delta: Json, logprobs: Json | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call that is still being received. Mutable while the answer is assembled."""

    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def to_json(self) -> Json:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(slots=True, kw_only=True)
class _CallPart:
    """The part of a call in one chunk. Mutable while the chunk is assembled."""

    arguments: list[str] = field(default_factory=list)

    def to_json(self) -> Json:
        return {"function": {"arguments": "".join(self.arguments)}}


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
