"""The web page: its files, as packaged. They contain no data, and require no key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from potluck.api.dialect import Endpoint
from potluck.api.errors import ApiError

PAGE_PATH = "/"
FILES_PREFIX = "/page/"

_INDEX = "index.html"
_ROOT_TEXT = "Ollama is running"
"""Ollama's answer, by which many clients recognize a server; its command line begins with it."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Only the page's own files can run scripts or define styles, and it connects only to this server.
"""

_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",  # cached, and revalidated by ETag, because agents are updated
    }
)


async def _root_text(request: Request) -> Response:
    return PlainTextResponse(_ROOT_TEXT, headers={"Vary": "Accept"})


def endpoint_without_page() -> Endpoint:
    """Return the endpoint of an agent that serves no page."""
    return Endpoint(method="GET", path=PAGE_PATH, answer=_root_text)


class Asset(Protocol):
    """A file of the page."""

    @property
    def content(self) -> bytes:
        """The contents of the file."""
        ...

    @property
    def media_type(self) -> str:
        """Its ``Content-Type``."""
        ...


class PageEndpoints:
    """Serves the page. ``assets`` are its files by path, including ``index.html``."""

    def __init__(self, assets: Mapping[str, Asset]) -> None:
        self._assets = assets
        self._etags = {
            path: f'"{hashlib.sha256(asset.content).hexdigest()[:32]}"'
            for path, asset in assets.items()
        }

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(method="GET", path=PAGE_PATH, answer=self.index),
            Endpoint(method="GET", path=f"{FILES_PREFIX}{{path:path}}", answer=self.file),
        )

    async def index(self, request: Request) -> Response:
        """``GET /``: the page for browsers, and Ollama's text for other clients."""
        if "text/html" not in request.headers.get("accept", ""):
            return await _root_text(request)
        response = self._file(_INDEX, request)
        response.headers["Vary"] = "Accept"
        return response

    async def file(self, request: Request) -> Response:
        """``GET /page/{path}``."""
        return self._file(request.path_params["path"], request)

    def _file(self, path: str, request: Request) -> Response:
        asset = self._assets.get(path)
        if asset is None:
            raise ApiError(404, f"the page has no file {path[:200]!r}", code="unknown_url")
        etag = self._etags[path]
        headers = {**_HEADERS, "ETag": etag}
        known = {each.strip() for each in request.headers.get("if-none-match", "").split(",")}
        if etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)
