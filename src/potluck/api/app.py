"""The addresses, and which code answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.admission import Admission
from potluck.api.config import ApiConfig
from potluck.api.cors import Cors
from potluck.api.dialect import Dialect, Endpoint
from potluck.api.dialects.anthropic import Anthropic
from potluck.api.dialects.ollama import Ollama
from potluck.api.dialects.openai import OpenAI
from potluck.api.errors import ApiError, retry_after
from potluck.api.guard import Guard
from potluck.api.metrics import ApiMetrics
from potluck.api.service import ApiService, json_response
from potluck.types.gateway import Gateway, ModelState

DIALECTS: Sequence[Dialect] = (OpenAI(), Anthropic(), Ollama())
"""The first is spoken where no other has the address."""


def build_app(gateway: Gateway, config: ApiConfig, ending: asyncio.Event) -> FastAPI:
    """The ASGI application. Once ``ending`` is set, every answer ends with an error."""
    admission = Admission(config.limits)
    metrics = ApiMetrics(gateway, admission)
    service = ApiService(gateway, config, admission, metrics, ending)
    own = _Own(gateway, metrics)
    endpoints = {dialect: tuple(dialect.endpoints(service)) for dialect in DIALECTS}
    endpoints[DIALECTS[0]] += own.endpoints()
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_middleware(
        Guard,
        endpoints=endpoints,
        keys=config.keys,
        cors=Cors(config.cors_origins),
        metrics=metrics,
    )
    app.add_exception_handler(HTTPException, _on_http_exception)
    for each in endpoints.values():
        for endpoint in each:
            app.add_route(endpoint.path, endpoint.answer, methods=[endpoint.method])
    return app


class _Own:
    """What is of no dialect: whether the agent lives, and what it does."""

    def __init__(self, gateway: Gateway, metrics: ApiMetrics) -> None:
        self._gateway = gateway
        self._metrics = metrics

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Their addresses."""
        return (
            Endpoint(method="GET", path="/health", answer=self.health),
            Endpoint(method="GET", path="/health/ready", answer=self.ready),
            Endpoint(method="GET", path="/cluster", answer=self.cluster),
            Endpoint(method="GET", path="/metrics", answer=self.metrics),
        )

    async def health(self, request: Request) -> Response:
        """``GET /health``: the agent's loop turns."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """``GET /health/ready``: some deployed model can answer. It names none: no key is asked."""
        models = self._gateway.models()
        if any(status.state is ModelState.READY for status in models):
            return json_response({"status": "ready"})
        what = "no deployed model is ready to answer" if models else "no model is deployed"
        known = [each.ready_in_seconds for each in models if each.ready_in_seconds is not None]
        raise ApiError(503, what, code="not_ready", headers=retry_after(min(known, default=None)))

    async def cluster(self, request: Request) -> Response:
        """``GET /cluster``."""
        await self._gateway.refresh_cluster()
        return json_response(self._gateway.cluster_state())

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``."""
        await self._gateway.refresh_metrics()
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router refuses: no such address, or not with this method."""
    if not isinstance(error, HTTPException):
        raise error
    where = f"{request.method} {request.url.path[:200]}"
    raise ApiError(
        error.status_code,
        f"there is no {where} here: {error.detail}",
        code="unknown_url",
        headers=error.headers,
    )
