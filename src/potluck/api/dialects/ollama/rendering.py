"""Renders answers for Ollama's API: one object, or one JSON object per line."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from potluck.api.delta import Delta, ScoredToken
from potluck.api.errors import ApiError
from potluck.api.rendering import Json, Usage, arguments_object, scored_json
from potluck.types.output import ToolCallArguments, ToolCallStart
from potluck.types.sequence import FinishReason
from potluck.types.text import Tokenizer

LINES = "application/x-ndjson"
"""One JSON document per line: https://github.com/ndjson/ndjson-spec"""

OfDelta = Callable[[str, str, Sequence[Json]], Json]
"""Builds the fields of an object from a text, reasoning and tool calls."""


def chat_fields(text: str, thoughts: str, calls: Sequence[Json]) -> Json:
    """Return the answer's fields for a chat."""
    message: Json = {"role": "assistant", "content": text}
    if thoughts:
        message["thinking"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def generate_fields(text: str, thoughts: str, calls: Sequence[Json]) -> Json:
    """Return the answer's fields for a generate request, which has no tool calls."""
    return {"response": text, "thinking": thoughts} if thoughts else {"response": text}


class OllamaRenderer:
    """Renders one answer. A tool call is emitted once it is complete.

    ``clock`` returns seconds; it is ``time.perf_counter()`` by default.
    """

    stream_type = LINES

    def __init__(
        self,
        model_id: str,
        fields: OfDelta,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request_id = secrets.token_hex(12)
        self._model_id = model_id
        self._fields = fields
        self._tokenizer = tokenizer
        self._clock = clock
        self._began = clock()
        self._first: float | None = None
        self._calls: list[_Call] = []
        self._num_given_calls = 0
        self._reason: FinishReason | None = None

    @property
    def waiting(self) -> bytes:
        """See ``Renderer``. Returns nothing: clients decode every line, and an empty one would be
        an error.
        """
        return _line({**self._head(), **self._fields("", "", ()), "done": False})

    def begin(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        self._first = self._clock()
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        """See ``Renderer``."""
        text, thoughts, calls = self._take(delta)
        if not text and not thoughts and not calls and not delta.tokens:
            return b""
        fields = self._fields(text, thoughts, calls)
        return _line({**self._head(), **fields, "done": False, **self._logprobs(delta.tokens)})

    def end(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        return _line({**self._head(), **self._fields("", "", ()), **self._tail(usage)})

    def failed(self, error: ApiError) -> bytes:
        """See ``Renderer``."""
        return error_json(error) + b"\n"

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """See ``Renderer``."""
        taken = [self._take(delta) for delta in choices[0]]
        fields = self._fields(
            "".join(text for text, _, _ in taken),
            "".join(thoughts for _, thoughts, _ in taken),
            [call for _, _, calls in taken for call in calls],
        )
        tokens = [token for delta in choices[0] for token in delta.tokens]
        return msgspec.json.encode(
            {**self._head(), **fields, **self._tail(usage), **self._logprobs(tokens)}
        )

    def _take(self, delta: Delta) -> tuple[str, str, list[Json]]:
        """Return the text, the reasoning and the complete tool calls of a delta."""
        for part in delta.parts:
            if isinstance(part, ToolCallStart):
                self._calls.append(_Call(part.name))
            elif isinstance(part, ToolCallArguments):
                self._calls[part.index].arguments.append(part.text)
        self._reason = delta.finish_reason or self._reason
        num_complete = len(self._calls) - (self._reason is None)
        complete = self._calls[self._num_given_calls : max(0, num_complete)]
        self._num_given_calls += len(complete)
        calls = [
            each.to_json(number)
            for number, each in enumerate(complete, self._num_given_calls - len(complete))
        ]
        return delta.text, delta.reasoning, calls

    def _head(self) -> Json:
        return {"model": self._model_id, "created_at": timestamp(datetime.now(UTC))}

    def _tail(self, usage: Usage) -> Json:
        now = self._clock()
        first = now if self._first is None else self._first
        return {
            "done": True,
            "done_reason": self._done_reason(usage),
            "total_duration": _nanoseconds(now - self._began),
            "load_duration": 0,
            "prompt_eval_count": usage.num_prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self._began),
            "eval_count": usage.num_new_tokens,
            "eval_duration": _nanoseconds(now - first),
        }

    def _done_reason(self, usage: Usage) -> str:
        if not usage.num_prompt_tokens:
            return "load"  # the whole answer for a request without a prompt
        return "length" if self._reason is FinishReason.LENGTH else "stop"

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        if not tokens:
            return {}
        return {"logprobs": [scored_json(each, self._tokenizer) for each in tokens]}


class _Call:
    """A tool call that is still being received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arguments: list[str] = []

    def to_json(self, number: int) -> Json:
        arguments = arguments_object("".join(self.arguments) or "{}")
        return {"function": {"index": number, "name": self.name, "arguments": arguments}}


def error_json(error: ApiError) -> bytes:
    """Return ``error`` in Ollama's format."""
    return msgspec.json.encode({"error": error.message})


def timestamp(time: datetime) -> str:
    """Return a time in Ollama's format."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _line(data: Json) -> bytes:
    return msgspec.json.encode(data) + b"\n"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
