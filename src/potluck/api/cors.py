"""CORS: an explicit list of other origins whose web pages can use the API.

https://fetch.spec.whatwg.org/#http-cors-protocol. No cookies are used, so responses do not allow
credentials; the page itself sends the API key in a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from potluck.errors import ParameterError

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s\\,]+", re.IGNORECASE)
"""Schemes of web pages, and of browser extensions and desktop applications."""

_MAX_AGE_SECONDS = 600
_MAX_REQUESTED_HEADERS_LENGTH = 2048
"""Maximum length of ``Access-Control-Request-Headers``; SDKs send about ten names."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")

_VARY = (b"vary", b"Origin")
_EXPOSED = (b"access-control-expose-headers", b"Retry-After, WWW-Authenticate")


def checked_origin(text: str) -> str:
    """Return an origin as browsers write it. Raises ``ParameterError`` if ``text`` is not an
    origin.
    """
    origin = text.removesuffix("/").lower()
    if not _ORIGIN.fullmatch(origin):
        raise ParameterError(
            "cors-origin",
            f"--cors-origin {text} is not an origin",
            hint="give scheme, host and port, for example http://localhost:3000; wildcards are "
            "not supported",
        )
    return origin


class Cors:
    """The origins that can use the API."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request comes from an allowed origin."""
        return headers.get("origin", "").lower() in self._origins

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request is a preflight from an allowed origin."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and self.allows(headers)
        )

    def preflight(self, headers: Mapping[str, str]) -> Response:
        """Return the response to a preflight, without the headers that ``headers`` adds to every
        response.
        """
        answer = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE, HEAD",
            "Access-Control-Max-Age": str(_MAX_AGE_SECONDS),
        }
        requested = headers.get("access-control-request-headers", "")
        if (
            requested
            and len(requested) <= _MAX_REQUESTED_HEADERS_LENGTH
            and _HEADER_NAMES.fullmatch(requested)
        ):
            answer["Access-Control-Allow-Headers"] = requested
        if headers.get("access-control-request-private-network") == "true":
            answer["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=answer)

    def headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        """Return the CORS headers of a response; they are added to errors as well."""
        if not self._origins:
            return []
        if not self.allows(headers):
            return [_VARY]
        origin = headers["origin"].encode("latin-1")
        return [_VARY, (b"access-control-allow-origin", origin), _EXPOSED]
