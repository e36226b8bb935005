"""Shared by all dialects: reads bodies, resolves models, runs answers and sends them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.admission import LARGE_BODY_BYTES, Admission, Body, BodyReader, in_thread
from potluck.api.answer import Answer, Prepared
from potluck.api.config import ApiConfig, ApiLimits
from potluck.api.connection import AnswerStream, while_connected
from potluck.api.errors import ApiError, invalid, renamed, to_api_error
from potluck.api.jobs import Job
from potluck.api.metrics import ApiMetrics
from potluck.api.system_lines import encoder_without_lines
from potluck.api.vectors import PreparedVectors, compute
from potluck.errors import PotluckError
from potluck.grammars.check import GrammarChecker
from potluck.types.gateway import Gateway, ModelStatus, ServedModel

_DECODED_AT_ONCE_BYTES = 8 * 1024
"""Bodies up to this size are decoded in the event loop: switching threads would take longer than
decoding, about 0.1 ms."""

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

_MODEL = attrgetter("model")


class ApiService:
    """For use in the event loop. Once ``ending`` is set, every response ends with an error."""

    def __init__(
        self,
        gateway: Gateway,
        config: ApiConfig,
        admission: Admission,
        metrics: ApiMetrics,
        ending: asyncio.Event,
    ) -> None:
        self._gateway = gateway
        self._limits = config.limits
        self._dropped_system_lines = config.dropped_system_lines
        self._strict_tools = config.strict_tools
        self._admission = admission
        self._bodies = BodyReader(config.limits)
        self._large_body = asyncio.Lock()
        self._metrics = metrics
        self._ending = ending
        self._grammars = GrammarChecker()

    @property
    def gateway(self) -> Gateway:
        """The agent's gateway."""
        return self._gateway

    @property
    def strict_tools(self) -> bool:
        """Whether tools that only another server executes are refused instead of ignored."""
        return self._strict_tools

    async def computed(
        self,
        request: Request,
        parse: Callable[[bytearray], _T],
        compute: Callable[[_T, ServedModel], _R],
        *,
        prompt_param: str,
        model_of: Callable[[_T], str] = _MODEL,
    ) -> _R:
        """Answer a request that requires no sequence.

        ``compute`` runs in a thread; the other arguments are as in ``answer``. Raises ``ApiError``.
        """
        async with self._bodies.read(request) as body:

            async def work() -> _R:
                async with self._admission.slot():
                    return await self._prepared(
                        body, parse, model_of, lambda parsed, model, _: compute(parsed, model)
                    )

            try:
                return await while_connected(request.receive, self._ending, work())
            except PotluckError as error:
                raise self._api_error(error, None, prompt_param) from error

    async def model(self, model_id: str) -> ServedModel:
        """Return the model, ready or not: while it loads, requests wait at the gateway."""
        self.status(model_id)
        model = await self._gateway.served_model(model_id)
        prefixes = self._dropped_system_lines
        if not prefixes:
            return model
        return replace(model, encode_chat=encoder_without_lines(model.encode_chat, prefixes))

    def model_id(self, model_id: str | None) -> str:
        """Return the id of the requested model; the deployed one if the request names none.

        Raises ``ApiError`` if there are several.
        """
        if model_id is not None:
            return model_id
        known = [status.model_id for status in self._gateway.models()]
        if len(known) != 1:
            raise invalid(
                "model",
                f"model is required: {len(known)} models are deployed",
                code="missing_required_parameter",
            )
        return known[0]

    def status(self, model_id: str) -> ModelStatus:
        """Return the status of the model. Raises ``ApiError`` (404) if it is not deployed."""
        for status in self._gateway.models():
            if status.model_id == model_id:
                return status
        raise ApiError(
            404, f"model {model_id[:200]!r} is not deployed", code="model_not_found", param="model"
        )

    async def answer(
        self,
        request: Request,
        parse: Callable[[bytearray], _T],
        prepare: Callable[[_T, ServedModel, ApiLimits], Prepared],
        *,
        prompt_param: str,
        model_of: Callable[[_T], str] = _MODEL,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Answer a text request.

        ``parse`` parses its body, ``model_of`` returns the name of the requested model (by default
        the field ``model``), and ``prepare``, which is also given the limits on clients, does the
        rest in a thread. ``prompt_param`` is the dialect's name of the prompt, and ``names`` maps
        other fields of ``GenerationRequest`` to the dialect's names.
        """
        came = time.perf_counter()
        async with self._bodies.read(request) as body, AsyncExitStack() as ending:
            model_id: str | None = None

            async def begin() -> tuple[Prepared, Answer]:
                nonlocal model_id
                async with AsyncExitStack() as held:
                    await held.enter_async_context(self._admission.slot())
                    prepared = await self._prepared(body, parse, model_of, prepare)
                    model_id = prepared.job.model.model_id
                    body.release()
                    await self._check_grammar(prepared.job)
                    answer = Answer(
                        prepared,
                        self._gateway,
                        self._metrics.meter(model_id, came),
                        held.pop_all(),
                        silence_seconds=self._limits.silence_seconds,
                    )
                ending.push_async_callback(answer.aclose)
                await answer.start()
                return prepared, answer

            def api_error(error: PotluckError) -> ApiError:
                return renamed(self._api_error(error, model_id, prompt_param), names)

            try:
                prepared, answer = await while_connected(request.receive, self._ending, begin())
                if not prepared.is_stream:
                    whole = await while_connected(request.receive, self._ending, answer.whole())
                    return Response(whole, media_type="application/json")
                pieces = answer.pieces()
                first = await anext(pieces)
            except PotluckError as error:
                raise api_error(error) from error
            ending.pop_all()  # the stream ends the answer
            return AnswerStream(first, pieces, self._ending, prepared.renderer, api_error)

    async def _check_grammar(self, job: Job) -> None:
        """Raise ``ParameterError`` for a grammar that the last stage could not apply."""
        grammar = job.requests[0].grammar if job.requests else None
        if grammar is not None:
            await in_thread(
                partial(
                    self._grammars.check_for,
                    job.model.tokenizer,
                    grammar,
                    parameter=job.grammar_param,
                )
            )

    async def vectors(
        self,
        request: Request,
        parse: Callable[[bytearray], _T],
        prepare: Callable[[_T, ServedModel, ApiLimits], PreparedVectors],
        *,
        prompt_param: str,
        model_of: Callable[[_T], str] = _MODEL,
    ) -> Response:
        """Answer a request for vectors; the arguments are as in ``answer``."""
        async with self._bodies.read(request) as body:
            model_id: str | None = None

            async def work() -> bytes:
                nonlocal model_id
                async with self._admission.slot():
                    prepared = await self._prepared(body, parse, model_of, prepare)
                    body.release()
                    model_id = prepared.job.model.model_id
                    _log.debug(
                        "%s: model %s, user %r", prepared.request_id, model_id, prepared.user
                    )
                    vectors = await compute(prepared, self._gateway, self._metrics)
                    return await in_thread(lambda: prepared.write(vectors))

            try:
                whole = await while_connected(request.receive, self._ending, work())
            except PotluckError as error:
                raise self._api_error(error, model_id, prompt_param) from error
            return Response(whole, media_type="application/json")

    async def _prepared(
        self,
        body: Body,
        parse: Callable[[bytearray], _T],
        model_of: Callable[[_T], str],
        prepare: Callable[[_T, ServedModel, ApiLimits], _R],
    ) -> _R:
        """Parse a body and prepare its answer, in a thread if that takes long; large bodies one at
        a time.

        Raises ``PotluckError``.
        """
        is_large = len(body.data) > LARGE_BODY_BYTES
        turn: asyncio.Lock | nullcontext[None] = self._large_body if is_large else nullcontext()
        async with turn:
            if len(body.data) <= _DECODED_AT_ONCE_BYTES:
                parsed = parse(body.data)
            else:
                parsed = await in_thread(lambda: parse(body.data))
            model = await self.model(model_of(parsed))
            return await in_thread(lambda: prepare(parsed, model, self._limits))

    def _api_error(self, error: PotluckError, model_id: str | None, prompt_param: str) -> ApiError:
        """Convert ``error``, which the gateway raised for a request, to the error that the client
        sees.
        """
        models = self._gateway.models()
        status = next((each for each in models if each.model_id == model_id), None)
        return to_api_error(error, prompt_param=prompt_param, status=status)


def json_response(value: object, *, status: int = 200) -> Response:
    """Return ``value`` as a JSON response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
