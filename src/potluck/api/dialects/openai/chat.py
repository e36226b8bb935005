"""Responses of ``/v1/chat/completions``."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Sequence

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
        calls = self._calls(index, delta)
        message: Json = {
            "role": "assistant",
            "content": None if calls and not delta.text else delta.text,
            "refusal": None,
        }
        if reasoning := delta.reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = list(calls.values())
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
        if calls := self._calls(index, delta):
            gained["tool_calls"] = [{"index": number, **call} for number, call in calls.items()]
        return _chunk_choice(index, gained, self._logprobs(delta.tokens))

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Choices``."""
        return {**_chunk_choice(index, {}, None), "finish_reason": self._reason(index, reason)}

    def _calls(self, index: int, delta: Delta) -> dict[int, Json]:
        """Return a single entry for each call in ``delta``, by the number of the call.

        Clients would take two entries for two calls.
        """
        names: dict[int, str] = {}
        arguments: defaultdict[int, list[str]] = defaultdict(list)
        for part in delta.parts:
            if isinstance(part, ToolCallStart):
                self._calling.add(index)
                names[part.index] = part.name
                arguments[part.index] = []
            elif isinstance(part, ToolCallArguments):
                arguments[part.index].append(part.text)
        return {
            number: _call_json(names.get(number), "".join(pieces))
            for number, pieces in arguments.items()
        }

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


def _call_json(name: str | None, arguments: str) -> Json:
    """Return a call; without a ``name``, the next part of one that has begun."""
    if name is None:
        return {"function": {"arguments": arguments}}
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
