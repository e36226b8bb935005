"""The addresses, and which code answers them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.admission import Admission, BodyReader
from potluck.api.answer import Answer, deployed_model, require_ready
from potluck.api.config import ApiConfig
from potluck.api.connection import EventStream, while_connected
from potluck.api.errors import ApiError, invalid, to_api_error
from potluck.api.guard import Guard, error_response
from potluck.api.metrics import ApiMetrics
from potluck.api.parameters import Job, chat_job, completion_job
from potluck.api.responses import ChatFormat, CompletionFormat, Format, model_json
from potluck.api.schema import CommonBody, parse_chat, parse_completion
from potluck.errors import PotluckError
from potluck.types.gateway import Gateway, ServedModel

_log = logging.getLogger(__name__)


def build_app(gateway: Gateway, config: ApiConfig, ending: asyncio.Event) -> FastAPI:
    """The ASGI application. Once ``ending`` is set, every answer ends with an error."""
    admission = Admission(config.limits)
    metrics = ApiMetrics(gateway, admission)
    api = _Api(gateway, config, admission, metrics, ending)
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_middleware(Guard, keys=config.keys, metrics=metrics)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_api_route("/v1/chat/completions", api.chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", api.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", api.models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model_id:path}", api.model, methods=["GET"], response_model=None)
    app.add_api_route("/health", api.health, methods=["GET"], response_model=None)
    app.add_api_route("/cluster", api.cluster, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", api.metrics, methods=["GET"], response_model=None)
    return app


class _Api:
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
        self._admission = admission
        self._bodies = BodyReader(config.limits)
        self._metrics = metrics
        self._ending = ending

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        async with self._bodies.read(request) as data:
            body = parse_chat(data)
            model = await self._model(body.model)
            return await self._answer(
                request,
                body,
                model,
                ChatFormat(tokenizer=model.tokenizer, logprobs=bool(body.logprobs)),
                lambda: chat_job(body, model, self._limits),
                prompt_param="messages",
            )

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        async with self._bodies.read(request) as data:
            body = parse_completion(data)
            model = await self._model(body.model)
            return await self._answer(
                request,
                body,
                model,
                CompletionFormat(tokenizer=model.tokenizer, logprobs=body.logprobs is not None),
                lambda: completion_job(body, model, self._limits),
                prompt_param="prompt",
            )

    async def models(self) -> Response:
        """``GET /v1/models``."""
        data = [model_json(status) for status in self._gateway.models()]
        return _json({"object": "list", "data": data})

    async def model(self, model_id: str) -> Response:
        """``GET /v1/models/{id}``."""
        return _json(model_json(deployed_model(self._gateway, model_id)))

    async def health(self) -> Response:
        """``GET /health``: the agent's loop turns."""
        return _json({"status": "ok"})

    async def cluster(self) -> Response:
        """``GET /cluster``."""
        await self._gateway.refresh_cluster()
        return _json(self._gateway.cluster_state())

    async def metrics(self) -> Response:
        """``GET /metrics``."""
        await self._gateway.refresh_metrics()
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def _model(self, model_id: str) -> ServedModel:
        require_ready(deployed_model(self._gateway, model_id), self._limits.retry_after_seconds)
        return await self._gateway.served_model(model_id)

    async def _answer(
        self,
        request: Request,
        body: CommonBody,
        model: ServedModel,
        form: Format,
        make_job: Callable[[], Job],
        *,
        prompt_param: str,
    ) -> Response:
        is_stream = bool(body.stream)
        if body.stream_options is not None and not is_stream:
            raise invalid("stream_options", "stream_options is for streams: set stream")
        answer = Answer(
            self._gateway,
            self._admission,
            self._metrics,
            model=model,
            form=form,
            make_job=make_job,
        )
        _log.debug("%s: model %s, user %r", answer.request_id, model.model_id, body.user)
        try:
            if not is_stream:
                whole = await while_connected(request.receive, self._ending, answer.whole())
                return Response(whole, media_type="application/json")
            options = body.stream_options
            chunks = answer.chunks(
                include_usage=options is not None and bool(options.include_usage)
            )
            first = await while_connected(request.receive, self._ending, _first(chunks))
            return EventStream(first, chunks, self._ending)
        except PotluckError as error:
            raise to_api_error(error, prompt_param=prompt_param) from error


async def _first(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router refuses: no such address, or not with this method."""
    if not isinstance(error, HTTPException):
        raise error
    where = f"{request.method} {request.url.path[:200]}"
    return error_response(
        ApiError(
            error.status_code,
            f"there is no {where} here: {error.detail}",
            code="unknown_url",
            headers=error.headers,
        )
    )
