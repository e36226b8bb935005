"""The answer to one request: merges the updates of its sequences at the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial

from potluck.api.admission import in_thread
from potluck.api.choice import ChoiceText
from potluck.api.delta import Delta
from potluck.api.jobs import Job
from potluck.api.metrics import RequestMeter
from potluck.api.rendering import Renderer, Usage
from potluck.errors import EngineError
from potluck.types.gateway import Gateway
from potluck.types.sequence import (
    Cancel,
    CommittedToken,
    FinishReason,
    SequenceRequest,
    SequenceUpdate,
)

_log = logging.getLogger(__name__)

_TICKS = 4
"""How many times per silence interval a stream checks the clock; keep-alives can be that late."""

_DELTAS_AT_ONCE = 1000
"""Size up to which a whole response is serialized in the event loop: about 5 ms."""

Deltas = list[tuple[int, Delta]]
"""Deltas of choices in order, each with the index of its choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that has been parsed and validated: its job, and the renderer of its answer."""

    job: Job
    renderer: Renderer
    is_stream: bool
    user: str | None = None


class Answer:
    """The answer to one request. Nothing happens before :meth:`start`.

    ``held`` has what the request holds until its end, such as its slot; the answer closes it. A
    stream with nothing to send emits a keep-alive every ``silence_seconds``.
    """

    def __init__(
        self,
        prepared: Prepared,
        gateway: Gateway,
        meter: RequestMeter,
        held: AsyncExitStack,
        *,
        silence_seconds: float,
    ) -> None:
        self._prepared = prepared
        self._renderer = prepared.renderer
        self._gateway = gateway
        self._meter = meter
        self._held = held
        self._silence_seconds = silence_seconds
        self._choices: list[_Choice] = []
        self._stream = self._deltas()

    async def start(self) -> None:
        """Wait for the first token, but no longer than a stream may be silent.

        Raises ``PotluckError``. If cancelled, the request ends immediately. Afterwards call either
        :meth:`whole` or :meth:`pieces` to get the answer, or :meth:`aclose` to end it.
        """
        self._first = await anext(self._stream)

    async def aclose(self) -> None:
        """Cancel generation and release the slot."""
        await self._stream.aclose()

    async def whole(self) -> bytes:
        """Return the complete answer. Raises ``PotluckError``. If cancelled, the request ends
        immediately.
        """
        choices: dict[int, list[Delta]] = {}
        async with aclosing(self._all()) as stream:
            async for deltas in stream:
                if deltas and not choices:
                    self._renderer.begin(self._usage())
                for index, delta in deltas:
                    choices.setdefault(index, []).append(delta)
        choices = dict(sorted(choices.items()))
        usage = self._usage()
        if sum(map(len, choices.values())) <= _DELTAS_AT_ONCE:
            return self._renderer.whole(choices, usage)
        return await in_thread(lambda: self._renderer.whole(choices, usage))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as a stream. If the stream is closed early, its sequences are cancelled.

        Raises ``PotluckError``, before the first piece or later.
        """
        renderer = self._renderer
        has_begun = False
        async with aclosing(self._all()) as stream:
            async for deltas in stream:
                if not deltas:
                    yield renderer.waiting
                    continue
                piece = b""
                if not has_begun:
                    has_begun = True
                    piece = renderer.begin(self._usage())
                for index, delta in deltas:
                    piece += renderer.delta(index, delta)
                if piece:
                    yield piece
        yield renderer.end(self._usage())

    def _usage(self) -> Usage:
        choices = self._choices
        return Usage(
            num_prompt_tokens=self._prepared.job.num_prompt_tokens,
            num_new_tokens=sum(each.num_new_tokens for each in choices),
            num_cached_tokens=self._num_cached_tokens(),
            num_reasoning_tokens=sum(each.num_reasoning_tokens for each in choices),
            num_drafted_tokens=sum(each.num_drafted_tokens for each in choices),
            num_accepted_tokens=sum(each.num_accepted_tokens for each in choices),
        )

    def _num_cached_tokens(self) -> int:
        """Count each prompt once, using the minimum over its sequences."""
        cached: dict[tuple[int, ...], int] = {}
        for choice in self._choices:
            prompt = choice.request.prompt_tokens
            cached[prompt] = min(cached.get(prompt, len(prompt)), choice.num_cached_tokens)
        return sum(cached.values())

    async def _all(self) -> AsyncGenerator[Deltas, None]:
        async with aclosing(self._stream):
            yield self._first
            async for each in self._stream:
                yield each

    async def _deltas(self) -> AsyncGenerator[Deltas, None]:
        """Yield deltas; yield an empty list after ``silence_seconds`` without any."""
        async with self._held:
            job, meter, request_id = self._prepared.job, self._meter, self._renderer.request_id
            _log.debug("%s: model %s, user %r", request_id, job.model.model_id, self._prepared.user)
            meter.prompts(job.num_prompt_tokens)
            choices = self._choices = [
                _Choice(replace(each, request_id=request_id), job, meter, index)
                for index, each in enumerate(job.requests)
            ]
            arrivals = Arrivals(tick_seconds=self._silence_seconds / _TICKS)
            loop = asyncio.get_running_loop()
            silent_since = loop.time()
            try:
                ended = [choice for choice in choices if not choice.start(self._gateway, arrivals)]
                if not choices:
                    yield [(0, Delta(finish_reason=FinishReason.STOP))]
                if ended:
                    yield [(choice.index, choice.begun) for choice in ended]
                while not all(choice.is_over for choice in choices):
                    deltas: Deltas = []
                    error: Exception | None = None
                    try:
                        for index, update in await arrivals.take():
                            deltas += choices[index].push(update)
                    except Exception as failure:  # noqa: BLE001 - raised when the deltas are told
                        error = failure
                    if deltas:
                        yield deltas
                    elif error is None:
                        if loop.time() - silent_since < self._silence_seconds:
                            continue
                        yield []
                    if error is not None:
                        try:
                            raise error
                        finally:
                            del error  # which refers to this frame
                    silent_since = loop.time()
            finally:
                arrivals.close()
                for choice in choices:
                    choice.close()


