"""Responses of ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.api.delta import Delta, ScoredToken
from potluck.api.dialects.openai.rendering import logprob_number
from potluck.api.rendering import Json
from potluck.types.sequence import FinishReason
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChoices:
    """Renders the choices of completions."""

    tokenizer: Tokenizer
    logprobs: bool

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    def whole(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        return {**self.part(index, delta), "finish_reason": reason}

    def first(self, index: int) -> Json | None:
        """See ``Choices``."""
        return None

    def part(self, index: int, delta: Delta) -> Json:
        """See ``Choices``."""
        return {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs(delta.tokens) if self.logprobs else None,
            "finish_reason": None,
        }

    def last(self, index: int, reason: FinishReason) -> Json:
        """See ``Choices``."""
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason.value}

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        return {
            "tokens": [self._text(each.token) for each in tokens],
            "token_logprobs": [logprob_number(each.logprob) for each in tokens],
            "top_logprobs": [self._top(each) for each in tokens],
            "text_offset": [each.offset for each in tokens],
        }

    def _top(self, scored: ScoredToken) -> Mapping[str, float | None] | None:
        """Map texts to log-probabilities, most likely first; among tokens with the same text keep
        the most likely.
        """
        if scored.logprob is None:
            return None
        top: dict[str, float | None] = {}
        for other in scored.top:
            top.setdefault(self._text(other.token), logprob_number(other.logprob))
        top.setdefault(self._text(scored.token), logprob_number(scored.logprob))
        return top

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")
