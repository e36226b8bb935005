"""A text that is being generated: a stream of pieces, and then its result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from potluck.errors import ParameterError, PotluckError
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.text.chat import ChatTemplate
from potluck.text.detokenize import StreamingDetokenizer
from potluck.text.tool_formats import choose_output_format
from potluck.types.output import (
    OutputFormat,
    OutputParser,
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
    ToolMode,
    ToolUse,
)
from potluck.types.sequence import FinishReason, SequenceRequest, SequenceUpdate
from potluck.types.step import TokenLogprob
from potluck.types.text import Tokenizer, Tool, ToolCall


def tool_use(tools: Sequence[Tool], tool_choice: str, *, is_parallel: bool) -> ToolUse:
    """Return the use of ``tools``; ``tool_choice`` is a mode, or the name of a tool.

    Raise ``ParameterError`` if there is no such tool, or if two tools have the same name.
    """
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ParameterError("tools", "two tools have the same name", hint="rename one of them")
    if tool_choice in names:
        return ToolUse(
            tools=tuple(tools),
            mode=ToolMode.REQUIRED,
            name=tool_choice,
            is_parallel=is_parallel,
        )
    modes = [mode.value for mode in ToolMode]
    if tool_choice not in modes:
        raise ParameterError(
            "tool_choice",
            f"tool_choice is {tool_choice[:40]!r}",
            hint=f"use {', '.join(modes)} or the name of a tool",
        )
    return ToolUse(tools=tuple(tools), mode=ToolMode(tool_choice), is_parallel=is_parallel)


def output_format(template: ChatTemplate | None, tokenizer: Tokenizer) -> OutputFormat:
    """Return the format in which a model with this template writes tool calls and reasoning."""
    source = "" if template is None else template.tool_source or template.source
    return choose_output_format(source, tokenizer.special_tokens)


@dataclass(slots=True)
class ChatOutput:
    """The state of parsing an output. Mutable; not thread-safe."""

    parser: OutputParser
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def push(self, text: str, *, is_last: bool, is_cut: bool = False) -> str:
        """Parse more of the output, and return the part that is the answer's text.

        ``is_cut`` is as in ``OutputParser.finish``.
        """
        parts = [*self.parser.push(text)]
        if is_last:
            parts += self.parser.finish(is_cut=is_cut)
        return "".join(map(self._take, parts))

    def _take(self, part: OutputPart) -> str:
        match part:
            case TextPart(text=text):
                return text
            case ReasoningPart(text=text):
                self.reasoning += text
            case ToolCallStart(name=name):
                call_id = f"call_{secrets.token_hex(12)}"
                self.tool_calls.append(ToolCall(call_id=call_id, name=name, arguments=""))
            case ToolCallArguments(index=index, text=text):
                call = self.tool_calls[index]
                self.tool_calls[index] = ToolCall(
                    call_id=call.call_id, name=call.name, arguments=call.arguments + text
                )
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token, and the text that is final after it.

    ``text`` may be empty (for an incomplete character, the possible beginning of a stop string, or
    an end-of-text token); the text then follows in a later piece. ``logprob`` is None and ``top``
    empty unless log-probabilities were requested. ``seconds`` is the time from the request to the
    token.
    """

    text: str
    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The times of prefill, from the request to the first token, and of decode after that.

    ``num_cached_tokens`` tokens of the prompt were in the cache and not computed.
    ``num_drafted_tokens`` drafts were verified, and ``num_accepted_tokens`` of them were right.
    """

    num_prompt_tokens: int
    num_new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def tokens_per_step(self) -> float | None:
        """New tokens after the first per decode step, 1 without drafts; None for a single token.

        Right drafts beyond the end of the text make it slightly too high.
        """
        num_decoded = self.num_new_tokens - 1
        if num_decoded < 1:
            return None
        return num_decoded / max(1, num_decoded - self.num_accepted_tokens)

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens per second of prefill, without those that were in the cache."""
        return (self.num_prompt_tokens - self.num_cached_tokens) / self.prefill_seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """New tokens after the first per second of decode; None for fewer than two tokens."""
        if self.num_new_tokens < 2:
            return None
        return (self.num_new_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """A finished text. ``text`` does not contain the stop string or control tokens.

    In a chat with tools, it does not contain calls and reasoning either; these are in
    ``tool_calls`` and ``reasoning``.
    """

    text: str
    prompt_tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    timings: Timings
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Generation:
    """An iterator over the pieces of the text that ``request`` generates. Not thread-safe.

    ``started`` is the time of the request, as by ``time.perf_counter``. Raise the errors of
    ``Dispatcher.add``.

    Leaving it early (``close``, ``with``, or the end of a ``for`` loop) cancels the sequence and
    frees its cache.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        request: SequenceRequest,
        detokenizer: StreamingDetokenizer,
        *,
        started: float,
        output: ChatOutput | None = None,
    ) -> None:
        updates: SimpleQueue[tuple[float, Update]] = SimpleQueue()
        self.sampling = request.sampling
        self._dispatcher = dispatcher
        self._sequence_id = dispatcher.add(
            request, lambda update: updates.put((time.perf_counter(), update))
        )
        self._updates = updates
        self._prompt_tokens = request.prompt_tokens
        self._detokenizer = detokenizer
        self._output = output
        self._started = started
        self._pieces: list[Piece] = []
        self._result: GenerationResult | None = None
        self._num_cached_tokens = 0
        self._num_drafted_tokens = 0
        self._num_accepted_tokens = 0
        self._is_over = False

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces until the end; the last one has all text that was held back.

        This is a generator to which ``self`` has no reference, so leaving a ``for`` loop ends it
        immediately.
        """
        try:
            while not self._is_over:
                at, update = self._updates.get()
                if isinstance(update, PotluckError):
                    raise update
                yield self._take(update, at)
        finally:
            self.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the rest of the generation. Idempotent."""
        self._is_over = True
        self._dispatcher.cancel(self._sequence_id)

    def result(self) -> GenerationResult:
        """Wait for the end and return the whole result.

        Raise the error that ended the sequence, or ``PotluckError`` if it was left early.
        """
        for _ in self:
            pass
        if self._result is None:
            raise PotluckError("the generation was closed before its end")
        return self._result

    def _take(self, update: SequenceUpdate, at: float) -> Piece:
        (token,) = update.tokens
        self._num_cached_tokens += update.num_cached_tokens
        self._num_drafted_tokens += token.num_drafted
        self._num_accepted_tokens += token.num_accepted
        text = self._detokenizer.push(token.token)
        reason = token.finish_reason
        if reason is not None:
            text += self._detokenizer.flush()
        if self._detokenizer.stopped_by is not None:
            reason = FinishReason.STOP
        if self._output is not None:
            is_cut = reason is FinishReason.LENGTH or self._detokenizer.stopped_by is not None
            text = self._output.push(text, is_last=reason is not None, is_cut=is_cut)
        piece = Piece(
            text=text,
            token=token.token,
            logprob=token.logprob,
            top=token.top,
            seconds=at - self._started,
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
                num_drafted_tokens=self._num_drafted_tokens,
                num_accepted_tokens=self._num_accepted_tokens,
            ),
        )
