"""One choice of an answer: committed tokens to pieces of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.text.detokenize import StreamingDetokenizer
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest
from potluck.types.step import TokenLogprob
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token of the text with its log-probability; ``offset`` is where it begins, in characters.

    ``top`` are the likeliest tokens in its place.
    """

    token: int
    logprob: float
    top: tuple[TokenLogprob, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a choice gains: text, its tokens if log-probabilities were asked for, its end."""

    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    finish_reason: FinishReason | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing that a client could see."""
        return not self.text and not self.tokens and self.finish_reason is None


class ChoiceText:
    """Turns the tokens of one sequence into deltas.

    A token is given with the first of its text. Tokens that are no part of the text are not given:
    the one that ends the model's turn, and those of a stop string.
    """

    def __init__(
        self,
        request: SequenceRequest,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        starts_text: bool,
    ) -> None:
        self._stop_tokens = request.stop_tokens
        self._detokenizer = StreamingDetokenizer(
            tokenizer, stop_strings=stop, starts_text=starts_text
        )
        self._num_given = 0
        self._held: list[ScoredToken] = []

    def push(self, committed: CommittedToken) -> Delta:
        """Take the next token. After a delta with a finish reason there are no more."""
        offset = self._detokenizer.num_characters
        text = self._detokenizer.push(committed.token)
        reason = committed.finish_reason
        if reason is not None:
            text += self._detokenizer.flush()
        is_cut = self._detokenizer.stopped_by is not None
        if is_cut:
            reason = FinishReason.STOP
        self._num_given += len(text)
        if committed.logprob is not None and committed.token not in self._stop_tokens:
            scored = ScoredToken(
                token=committed.token,
                logprob=committed.logprob,
                top=committed.top,
                offset=offset,
            )
            self._held.append(scored)
        tokens = self._take_tokens(everything=reason is not None and not is_cut)
        return Delta(text=text, tokens=tokens, finish_reason=reason)

    def _take_tokens(self, *, everything: bool) -> tuple[ScoredToken, ...]:
        count = len(self._held)
        if not everything:
            count = sum(1 for token in self._held if token.offset < self._num_given)
        taken, self._held = self._held[:count], self._held[count:]
        return tuple(taken)
