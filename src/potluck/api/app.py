"""Routes: the endpoints and the code that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.api.admission import Admission
from potluck.api.cluster import ClusterEndpoints
from potluck.api.config import ApiConfig
from potluck.api.cors import Cors
from potluck.api.dialect import Dialect, Endpoint
from potluck.api.dialects.anthropic import Anthropic
from potluck.api.dialects.ollama import Ollama
from potluck.api.dialects.openai import OpenAI
from potluck.api.errors import ApiError, retry_after
from potluck.api.guard import Guard
from potluck.api.metrics import ApiMetrics
from potluck.api.page import Asset, PageEndpoints, endpoint_without_page
from potluck.api.rights import Rights
from potluck.api.service import ApiService, json_response
from potluck.types.console import Console
from potluck.types.deployment import DeploymentState
from potluck.types.gateway import Gateway

DIALECTS: Sequence[Dialect] = (OpenAI(), Anthropic(), Ollama())
"""The dialects. The first one is used for paths that belong to no other."""


def build_app(
    gateway: Gateway, config: ApiConfig, ending: asyncio.Event, page: Page | None = None
) -> Starlette:
    """Build the ASGI application. Once ``ending`` is set, every pending response ends with an
    error.

    ``page`` is the web page; without it, its endpoints do not exist.
    """
    admission = Admission(config.limits)
    metrics = ApiMetrics(gateway, admission)
    service = ApiService(gateway, config, admission, metrics, ending)
    rights = Rights(config.keys, None if page is None else page.console)
    own = _Own(gateway, metrics, gives_reasons=not rights.needs_key)
    endpoints = {dialect: tuple(dialect.endpoints(service)) for dialect in DIALECTS}
    endpoints[DIALECTS[0]] += own.endpoints()
    if page is None:
        endpoints[DIALECTS[0]] += (endpoint_without_page(),)
    else:
        cluster = ClusterEndpoints(page.console, rights, config.limits, ending)
        endpoints[DIALECTS[0]] += cluster.endpoints() + PageEndpoints(page.assets).endpoints()
    guard = Middleware(
        Guard,
        endpoints=endpoints,
        rights=rights,
        cors=Cors(config.cors_origins),
        metrics=metrics,
    )
    app = Starlette(
        routes=[
            Route(endpoint.path, endpoint.answer, methods=[endpoint.method])
            for each in endpoints.values()
            for endpoint in each
        ],
        middleware=[guard],
        exception_handlers={HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The requirements of the web page: its files, and the agent that it controls."""

    console: Console
    assets: Mapping[str, Asset]


class _Own:
    """Endpoints that belong to no dialect: health, readiness, the cluster's state and metrics.

    Readiness requires no key: it ``gives_reasons`` only if nothing else requires one either.
    """

    def __init__(self, gateway: Gateway, metrics: ApiMetrics, *, gives_reasons: bool) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._gives_reasons = gives_reasons

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(method="GET", path="/health", answer=self.health),
            Endpoint(method="GET", path="/health/ready", answer=self.ready),
            Endpoint(method="GET", path="/cluster", answer=self.cluster),
            Endpoint(method="GET", path="/metrics", answer=self.metrics),
        )

    async def health(self, request: Request) -> Response:
        """``GET /health``: the agent's event loop is running."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """``GET /health/ready``: a deployed model is ready."""
        models = self._gateway.models()
        if any(status.state is DeploymentState.READY for status in models):
            return json_response({"status": "ready"})
        what = "no deployed model is ready to answer" if models else "no model is deployed"
        if models and self._gives_reasons:
            reasons = (f"{each.model_id}: {each.reason or each.state.value}" for each in models)
            what = f"{what}: {'; '.join(reasons)}"
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
    """Handle requests that the router rejects: unknown path or method not allowed."""
    if not isinstance(error, HTTPException):
        raise error
    where = f"{request.method} {request.url.path[:200]}"
    raise ApiError(
        error.status_code,
        f"{where} does not exist: {error.detail}",
        code="unknown_url",
        headers=error.headers,
    )
