"""One request being answered: its sequences at the gateway, merged as they come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from potluck.api.admission import Admission
from potluck.api.choice import ChoiceText
from potluck.api.delta import Delta
from potluck.api.jobs import Job
from potluck.api.metrics import ApiMetrics, RequestMeter
from potluck.api.rendering import Renderer, Usage
from potluck.errors import EngineError
from potluck.types.gateway import Gateway, LiveSequence
from potluck.types.sequence import FinishReason

_log = logging.getLogger(__name__)

_TICKS = 4
"""How often in its longest silence a stream looks at the clock: one comes that much late at most.
"""

T = TypeVar("T")


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
        self._texts: list[ChoiceText] = []
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
            async for each in stream:
                if each is not None:
                    choices.setdefault(each[0], []).append(each[1])
        return self._renderer.whole(dict(sorted(choices.items())), self._usage())

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The answer as a stream. Closed early, its sequences are cancelled.

        Raises ``PotluckError``, before the first piece or later.
        """
        renderer = self._renderer
        has_begun = False
        async with aclosing(self._all()) as stream:
            async for each in stream:
                if each is None:
                    yield renderer.waiting
                    continue
                piece = b""
                if not has_begun:
                    has_begun = True
                    piece = renderer.begin(self._usage())
                piece += renderer.delta(*each)
                if piece:
                    yield piece
        yield renderer.end(self._usage())

    def _usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_new_tokens=sum(len(live.committed) for live in self._live),
            num_cached_tokens=self._num_cached_tokens(),
            num_reasoning_tokens=sum(text.num_reasoning_tokens for text in self._texts),
        )

    def _num_cached_tokens(self) -> int:
        """Each prompt counts once: with the fewest tokens that any of its sequences found."""
        cached: dict[tuple[int, ...], int] = {}
        for live in self._live:
            prompt = live.request.prompt_tokens
            cached[prompt] = min(cached.get(prompt, len(prompt)), live.num_cached_tokens)
        return sum(cached.values())

    async def _all(self) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        async with aclosing(self._stream):
            yield self._first
            async for each in self._stream:
                yield each

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """None stands for a silence that has lasted for ``silence_seconds``."""
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
            self._texts = [_text_of(job, index) for index in range(len(self._live))]
            choices = [
                _choice(self._gateway, live, self._texts[index], meter, index)
                for index, live in enumerate(self._live)
            ]
            if not choices:
                yield 0, Delta(finish_reason=FinishReason.STOP)
            tick_seconds = self._silence_seconds / _TICKS
            loop = asyncio.get_running_loop()
            silent_since = loop.time()
            async with aclosing(merge(choices, tick_seconds=tick_seconds)) as merged:
                async for each in merged:
                    if each is not None and not each[1].is_empty:
                        yield each
                    elif each is None and loop.time() - silent_since >= self._silence_seconds:
                        yield None
                    else:
                        continue
                    silent_since = loop.time()


async def merge(
    sources: Sequence[AsyncGenerator[T, None]], *, tick_seconds: float
) -> AsyncGenerator[tuple[int, T] | None, None]:
    """Items of all ``sources`` as they come, each with its source's index.

    Every ``tick_seconds`` there is None as well, unless an item is there. All sources are closed
    when this ends, however it does.
    """
    arrived = _Arrived[tuple[int, T]](tick_seconds, max_items=len(sources))
    pumps = [
        asyncio.create_task(_pump(index, source, arrived)) for index, source in enumerate(sources)
    ]
    num_open = len(pumps)
    try:
        while num_open:
            item = await arrived.get()
            if not isinstance(item, _Ended):
                yield item
                continue
            num_open -= 1
            error = item.error
            del item  # whose error will have this frame
            if error is not None:
                try:
                    raise error
                finally:
                    del error
    finally:
        arrived.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for source in sources:
            await source.aclose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A source has no more items, because of an ``error`` if there is one."""

    error: BaseException | None


async def _pump(
    index: int, source: AsyncGenerator[T, None], arrived: _Arrived[tuple[int, T]]
) -> None:
    """Put the items of ``source``: one task for all of them costs half of one for each."""
    try:
        async for item in source:
            await arrived.put((index, item))
    except asyncio.CancelledError as error:
        pump = asyncio.current_task()
        if pump is not None and pump.cancelling():
            raise
        await arrived.put(_Ended(error=error))  # the source's own: nobody has cancelled the pump
    except Exception as error:  # noqa: BLE001 - raised where the items are taken
        await arrived.put(_Ended(error=error))
    else:
        await arrived.put(_Ended(error=None))


class _Arrived(Generic[T]):
    """A queue, and None every so many seconds for whoever waits for it meanwhile."""

    def __init__(self, tick_seconds: float, *, max_items: int) -> None:
        self._items: asyncio.Queue[T | _Ended | None] = asyncio.Queue(max_items + 1)
        self._tick_seconds = tick_seconds
        self._is_awaited = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(tick_seconds, self._tick)

    async def put(self, item: T | _Ended) -> None:
        """Add an item, once there is room."""
        await self._items.put(item)

    async def get(self) -> T | _Ended | None:
        """The next item, or None for a tick. Those that come while nobody waits do not count."""
        self._is_awaited = True
        try:
            return await self._items.get()
        finally:
            self._is_awaited = False

    def close(self) -> None:
        """Tick no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        if self._is_awaited and self._items.empty():
            self._items.put_nowait(None)
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)


def _text_of(job: Job, index: int) -> ChoiceText:
    return ChoiceText(
        job.requests[index],
        job.model.tokenizer,
        stop=job.stop,
        starts_text=job.starts_text,
        echo=job.echoes[index],
        parser=None if job.new_parser is None else job.new_parser(),
    )


async def _choice(
    gateway: Gateway, live: LiveSequence, text: ChoiceText, meter: RequestMeter, index: int
) -> AsyncGenerator[Delta, None]:
    start = text.start()
    if start.finish_reason is not None:
        yield start
        return
    async with aclosing(gateway.generate(live)) as updates:
        async for token in updates:
            if token.position >= len(live.request.prompt_tokens):
                live.committed.append(token)
                meter.token(index)
            delta = text.push(token)
            if not start.is_empty:  # not earlier: an error before the first token has a status
                yield start
                start = Delta()
            yield delta
            if delta.finish_reason is not None:
                return
    raise EngineError("the model stopped without an end", hint="ask again")
