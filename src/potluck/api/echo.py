"""``echo``: return a completion's prompt before its continuation."""

from __future__ import annotations

from potluck.api.delta import Delta, ScoredToken
from potluck.text.detokenize import StreamingDetokenizer
from potluck.types.output import TextPart
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest
from potluck.types.text import Tokenizer


class PromptEcho:
    """Emits the prompt of one choice as a delta, once all scores of its tokens are available.

    ``text`` is the prompt as the client sent it.
    """

    def __init__(self, request: SequenceRequest, tokenizer: Tokenizer, text: str) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._text = text
        self._scores: list[CommittedToken] = []

    @property
    def num_characters(self) -> int:
        """Offset at which the continuation starts."""
        return len(self._text)

    def start(self) -> Delta:
        """Return the prompt if no scores are pending, with the finish reason if nothing follows."""
        if self._request.num_scores:
            return Delta()
        return self._delta(FinishReason.LENGTH if self._request.generates_nothing else None)

    def push(self, score: CommittedToken) -> Delta:
        """Process the next score; return the prompt with the last one."""
        self._scores.append(score)
        if len(self._scores) < self._request.num_scores:
            return Delta()
        return self._delta(score.finish_reason)

    def _delta(self, finish_reason: FinishReason | None) -> Delta:
        parts = (TextPart(text=self._text),) if self._text else ()
        if not self._request.score_prompt:
            return Delta(parts=parts, finish_reason=finish_reason)
        tokens = []
        detokenizer = StreamingDetokenizer(self._tokenizer, starts_text=True)
        for token, score in zip(self._request.prompt_tokens, [None, *self._scores], strict=True):
            tokens.append(
                ScoredToken(
                    token=token,
                    logprob=None if score is None else score.logprob,
                    top=() if score is None else score.top,
                    offset=detokenizer.num_characters,
                )
            )
            detokenizer.push(token)
        return Delta(parts=parts, tokens=tuple(tokens), finish_reason=finish_reason)
