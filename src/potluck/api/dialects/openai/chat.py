"""Answers of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.api.delta import Delta, ScoredToken
from potluck.api.dialects.openai.rendering import logprob_number
from potluck.api.rendering import Json
from potluck.types.sequence import FinishReason
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChoices:
    """The choices of a chat."""

    tokenizer: Tokenizer
    logprobs: bool

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(delta.tokens),
            "finish_reason": None if delta.finish_reason is None else delta.finish_reason.value,
        }

    def first(self, index: int) -> Json | None:
        """See ``Choices``."""
        return _chunk_choice(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def part(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        return _chunk_choice(index, {"content": delta.text}, self._logprobs(delta.tokens))

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Choices``."""
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
            "logprob": logprob_number(logprob),
            "bytes": list(data),
        }


def _chunk_choice(index: int, delta: Json, logprobs: Json | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
