"""One text being generated: a stream of pieces, then its result."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from potluck.errors import PotluckError
from potluck.local.tool_calls import ChatOutput
from potluck.scheduling import FinishReason
from potluck.serving.dispatcher import Dispatcher
from potluck.serving.ledger import TimedToken, Update
from potluck.text.detokenize import StreamingDetokenizer
from potluck.types.step import SamplingParams, SequenceId, TokenLogprob
from potluck.types.text import Tokenizer, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token and the text that became certain with it.

    ``text`` can be empty (an incomplete character, the possible beginning of a stop string, an
    end-of-text token) and then comes with a later piece. ``logprob`` is None and ``top`` empty
    unless log-probabilities were asked for. ``seconds`` is the time from the request to the token.
    """

    text: str
    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time went. Prefill lasts from the request to the first token, decode from there.

    ``num_cached_tokens`` of the prompt were in the cache and not computed.
    """

    num_prompt_tokens: int
    num_new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    num_cached_tokens: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens per second of prefill, without those that were in the cache."""
        return (self.num_prompt_tokens - self.num_cached_tokens) / self.prefill_seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """New tokens after the first per second of decode; None with fewer than two."""
        if self.num_new_tokens < 2:
            return None
        return (self.num_new_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished text. ``text`` does not contain the stop string or control tokens.

    In a chat with tools it does not contain calls and thoughts either: those are in ``tool_calls``
    and ``reasoning``.
    """

    text: str
    prompt_tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    timings: Timings
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Generation:
    """An iterator over the pieces of one text. For use by one thread.

    Leaving it early (``close``, ``with``, or the end of a ``for`` loop) cancels
    the sequence and frees its cache.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sequence_id: SequenceId,
        updates: SimpleQueue[Update],
        *,
        prompt_tokens: Sequence[int],
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        starts_text: bool,
        started: float,
        output: ChatOutput | None = None,
        visible: Collection[str] = (),
    ) -> None:
        self.sampling = sampling
        self._dispatcher = dispatcher
        self._sequence_id = sequence_id
        self._updates = updates
        self._prompt_tokens = tuple(prompt_tokens)
        self._detokenizer = StreamingDetokenizer(
            tokenizer, stop_strings=stop, starts_text=starts_text, visible=visible
        )
        self._output = output
        self._started = started
        self._pieces: list[Piece] = []
        self._result: GenerationResult | None = None
        self._num_cached_tokens = 0
        self._is_over = False

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces until the end; the last brings all text that was held back.

        A generator, and nothing of ``self`` refers to it: leaving a ``for`` loop ends it at once.
        """
        try:
            while not self._is_over:
                update = self._updates.get()
                if isinstance(update, PotluckError):
                    raise update
                yield self._take(update)
        finally:
            self.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is left. Idempotent."""
        self._is_over = True
        self._dispatcher.cancel(self._sequence_id)

    def result(self) -> GenerationResult:
        """Wait for the end and return the whole.

        Raises the error that ended the sequence, or ``PotluckError`` if it was left early.
        """
        for _ in self:
            pass
        if self._result is None:
            raise PotluckError("the text was not generated to its end")
        return self._result

    def _take(self, update: TimedToken) -> Piece:
        token = update.token
        self._num_cached_tokens += update.num_cached_tokens
        text = self._detokenizer.push(token.token)
        reason = token.finish_reason
        if reason is not None:
            text += self._detokenizer.flush()
        if self._detokenizer.stopped_by is not None:
            reason = FinishReason.STOP
        if self._output is not None:
            text = self._output.push(text, is_last=reason is not None)
        piece = Piece(
            text=text,
            token=token.token,
            logprob=token.logprob,
            top=token.top,
            seconds=update.at_seconds - self._started,
        )
        self._pieces.append(piece)
        if reason is not None:
            self._is_over = True
            self._result = self._make_result(reason)
        return piece

    def _make_result(self, reason: FinishReason) -> GenerationResult:
        output = self._output
        first_seconds = self._pieces[0].seconds
        return GenerationResult(
            text="".join(piece.text for piece in self._pieces),
            prompt_tokens=self._prompt_tokens,
            pieces=tuple(self._pieces),
            finish_reason=reason,
            reasoning="" if output is None else output.reasoning,
            tool_calls=() if output is None else tuple(output.tool_calls),
            timings=Timings(
                num_prompt_tokens=len(self._prompt_tokens),
                num_new_tokens=len(self._pieces),
                prefill_seconds=first_seconds,
                decode_seconds=self._pieces[-1].seconds - first_seconds,
                num_cached_tokens=self._num_cached_tokens,
            ),
        )
