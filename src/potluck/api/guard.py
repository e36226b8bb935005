"""Middleware for all endpoints: authentication, error responses and request counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from potluck.api.cluster import ACCESS_PATH
from potluck.api.cors import Cors
from potluck.api.dialect import Dialect, Endpoint
from potluck.api.errors import (
    ApiError,
    ClientGoneError,
    forget_frames,
    internal_error,
    to_api_error,
)
from potluck.api.metrics import ApiMetrics
from potluck.api.page import FILES_PREFIX, PAGE_PATH
from potluck.api.rights import Rights
from potluck.errors import PotluckError
from potluck.host.log_rate import LogRateFilter

_log = logging.getLogger(__name__)
_log.addFilter(LogRateFilter())

OPEN_PATHS = frozenset({"/health", "/health/ready"})
"""Paths that require no key: they only show that a server is running, and whether it is ready."""

_KEYLESS_PATHS = frozenset({PAGE_PATH, ACCESS_PATH})
"""Paths that also require no key, which the page uses to find out that it needs one."""

_LONGEST_PATH = 256
"""Maximum length of a path: none is as long, except for model names at its end."""

_CLIENT_CLOSED_REQUEST = 499
"""nginx's status for clients that disconnected. It is counted, never sent."""


class Guard:
    """ASGI middleware that authenticates requests, converts errors to responses, and counts
    requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        endpoints: Mapping[Dialect, Sequence[Endpoint]],
        rights: Rights,
        cors: Cors,
        metrics: ApiMetrics,
    ) -> None:
        self._app = app
        self._table = PathTable(endpoints)
        self._rights = rights
        self._cors = cors
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None
        dialect, label = self._table.find(scope["path"])
        headers = Headers(scope=scope)
        cors_headers = self._cors.headers(headers)

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if cors_headers:
                    message = {**message, "headers": [*message["headers"], *cors_headers]}
            await send(message)

        refusal: ApiError | None = None
        try:
            await self._answer_of(scope, headers, dialect)(scope, receive, watched_send)
        except ClientGoneError as error:
            forget_frames(error)
            status = _CLIENT_CLOSED_REQUEST
        except PotluckError as error:
            forget_frames(error)
            refusal = to_api_error(error)
        except Exception:  # noqa: BLE001 - the boundary: the client gets an answer whatever it is
            _log.exception("a request failed: %s", scope["path"])
            refusal = internal_error()
        if refusal is not None and status is None:
            await _response(refusal, dialect)(scope, receive, watched_send)
        self._metrics.count_request(label, status or 500)

    def _answer_of(self, scope: Scope, headers: Headers, dialect: Dialect) -> ASGIApp:
        """Return the handler of a request. Raises ``ApiError`` if the request is not allowed."""
        if self._cors.is_preflight(scope["method"], headers):
            if not self._rights.needs_key:
                _refuse_foreign_names(headers)
            return self._cors.preflight(headers)  # a preflight has no key
        self._check(scope, headers, dialect)
        return self._as_get if scope["method"] == "HEAD" else self._app

    async def _as_get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer HEAD as GET; uvicorn, which has its own scope, omits the body."""
        await self._app({**scope, "method": "GET"}, receive, send)

    def _check(self, scope: Scope, headers: Headers, dialect: Dialect) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        if not self._rights.needs_key:
            _refuse_foreign_names(headers)
            if not self._cors.allows(headers):
                _refuse_foreign_pages(headers, scope["scheme"])
            return
        if scope["path"] in _KEYLESS_PATHS or scope["path"].startswith(FILES_PREFIX):
            return
        key = dialect.key_of(headers)
        if key is None:
            raise _unauthorized("an API key is required: send 'Authorization: Bearer KEY'")
        if self._rights.holder(key) is None:
            raise _unauthorized("the API key is not valid")


class PathTable:
    """Maps paths to dialects and to labels in metrics."""

    def __init__(self, endpoints: Mapping[Dialect, Sequence[Endpoint]]) -> None:
        self._default = next(iter(endpoints))
        self._exact: dict[str, Dialect] = {}
        self._prefixes: dict[str, Dialect] = {}
        self._roots: dict[str, set[Dialect]] = {}
        for dialect, each in endpoints.items():
            for endpoint in each:
                prefix, parameter, _ = endpoint.path.partition("/{")
                (self._prefixes if parameter else self._exact)[prefix] = dialect
                self._roots.setdefault(_root(prefix), set()).add(dialect)

    def find(self, path: str) -> tuple[Dialect, str]:
        """Return the dialect of ``path``, and a label from a small fixed set."""
        if path in self._exact:
            return self._exact[path], path
        for prefix, dialect in self._prefixes.items():
            if path.startswith(f"{prefix}/"):
                return dialect, prefix
        return self._dialect_of_other(path), "other"

    def _dialect_of_other(self, path: str) -> Dialect:
        """Choose the dialect of an unknown path, so that the client can parse the error."""
        above = path[:_LONGEST_PATH]
        while above := above.rpartition("/")[0]:
            if above in self._exact:
                return self._exact[above]
        dialects = self._roots.get(_root(path), set())
        return next(iter(dialects)) if len(dialects) == 1 else self._default


def _root(path: str) -> str:
    """Return the first segment of a path."""
    return path.split("/", 2)[1] if path.startswith("/") else ""


def _response(error: ApiError, dialect: Dialect) -> Response:
    return Response(
        dialect.error(error),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _refuse_foreign_names(headers: Mapping[str, str]) -> None:
    """Reject host names that anyone could control, if the API requires no key.

    The ``Host`` of such a request reveals a page whose own name resolves to loopback (DNS
    rebinding).
    """
    host = headers.get("host", "")
    if host and not _is_ip_or_localhost(host):
        raise ApiError(
            403,
            "without API keys this server only accepts requests addressed to an IP "
            "address or localhost",
            code="forbidden_host",
        )


def _refuse_foreign_pages(headers: Mapping[str, str], scheme: str) -> None:
    """Keep web pages of other origins from using an API that requires no key.

    A browser lets any page send simple requests to loopback, and names the page's origin in
    ``Origin``.
    """
    origin = headers.get("origin")
    if origin is not None and origin != f"{scheme}://{headers.get('host', '')}":
        raise ApiError(
            403,
            "without API keys this server rejects requests from pages of other origins; "
            "allow an origin with --cors-origin",
            code="forbidden_origin",
        )


def _is_ip_or_localhost(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
