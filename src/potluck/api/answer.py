"""One request being answered: its sequences at the gateway, merged as they come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from potluck.api.admission import Admission, in_thread
from potluck.api.choice import ChoiceText
from potluck.api.delta import Delta
from potluck.api.jobs import Job
from potluck.api.metrics import ApiMetrics, RequestMeter
from potluck.api.rendering import Renderer, Usage
from potluck.errors import EngineError
from potluck.types.gateway import Gateway, LiveSequence
from potluck.types.sequence import Cancel, CommittedToken, FinishReason, SequenceUpdate

_log = logging.getLogger(__name__)

_TICKS = 4
"""How often in its longest silence a stream looks at the clock: one comes that much late at most.
"""

_DELTAS_AT_ONCE = 1000
"""Of a whole answer, that are written in the event loop: about 5 ms."""

Deltas = list[tuple[int, Delta]]
"""What choices gain, each with the index of its choice, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was read and understood: what answers it, and who writes that."""

    job: Job
    renderer: Renderer
    is_stream: bool
    user: str | None = None


class Answer:
    """What answers one request. Nothing happens before :meth:`start`.

    ``prepare`` reads the request, once there is a slot for it. A stream that has nothing to send
    says so every ``silence_seconds``.
    """

    def __init__(
        self,
        gateway: Gateway,
        admission: Admission,
        metrics: ApiMetrics,
        *,
        prepare: Callable[[], Awaitable[Prepared]],
        silence_seconds: float,
    ) -> None:
        self._gateway = gateway
        self._admission = admission
        self._metrics = metrics
        self._prepare = prepare
        self._silence_seconds = silence_seconds
        self._came = time.perf_counter()
        self._prepared: Prepared | None = None
        self._live: list[LiveSequence] = []
        self._choices: list[_Choice] = []
        self._num_prompt_tokens = 0
        self._stream = self._deltas()

    @property
    def model_id(self) -> str | None:
        """The model that is asked, once the request has been read."""
        return None if self._prepared is None else self._prepared.job.model.model_id

    async def start(self) -> Prepared:
        """Wait for the first token, but no longer than a stream may be silent.

        Raises ``PotluckError``; cancelled, the request ends at once. Afterwards either
        :meth:`whole` or :meth:`pieces` gives the answer, or :meth:`aclose` ends it.
        """
        self._first = await anext(self._stream)
        if self._prepared is None:
            raise RuntimeError("a request was answered before it was read")
        return self._prepared

    async def aclose(self) -> None:
        """Cancel what is being generated and give the slot back."""
        await self._stream.aclose()

    async def whole(self) -> bytes:
        """The whole answer. Raises ``PotluckError``; cancelled, it ends at once."""
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
        """The answer as a stream. Closed early, its sequences are cancelled.

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
        return Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_new_tokens=sum(len(live.committed) for live in self._live),
            num_cached_tokens=self._num_cached_tokens(),
            num_reasoning_tokens=sum(each.num_reasoning_tokens for each in self._choices),
        )

    def _num_cached_tokens(self) -> int:
        """Each prompt counts once: with the fewest tokens that any of its sequences found."""
        cached: dict[tuple[int, ...], int] = {}
        for live in self._live:
            prompt = live.request.prompt_tokens
            cached[prompt] = min(cached.get(prompt, len(prompt)), live.num_cached_tokens)
        return sum(cached.values())

    async def _all(self) -> AsyncGenerator[Deltas, None]:
        async with aclosing(self._stream):
            yield self._first
            async for each in self._stream:
                yield each

    async def _deltas(self) -> AsyncGenerator[Deltas, None]:
        """Nothing stands for a silence that has lasted for ``silence_seconds``."""
        async with self._admission.slot():
            prepared = self._prepared = await self._prepare()
            self._renderer = prepared.renderer
            job = prepared.job
            request_id = self._renderer.request_id
            _log.debug("%s: model %s, user %r", request_id, job.model.model_id, prepared.user)
            meter = self._metrics.meter(job.model.model_id, self._came)
            self._num_prompt_tokens = job.num_prompt_tokens
            meter.prompts(job.num_prompt_tokens)
            self._live = [
                LiveSequence(
                    model_id=job.model.model_id,
                    request=replace(each, request_id=request_id),
                )
                for each in job.requests
            ]
            arrivals = Arrivals(tick_seconds=self._silence_seconds / _TICKS)
            choices = [_Choice(live, job, meter, index) for index, live in enumerate(self._live)]
            self._choices = choices
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
                            del error  # which has this frame
                    silent_since = loop.time()
            finally:
                arrivals.close()
                for choice in choices:
                    choice.close()


