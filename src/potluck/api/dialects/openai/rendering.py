"""Common parts of the responses of OpenAI's endpoints."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from potluck.api.delta import Delta
from potluck.api.errors import ApiError
from potluck.api.rendering import EVENT_STREAM, WAITING_COMMENT, Json, Usage, event
from potluck.types.sequence import FinishReason

MIN_LOGPROB = -9999.0
"""OpenAI's replacement for a log-probability that JSON cannot represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The fields that all objects of one answer share."""

    request_id: str
    created: int
    model_id: str

    @classmethod
    def new(cls, prefix: str, model_id: str) -> Identity:
        """Create a new identity with the current time."""
        return cls(
            request_id=f"{prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model_id=model_id,
        )

    def to_json(self, kind: str) -> Json:
        """Return the leading fields of an object of the type ``kind``."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model_id,
            "system_fingerprint": None,
        }


class Choices(Protocol):
    """Renders the choices of one endpoint."""

    @property
    def prefix(self) -> str:
        """The prefix of request ids."""
        ...

    @property
    def whole_kind(self) -> str:
        """The type of a complete response."""
        ...

    @property
    def chunk_kind(self) -> str:
        """The type of a chunk."""
        ...

    def whole(self, index: int, delta: Delta) -> Json:
        """Return a choice of a complete response; ``delta`` is its whole content."""
        ...

    def first(self, index: int) -> Json | None:
        """Return the choice of the chunk that starts a choice, if there is such a chunk."""
        ...

    def part(self, index: int, delta: Delta) -> Json:
        """Return the choice of a chunk that continues a choice."""
        ...

    def last(self, index: int, reason: FinishReason) -> Json:
        """Return the choice of the chunk that ends a choice."""
        ...


class OpenAIRenderer:
    """Renders an answer for OpenAI's API: one object, or the chunks of an event stream.

    With ``include_usage``, the last chunk of a stream has the usage, and no other chunk does.
    """

    stream_type = EVENT_STREAM
    waiting = WAITING_COMMENT

    def __init__(self, choices: Choices, model_id: str, *, include_usage: bool) -> None:
        self._choices = choices
        self._identity = Identity.new(choices.prefix, model_id)
        self.request_id = self._identity.request_id
        self._include_usage = include_usage
        self._begun: set[int] = set()

    def begin(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        """See ``Renderer``."""
        out = b""
        if index not in self._begun:
            self._begun.add(index)
            first = self._choices.first(index)
            if first is not None:
                out += self._chunk([first])
        if delta.parts or delta.tokens:
            out += self._chunk([self._choices.part(index, delta)])
        if delta.finish_reason is not None:
            out += self._chunk([self._choices.last(index, delta.finish_reason)])
        return out

    def end(self, usage: Usage) -> bytes:
        """See ``Renderer``."""
        last = self._chunk([], usage) if self._include_usage else b""
        return last + event(b"[DONE]")

    def failed(self, error: ApiError) -> bytes:
        """See ``Renderer``."""
        return event(error_json(error))

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """See ``Renderer``."""
        return msgspec.json.encode(
            {
                **self._identity.to_json(self._choices.whole_kind),
                "choices": [
                    self._choices.whole(index, _joined(deltas)) for index, deltas in choices.items()
                ],
                "usage": usage_json(usage),
            }
        )

    def _chunk(self, choices: Sequence[Json], usage: Usage | None = None) -> bytes:
        chunk = {**self._identity.to_json(self._choices.chunk_kind), "choices": choices}
        if self._include_usage:
            chunk["usage"] = None if usage is None else usage_json(usage)
        return event(msgspec.json.encode(chunk))


def error_json(error: ApiError) -> bytes:
    """Return ``error`` in OpenAI's format."""
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": _error_type(error.status),
                "param": error.param,
                "code": error.code,
            }
        }
    )


def usage_json(usage: Usage) -> Json:
    """Return the ``usage`` object."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_new_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_new_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.num_reasoning_tokens,
            "accepted_prediction_tokens": usage.num_accepted_tokens,
            "rejected_prediction_tokens": usage.num_drafted_tokens - usage.num_accepted_tokens,
        },
    }


def logprob_number(logprob: float | None) -> float | None:
    """Return a log-probability that JSON can represent."""
    return None if logprob is None else max(logprob, MIN_LOGPROB)


def _error_type(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"


def _joined(deltas: Sequence[Delta]) -> Delta:
    return Delta(
        parts=tuple(part for delta in deltas for part in delta.parts),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish_reason=deltas[-1].finish_reason,
    )
