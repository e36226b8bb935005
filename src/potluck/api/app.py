"""The addresses, and which code answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.admission import Admission, Body, BodyReader, Preparation, in_thread
from potluck.api.answer import Answer, Prepared, deployed_model
from potluck.api.config import ApiConfig
from potluck.api.connection import EventStream, while_connected
from potluck.api.errors import ApiError, invalid, retry_after, to_api_error
from potluck.api.guard import Guard, error_response
from potluck.api.metrics import ApiMetrics
from potluck.api.parameters import Job, chat_job, completion_job
from potluck.api.responses import ChatFormat, CompletionFormat, Format, model_json
from potluck.api.schema import CommonBody, parse_chat, parse_completion
from potluck.errors import PotluckError
from potluck.types.gateway import Gateway, ModelState, ServedModel

_DECODED_AT_ONCE_BYTES = 8 * 1024
"""In the event loop: to change threads would take longer than to decode, about 0.1 ms."""

_Asked = TypeVar("_Asked", bound=CommonBody)


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
    app.add_api_route("/health/ready", api.ready, methods=["GET"], response_model=None)
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
        self._preparation = Preparation()
        self._metrics = metrics
        self._ending = ending

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._answer(request, self._prepare_chat, prompt_param="messages")

    async def complete(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._answer(request, self._prepare_completion, prompt_param="prompt")

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

    async def ready(self) -> Response:
        """``GET /health/ready``: some deployed model can answer. It names none: no key is asked."""
        models = self._gateway.models()
        if any(status.state is ModelState.READY for status in models):
            return _json({"status": "ready"})
        what = "no deployed model is ready to answer" if models else "no model is deployed"
        known = [each.ready_in_seconds for each in models if each.ready_in_seconds is not None]
        raise ApiError(503, what, code="not_ready", headers=retry_after(min(known, default=None)))

    async def cluster(self) -> Response:
        """``GET /cluster``."""
        await self._gateway.refresh_cluster()
        return _json(self._gateway.cluster_state())

    async def metrics(self) -> Response:
        """``GET /metrics``."""
        await self._gateway.refresh_metrics()
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def _model(self, model_id: str) -> ServedModel:
        """The model, ready or not: where it is being loaded, the request waits at the gateway."""
        deployed_model(self._gateway, model_id)
        return await self._gateway.served_model(model_id)

    def _told(self, error: PotluckError, answer: Answer, prompt_param: str) -> ApiError:
        """What the client is told of ``error``, which the gateway raised for its request."""
        models = self._gateway.models()
        status = next((each for each in models if each.model_id == answer.model_id), None)
        return to_api_error(error, prompt_param=prompt_param, status=status)

    async def _prepare_chat(self, body: Body) -> Prepared:
        async with self._preparation.turn(len(body.data)):
            asked = await _decoded(parse_chat, body)
            model = await self._model(asked.model)
            form = ChatFormat(tokenizer=model.tokenizer, logprobs=bool(asked.logprobs))
            job = await in_thread(lambda: chat_job(asked, model, self._limits))
            return _prepared(asked, form, job)

    async def _prepare_completion(self, body: Body) -> Prepared:
        async with self._preparation.turn(len(body.data)):
            asked = await _decoded(parse_completion, body)
            model = await self._model(asked.model)
            form = CompletionFormat(tokenizer=model.tokenizer, logprobs=asked.logprobs is not None)
            job = await in_thread(lambda: completion_job(asked, model, self._limits))
            return _prepared(asked, form, job)

    async def _answer(
        self,
        request: Request,
        prepare: Callable[[Body], Awaitable[Prepared]],
        *,
        prompt_param: str,
    ) -> Response:
        async with self._bodies.read(request) as body:

            async def prepare_and_release() -> Prepared:
                prepared = await prepare(body)
                body.release()
                return prepared

            answer = Answer(
                self._gateway,
                self._admission,
                self._metrics,
                prepare=prepare_and_release,
                silence_seconds=self._limits.silence_seconds,
            )

            def told(error: PotluckError) -> ApiError:
                return self._told(error, answer, prompt_param)

            try:
                prepared = await while_connected(request.receive, self._ending, answer.start())
                if not prepared.is_stream:
                    whole = await while_connected(request.receive, self._ending, answer.whole())
                    return Response(whole, media_type="application/json")
                chunks = answer.chunks(include_usage=prepared.include_usage)
                return EventStream(await anext(chunks), chunks, self._ending, told)
            except BaseException as error:
                await answer.aclose()
                if isinstance(error, PotluckError):
                    raise told(error) from error
                raise


async def _decoded(parse: Callable[[bytearray], _Asked], body: Body) -> _Asked:
    if len(body.data) <= _DECODED_AT_ONCE_BYTES:
        return parse(body.data)
    return await in_thread(lambda: parse(body.data))


def _prepared(asked: CommonBody, form: Format, job: Job) -> Prepared:
    options = asked.stream_options
    if options is not None and not asked.stream:
        raise invalid("stream_options", "stream_options is for streams: set stream")
    return Prepared(
        job=job,
        form=form,
        is_stream=bool(asked.stream),
        include_usage=options is not None and bool(options.include_usage),
        user=asked.user,
    )


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