class Arrivals:
    """Collects the updates of several sequences, each with the index of its sequence.

    It has a single consumer task, which is woken once for everything that arrives before it runs,
    and every ``tick_seconds`` if nothing arrives.
    """

    def __init__(self, *, tick_seconds: float) -> None:
        self._waiting: list[tuple[int, SequenceUpdate | Exception]] = []
        self._tick_seconds = tick_seconds
        self._loop = asyncio.get_running_loop()
        self._awaited: asyncio.Future[None] | None = None
        self._timer = self._loop.call_later(tick_seconds, self._tick)

    def put(self, index: int, update: SequenceUpdate | Exception) -> None:
        """Add an update without waiting."""
        self._waiting.append((index, update))
        self._wake()

    async def take(self) -> list[tuple[int, SequenceUpdate | Exception]]:
        """Wait for updates and return all pending ones; return none after a tick.

        Ticks are ignored while nobody is waiting.
        """
        if not self._waiting:
            self._awaited = self._loop.create_future()
            try:
                await self._awaited
            finally:
                self._awaited = None
        taken, self._waiting = self._waiting, []
        return taken

    def close(self) -> None:
        """Stop the ticks."""
        self._timer.cancel()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _tick(self) -> None:
        self._wake()
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)


class _Choice:
    """One sequence of a request, from start to end.

    ``begun`` is the delta that precedes any token; ``is_over`` is true once the choice has ended.
    The counts are as in ``Usage``; tokens after the end of the choice are not counted.
    """

    def __init__(self, request: SequenceRequest, job: Job, meter: RequestMeter, index: int) -> None:
        self.index = index
        self.request = request
        self.num_new_tokens = 0
        self.num_cached_tokens = 0
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        self._meter = meter
        self._model_id = job.model.model_id
        self._num_prompt_tokens = len(request.prompt_tokens)
        self._context_tokens = job.model.context_tokens
        self._text = ChoiceText(
            request,
            job.model.tokenizer,
            stop=job.stop,
            starts_text=job.starts_text,
            echo=job.echoes[index],
            parser=None if job.new_parser is None else job.new_parser(),
            visible=job.visible_control_texts,
            hidden=job.hidden_tokens,
        )
        self.begun = self._text.start()
        self.is_over = self.begun.finish_reason is not None
        self._cancel: Cancel | None = None

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of this choice's tokens that were part of its reasoning."""
        return self._text.num_reasoning_tokens

    def start(self, gateway: Gateway, arrivals: Arrivals) -> bool:
        """Start computing its tokens; return False if it needs none."""
        if not self.is_over:
            self._cancel = gateway.start(
                self._model_id, self.request, partial(arrivals.put, self.index)
            )
        return not self.is_over

    def push(self, update: SequenceUpdate | Exception) -> Deltas:
        """Process an update and return its delta; raise the error that ends the sequence."""
        if self.is_over:
            return []
        if isinstance(update, Exception):
            raise update
        self.num_cached_tokens += update.num_cached_tokens
        deltas: Deltas = []
        for token in update.tokens:
            if token.position >= self._num_prompt_tokens:
                self.num_new_tokens += 1
                self.num_drafted_tokens += token.num_drafted
                self.num_accepted_tokens += token.num_accepted
                self._meter.token(self.index)
                self._require_followed(token)
            delta = self._text.push(token)
            # not earlier: an error before this point can still set the HTTP status
            if not self.begun.is_empty:
                deltas.append((self.index, self.begun))
                self.begun = Delta()
            if not delta.is_empty:
                deltas.append((self.index, delta))
            if delta.finish_reason is not None:
                self.is_over = True
                self.close()
                break
        return deltas

    def _require_followed(self, token: CommittedToken) -> None:
        """Raise ``EngineError`` if the grammar could not be applied to a single token.

        In that case the last stage ends the sequence at its first token.
        """
        request = self.request
        if (
            request.grammar is not None
            and token.position == self._num_prompt_tokens
            and token.finish_reason is FinishReason.LENGTH
            and request.max_new_tokens != 1
            and self._num_prompt_tokens + 1 < self._context_tokens
        ):
            raise EngineError(
                "the node of the model's last stage cannot apply the grammar: see that node's log",
                hint="it may be short of memory: see docs/guides/structured-output.md",
            )

    def close(self) -> None:
        """Cancel the sequence unless it has ended."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