class Arrivals:
    """Updates of several sequences as they come, each with its sequence's index.

    For one task that takes them. It is woken once for all that come until it runs, and every
    ``tick_seconds`` in which nothing comes.
    """

    def __init__(self, *, tick_seconds: float) -> None:
        self._waiting: list[tuple[int, SequenceUpdate | Exception]] = []
        self._tick_seconds = tick_seconds
        self._loop = asyncio.get_running_loop()
        self._awaited: asyncio.Future[None] | None = None
        self._timer = self._loop.call_later(tick_seconds, self._tick)

    def put(self, index: int, update: SequenceUpdate | Exception) -> None:
        """Add an update; nobody waits here."""
        self._waiting.append((index, update))
        self._wake()

    async def take(self) -> list[tuple[int, SequenceUpdate | Exception]]:
        """Wait for updates and return all that there are; after a tick there are none.

        Ticks while nobody waits do not count.
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
        """Tick no more."""
        self._timer.cancel()

    def _wake(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _tick(self) -> None:
        self._wake()
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)


class _Choice:
    """One sequence of a request, from its start to its end.

    ``begun`` is what there is before any token; ``is_over`` is true once the choice has ended.
    """

    def __init__(self, live: LiveSequence, job: Job, meter: RequestMeter, index: int) -> None:
        self.index = index
        self._live = live
        self._meter = meter
        self._num_prompt_tokens = len(live.request.prompt_tokens)
        self._context_tokens = job.model.context_tokens
        self._text = ChoiceText(
            live.request,
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
        """How many of its tokens were what the model thought."""
        return self._text.num_reasoning_tokens

    def start(self, gateway: Gateway, arrivals: Arrivals) -> bool:
        """Have its tokens computed; return False if it needs none."""
        if not self.is_over:
            self._cancel = gateway.start(self._live, partial(arrivals.put, self.index))
        return not self.is_over

    def push(self, update: SequenceUpdate | Exception) -> Deltas:
        """Return what an update brings; raise the error that ends the sequence."""
        if self.is_over:
            return []
        if isinstance(update, Exception):
            raise update
        live = self._live
        live.num_cached_tokens += update.num_cached_tokens
        deltas: Deltas = []
        for token in update.tokens:
            if token.position >= self._num_prompt_tokens:
                live.committed.append(token)
                self._meter.token(self.index)
                self._require_followed(token)
            delta = self._text.push(token)
            if not self.begun.is_empty:  # not earlier: an error before it has a status of its own
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
        """Raise ``EngineError`` if the grammar could not be followed for a single token.

        The last stage then cuts off the answer with its first token.
        """
        request = self._live.request
        if (
            request.grammar is not None
            and token.position == self._num_prompt_tokens
            and token.finish_reason is FinishReason.LENGTH
            and request.max_new_tokens != 1
            and self._num_prompt_tokens + 1 < self._context_tokens
        ):
            raise EngineError(
                "the node of the model's last stage cannot follow the grammar: its log says why",
                hint="it may lack memory for that: see docs/structured-output.md",
            )

    def close(self) -> None:
        """Cancel the sequence, unless it has ended."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
