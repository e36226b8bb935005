"""One request being answered: its sequences at the gateway, merged as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from potluck.api.admission import Admission
from potluck.api.choice import ChoiceText, Delta
from potluck.api.errors import ApiError
from potluck.api.metrics import ApiMetrics, RequestMeter
from potluck.api.parameters import Job
from potluck.api.responses import Format, Identity, Json, Usage
from potluck.errors import EngineError
from potluck.types.gateway import Gateway, LiveSequence, ModelState, ModelStatus, ServedModel

T = TypeVar("T")


class Answer:
    """What answers one request. Nothing happens before :meth:`whole` or :meth:`chunks`.

    ``make_job`` runs on another thread: to tokenize a long prompt takes a while. ``form`` is how
    the answer is written.
    """

    def __init__(
        self,
        gateway: Gateway,
        admission: Admission,
        metrics: ApiMetrics,
        *,
        model: ServedModel,
        form: Format,
        make_job: Callable[[], Job],
    ) -> None:
        self._gateway = gateway
        self._admission = admission
        self._model = model
        self._form = form
        self._make_job = make_job
        self._identity = Identity.new(form.prefix, model.model_id)
        self._meter = metrics.meter(model.model_id, time.perf_counter())
        self._live: list[LiveSequence] = []
        self._num_prompt_tokens = 0

    @property
    def request_id(self) -> str:
        """The id that the client sees."""
        return self._identity.request_id

    async def whole(self) -> bytes:
        """The answer as one JSON object. Raises ``PotluckError``; cancelled, it ends at once."""
        deltas: dict[int, list[Delta]] = {}
        async with aclosing(self._deltas()) as stream:
            async for index, delta in stream:
                deltas.setdefault(index, []).append(delta)
        choices = [self._form.whole(index, _join(deltas[index])) for index in sorted(deltas)]
        return msgspec.json.encode(
            {
                **self._identity.to_json(self._form.whole_kind),
                "choices": choices,
                "usage": self._usage().to_json(),
            }
        )

    async def chunks(self, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The answer as the JSON objects of a stream. Closed early, its sequences are cancelled.

        Raises ``PotluckError``, before the first chunk or later.
        """
        begun: set[int] = set()
        async with aclosing(self._deltas()) as stream:
            async for index, delta in stream:
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

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        async with self._admission.slot():
            job = await asyncio.to_thread(self._make_job)
            self._num_prompt_tokens = job.num_prompt_tokens
            self._meter.prompts(job.num_prompt_tokens)
            self._live = [
                LiveSequence(model_id=job.model.model_id, request=each) for each in job.requests
            ]
            choices = [
                _choice(self._gateway, live, job, self._meter, index)
                for index, live in enumerate(self._live)
            ]
            async with aclosing(merge(choices)) as merged:
                async for index, delta in merged:
                    if not delta.is_empty:
                        yield index, delta


def deployed_model(gateway: Gateway, model_id: str) -> ModelStatus:
    """The model of that name. Raises ``ApiError`` (404) if it is not deployed."""
    for status in gateway.models():
        if status.model_id == model_id:
            return status
    raise ApiError(
        404, f"there is no model {model_id[:200]!r} here", code="model_not_found", param="model"
    )


def require_ready(status: ModelStatus, retry_after_seconds: int) -> None:
    """Raise ``ApiError`` (503) if the model cannot answer now."""
    if status.state is not ModelState.READY:
        reason = f": {status.reason}" if status.reason else ""
        raise ApiError(
            503,
            f"the model {status.model_id} is {status.state.value}{reason}",
            code="model_not_ready",
            headers={"Retry-After": str(retry_after_seconds)},
        )


async def merge(
    sources: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all ``sources`` as they come, each with its source's index.

    All sources are closed when this ends, however it does.
    """
    pending: dict[asyncio.Task[T], int] = {}
    try:
        for index, source in enumerate(sources):
            pending[asyncio.create_task(_next(source))] = index
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.create_task(_next(sources[index]))] = index
                yield index, item
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)


async def _choice(
    gateway: Gateway, live: LiveSequence, job: Job, meter: RequestMeter, index: int
) -> AsyncGenerator[Delta, None]:
    text = ChoiceText(live.request, job.model.tokenizer, stop=job.stop, starts_text=job.starts_text)
    async with aclosing(gateway.generate(live)) as updates:
        async for token in updates:
            live.committed.append(token)
            meter.token(index)
            delta = text.push(token)
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
