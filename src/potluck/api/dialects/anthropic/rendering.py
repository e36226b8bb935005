"""Renders answers for Anthropic's API: a message of content blocks, whole or as events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from potluck.api.delta import Delta
from potluck.api.errors import ApiError
from potluck.api.rendering import (
    EVENT_STREAM,
    WAITING_COMMENT,
    Json,
    Usage,
    arguments_object,
    event,
)
from potluck.types.output import (
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
)
from potluck.types.sequence import FinishReason

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessageRenderer:
    """Renders one message. Its stream is a sequence of blocks, of which one is open at a time.

    With ``omits_thoughts``, thinking blocks are present but empty.
    """

    stream_type = EVENT_STREAM

    def __init__(self, model_id: str, *, omits_thoughts: bool = False) -> None:
        self.request_id = f"msg_{secrets.token_hex(12)}"
        self._model_id = model_id
        self._omits_thoughts = omits_thoughts
        self._has_begun = False
        self._num_blocks = 0
        self._open: str | None = None
        self._has_called = False
        self._stop: Json = {"stop_reason": None, "stop_sequence": None}

    @property
    def waiting(self) -> bytes:
        """See ``Renderer``. No event comes before ``message_start``."""
        return _event({"type": "ping"}) if self._has_begun else WAITING_COMMENT

    def begin(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        self._has_begun = True
        return _event({"type": "message_start", "message": self._message([], usage)})

    def delta(self, index: int, delta: Delta) -> bytes:
        """See ``Renderer``."""
        return b"".join(map(_event, self._events(delta)))

    def end(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        out = b"".join(map(_event, self._close()))
        last: Json = {"type": "message_delta", "delta": self._stop, "usage": usage_json(usage)}
        return out + _event(last) + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        """See ``Renderer``."""
        return event(error_json(error), "error")

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """See ``Renderer``."""
        blocks: list[Json] = []
        pieces: list[str] = []
        for each in chain(chain.from_iterable(map(self._events, choices[0])), self._close()):
            match each:
                case {"type": "content_block_start", "content_block": dict(block)}:
                    blocks.append(block)
                case {
                    "delta": {"partial_json": str(text)}
                    | {"text": str(text)}
                    | {"thinking": str(text)}
                }:
                    pieces.append(text)
                case {"type": "content_block_stop"}:
                    _fill(blocks[-1], pieces)
                    pieces.clear()
        return msgspec.json.encode(self._message(blocks, usage))

    def _message(self, content: Sequence[Json], usage: Usage) -> Json:
        return {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._model_id,
            "content": content,
            **self._stop,
            "usage": usage_json(usage),
        }

    def _note_end(self, delta: Delta) -> None:
        if delta.finish_reason is FinishReason.LENGTH:
            reason = "max_tokens"
        elif delta.stopped_by is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self._has_called else "end_turn"
        self._stop = {"stop_reason": reason, "stop_sequence": delta.stopped_by}

    def _events(self, delta: Delta) -> Iterator[Json]:
        for part in delta.parts:
            yield from self._part(part)
        if delta.finish_reason is not None:
            self._note_end(delta)

    def _part(self, part: OutputPart) -> Iterator[Json]:
        match part:
            case TextPart(text=text):
                yield from self._need("text", {"text": ""})
                yield self._gain({"type": "text_delta", "text": text})
            case ReasoningPart(text=text):
                yield from self._need("thinking", {"thinking": "", "signature": ""})
                if not self._omits_thoughts:
                    yield self._gain({"type": "thinking_delta", "thinking": text})
            case ToolCallStart(name=name):
                self._has_called = True
                yield from self._close()
                call_id = f"toolu_{secrets.token_hex(12)}"
                yield from self._need("tool_use", {"id": call_id, "name": name, "input": {}})
            case ToolCallArguments(text=text):
                yield self._gain({"type": "input_json_delta", "partial_json": text})

    def _need(self, kind: str, fields: Json) -> Iterator[Json]:
        """Open a block of this kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        block = {"type": kind, **fields}
        yield {"type": "content_block_start", "index": self._num_blocks, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._open is None:
            return
        yield {"type": "content_block_stop", "index": self._num_blocks}
        self._open = None
        self._num_blocks += 1

    def _gain(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}


def error_json(error: ApiError) -> bytes:
    """Return ``error`` in Anthropic's format."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, default)
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})


def usage_json(usage: Usage) -> Json:
    """Return the ``usage`` object; prompt tokens found in a cache are counted separately."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_new_tokens,
    }


def _fill(block: Json, pieces: Sequence[str]) -> None:
    """Complete a block with its accumulated content."""
    gained = "".join(pieces)
    if block["type"] != "tool_use":
        block[str(block["type"])] = gained
    elif gained:
        block["input"] = arguments_object(gained)


def _event(data: Json) -> bytes:
    return event(msgspec.json.encode(data), str(data["type"]))
