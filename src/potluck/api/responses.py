"""The JSON that clients receive, as OpenAI writes it: whole answers and the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.api.delta import Delta, ScoredToken
from potluck.types.gateway import ModelStatus
from potluck.types.sampling import default_sampling
from potluck.types.sequence import FinishReason
from potluck.types.text import Tokenizer

MIN_LOGPROB = -9999.0
"""How OpenAI writes a log-probability that JSON cannot hold."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request: each prompt once, and all that its choices were given."""

    num_prompt_tokens: int
    num_new_tokens: int

    def to_json(self) -> Json:
        """The ``usage`` object."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_new_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_new_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What all objects of one answer share."""

    request_id: str
    created: int
    model_id: str

    @classmethod
    def new(cls, prefix: str, model_id: str) -> Identity:
        """A fresh one, dated now."""
        return cls(
            request_id=f"{prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model_id=model_id,
        )

    def to_json(self, kind: str) -> Json:
        """The beginning of an object of the type ``kind``."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model_id,
            "system_fingerprint": None,
        }


class Format(Protocol):
    """How answers of one address are written."""

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice of a whole answer; ``delta`` is all of it."""
        ...

    def first(self, index: int) -> Json | None:
        """The choice of the chunk that begins a choice, if there is one."""
        ...

    def part(self, index: int, delta: Delta) -> Json:
        """The choice of a chunk with more text."""
        ...

    def last(self, index: int, reason: FinishReason) -> Json:
        """The choice of the chunk that ends a choice."""
        ...

    @property
    def prefix(self) -> str:
        """What request ids begin with."""
        ...

    @property
    def whole_kind(self) -> str:
        """The type of a whole answer."""
        ...

    @property
    def chunk_kind(self) -> str:
        """The type of a chunk."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Answers of ``/v1/chat/completions``."""

    tokenizer: Tokenizer
    logprobs: bool

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(self, index: int, delta: Delta) -> Json:
        """See ``Format``."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta.tokens),
            "finish_reason": _reason(delta),
        }

    def first(self, index: int) -> Json | None:
        """See ``Format``."""
        return _chunk_choice(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def part(self, index: int, delta: Delta) -> Json:
        """See ``Format``."""
        return _chunk_choice(index, {"content": delta.text}, self._logprobs(delta.tokens))

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Format``."""
        return {**_chunk_choice(index, {}, None), "finish_reason": reason.value}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json | None:
        if not self.logprobs:
            return None
        content = [
            {
                **self._token(each.token, each.logprob),
                "top_logprobs": [self._token(other.token, other.logprob) for other in each.top],
            }
            for each in tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float | None) -> Json:
        data = self.tokenizer.token_bytes(token)
        return {
            "token": data.decode(errors="replace"),
            "logprob": _number(logprob),
            "bytes": list(data),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormat:
    """Answers of ``/v1/completions``."""

    tokenizer: Tokenizer
    logprobs: bool

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, index: int, delta: Delta) -> Json:
        """See ``Format``."""
        return {**self.part(index, delta), "finish_reason": _reason(delta)}

    def first(self, index: int) -> Json | None:
        """See ``Format``."""
        return None

    def part(self, index: int, delta: Delta) -> Json:
        """See ``Format``."""
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.tokens) if self.logprobs else None,
            "finish_reason": None,
        }

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Format``."""
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason.value}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        return {
            "tokens": [self._text(each.token) for each in tokens],
            "token_logprobs": [_number(each.logprob) for each in tokens],
            "top_logprobs": [self._top(each) for each in tokens],
            "text_offset": [each.offset for each in tokens],
        }

    def _top(self, scored: ScoredToken) -> Mapping[str, float | None] | None:
        """By text, likeliest first; of tokens with one text the likeliest counts."""
        if scored.logprob is None:
            return None
        top: dict[str, float | None] = {}
        for other in scored.top:
            top.setdefault(self._text(other.token), _number(other.logprob))
        top.setdefault(self._text(scored.token), _number(scored.logprob))
        return top

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")


def model_json(status: ModelStatus) -> Json:
    """An entry of ``/v1/models``; what OpenAI does not have comes last."""
    return {
        "id": status.model_id,
        "object": "model",
        "created": status.created,
        "owned_by": "potluck",
        "context_tokens": status.context_tokens,
        "state": status.state.value,
        "reason": status.reason or None,
        "default_sampling": default_sampling(status.sampling_defaults),
    }


def _chunk_choice(index: int, delta: Json, logprobs: Json | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, MIN_LOGPROB)


def _reason(delta: Delta) -> str | None:
    return None if delta.finish_reason is None else delta.finish_reason.value
