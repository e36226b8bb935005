"""One choice of an answer: converts committed tokens to pieces of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from potluck.api.delta import Delta, ScoredToken
from potluck.text.detokenize import StreamingDetokenizer
from potluck.types.output import OutputParser, OutputPart, ReasoningPart, TextPart
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest
from potluck.types.text import Tokenizer


class ChoiceText:
    """Converts the tokens of one sequence to deltas.

    A token is emitted with the first piece of its text. Tokens that contribute no text are not
    emitted: the end-of-turn token, and the tokens of a stop string. With ``echo``, the prompt as
    text, the prompt comes first and the end-of-turn token is emitted too, because clients that
    score prompts count tokens.
    """

    def __init__(
        self,
        request: SequenceRequest,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str],
        starts_text: bool,
        echo: str | None = None,
        parser: OutputParser | None = None,
        visible: Collection[str] = (),
        hidden: Collection[int] = (),
    ) -> None:
        self._num_prompt_tokens = len(request.prompt_tokens)
        self._echo = None if echo is None else _PromptEcho(request, tokenizer, echo)
        self._first_offset = 0 if self._echo is None else self._echo.num_characters
        self._stop_tokens = request.stop_tokens
        self._hidden = hidden
        self._parser = parser
        self._is_thinking = False
        self._num_reasoning_tokens = 0
        self._detokenizer = StreamingDetokenizer(
            tokenizer, stop_strings=stop, starts_text=starts_text, visible=visible
        )
        self._num_given = 0
        self._held: list[ScoredToken] = []

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of reasoning tokens, including the tokens of the marks around them."""
        return self._num_reasoning_tokens

    def start(self) -> Delta:
        """Return the delta that precedes any token."""
        return Delta() if self._echo is None else self._echo.start()

    def push(self, committed: CommittedToken) -> Delta:
        """Process the next token. No deltas follow one with a finish reason."""
        if self._echo is not None and committed.position < self._num_prompt_tokens:
            return self._echo.push(committed)
        offset = self._detokenizer.num_characters
        is_hidden = committed.token in self._hidden
        text = "" if is_hidden else self._detokenizer.push(committed.token)
        reason = committed.finish_reason
        if reason is not None:
            text += self._detokenizer.flush()
        is_cut = self._detokenizer.stopped_by is not None
        if is_cut:
            reason = FinishReason.STOP
        self._num_given += len(text)
        is_given = self._echo is not None or committed.token not in self._stop_tokens
        if committed.logprob is not None and is_given:
            scored = ScoredToken(
                token=committed.token,
                logprob=committed.logprob,
                top=committed.top,
                offset=self._first_offset + offset,
            )
            self._held.append(scored)
        tokens = self._take_tokens(everything=reason is not None and not is_cut)
        stopped_by = self._detokenizer.stopped_by
        parts = self._parts(
            text,
            is_last=reason is not None,
            is_cut=is_cut or reason is FinishReason.LENGTH,
        )
        return Delta(parts=parts, tokens=tokens, finish_reason=reason, stopped_by=stopped_by)

    def _parts(self, text: str, *, is_last: bool, is_cut: bool) -> tuple[OutputPart, ...]:
        if self._parser is None:
            return (TextPart(text=text),) if text else ()
        parts = tuple(self._parser.push(text)) if text else ()
        if is_last:
            parts += tuple(self._parser.finish(is_cut=is_cut))
        if parts:
            self._is_thinking = isinstance(parts[-1], ReasoningPart)
        self._num_reasoning_tokens += self._is_thinking
        return parts

    def _take_tokens(self, *, everything: bool) -> tuple[ScoredToken, ...]:
        count = len(self._held)
        if not everything:
            count = sum(
                1 for token in self._held if token.offset - self._first_offset < self._num_given
            )
        taken, self._held = self._held[:count], self._held[count:]
        return tuple(taken)


class _PromptEcho:
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
