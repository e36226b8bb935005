"""One request being answered: its sequences at the gateway, merged as they come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import msgspec

from potluck.api.admission import Admission
from potluck.api.choice import ChoiceText
from potluck.api.delta import Delta
from potluck.api.errors import ApiError
from potluck.api.metrics import ApiMetrics, RequestMeter
from potluck.api.parameters import Job
from potluck.api.responses import Format, Identity, Json, Usage
from potluck.errors import EngineError
from potluck.types.gateway import Gateway, LiveSequence, ModelStatus

_log = logging.getLogger(__name__)

_TICKS = 4
"""How often in its longest silence a stream looks at the clock: one comes that much late at most.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was read and understood: what answers it, and how that is written."""

    job: Job
    form: Format
    is_stream: bool
    include_usage: bool
    user: str | None


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
        self._num_prompt_tokens = 0
        self._stream = self._deltas()

    @property
    def model_id(self) -> str | None:
        """The model that is asked, once the request has been read."""
        return None if self._prepared is None else self._prepared.job.model.model_id

    async def start(self) -> Prepared:
        """Wait for the first token, but no longer than a stream may be silent.

        Raises ``PotluckError``; cancelled, the request ends at once. Afterwards either
        :meth:`whole` or :meth:`chunks` gives the answer, or :meth:`aclose` ends it.
        """
        self._first = await anext(self._stream)
        if self._prepared is None:
            raise RuntimeError("a request was answered before it was read")
        return self._prepared

    async def aclose(self) -> None:
        """Cancel what is being generated and give the slot back."""
        await self._stream.aclose()

    async def whole(self) -> bytes:
        """The answer as one JSON object. Raises ``PotluckError``; cancelled, it ends at once."""
        deltas: dict[int, list[Delta]] = {}
        async with aclosing(self._all()) as stream:
            async for each in stream:
                if each is not None:
                    deltas.setdefault(each[0], []).append(each[1])
        choices = [self._form.whole(index, _join(deltas[index])) for index in sorted(deltas)]
        return msgspec.json.encode(
            {
                **self._identity.to_json(self._form.whole_kind),
                "choices": choices,
                "usage": self._usage().to_json(),
            }
        )

    async def chunks(self, *, include_usage: bool) -> AsyncGenerator[bytes | None, None]:
        """The answer as the JSON objects of a stream. Closed early, its sequences are cancelled.

        None stands for a silence that has lasted for ``silence_seconds``. Raises ``PotluckError``,
        before the first chunk or later.
        """
        begun: set[int] = set()
        async with aclosing(self._all()) as stream:
            async for each in stream:
                if each is None:
                    yield None
                    continue
                index, delta = each
                first = None if index in begun else self._form.first(index)
                begun.add(index)
                if first is not None:
                    yield self._chunk([first], include_usage=include_usage)
                if delta.text or delta.tokens:
                    part = self._form.part(index, delta)
                    yield self._chunk([part], include_usage=include_usage)
                if delta.finish_reason is not None:
                    last = self._form.last(index, delta.finish_reason)
                    yield self._chunk([last], include_usage=include_usage)
        if include_usage:
            yield self._chunk([], include_usage=True, usage=self._usage())

    def _chunk(
        self, choices: Sequence[Json], *, include_usage: bool, usage: Usage | None = None
    ) -> bytes:
        chunk = {**self._identity.to_json(self._form.chunk_kind), "choices": choices}
        if include_usage:
            chunk["usage"] = None if usage is None else usage.to_json()
        return msgspec.json.encode(chunk)

    def _usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self._num_prompt_tokens,
            num_new_tokens=sum(len(live.committed) for live in self._live),
        )

    async def _all(self) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        async with aclosing(self._stream):
            yield self._first
            async for each in self._stream:
                yield each

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """None: see ``chunks``."""
        async with self._admission.slot():
            prepared = self._prepared = await self._prepare()
            self._form = prepared.form
            job = prepared.job
            self._identity = Identity.new(self._form.prefix, job.model.model_id)
            _log.debug(
                "%s: model %s, user %r",
                self._identity.request_id,
                job.model.model_id,
                prepared.user,
            )
            meter = self._metrics.meter(job.model.model_id, self._came)
            self._num_prompt_tokens = job.num_prompt_tokens
            meter.prompts(job.num_prompt_tokens)
            self._live = [
                LiveSequence(
                    model_id=job.model.model_id,
                    request=replace(each, request_id=self._identity.request_id),
                )
                for each in job.requests
            ]
            choices = [
                _choice(self._gateway, live, job, meter, index)
                for index, live in enumerate(self._live)
            ]
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


def deployed_model(gateway: Gateway, model_id: str) -> ModelStatus:
    """The model of that name. Raises ``ApiError`` (404) if it is not deployed."""
    for status in gateway.models():
        if status.model_id == model_id:
            return status
    raise ApiError(
        404, f"there is no model {model_id[:200]!r} here", code="model_not_found", param="model"
    )


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


async def _choice(
    gateway: Gateway, live: LiveSequence, job: Job, meter: RequestMeter, index: int
) -> AsyncGenerator[Delta, None]:
    text = ChoiceText(
        live.request,
        job.model.tokenizer,
        stop=job.stop,
        starts_text=job.starts_text,
        echo=job.echoes[index],
    )
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


def _join(deltas: Sequence[Delta]) -> Delta:
    return Delta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish_reason=deltas[-1].finish_reason,
    )
