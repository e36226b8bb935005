"""Which web pages of other origins may use the address: an explicit list.

https://fetch.spec.whatwg.org/#http-cors-protocol. No cookie is ever read here, so answers allow no
credentials; API keys come in headers, which the page sends itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from potluck.errors import ParameterError

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s\\,]+", re.IGNORECASE)
"""Of a page, and of a browser's extension or a desktop application that is one."""

_MAX_AGE_SECONDS = 600
_MAX_ASKED_HEADERS = 2048
"""Characters of ``Access-Control-Request-Headers``; SDKs send some ten names."""
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")

_VARY = (b"vary", b"Origin")
_EXPOSED = (b"access-control-expose-headers", b"Retry-After, WWW-Authenticate")


def checked_origin(text: str) -> str:
    """Return an origin as browsers write it. Raises ``ParameterError`` if it is none."""
    origin = text.removesuffix("/").lower()
    if not _ORIGIN.fullmatch(origin):
        raise ParameterError(
            "cors-origin",
            f"--cors-origin {text} is no origin",
            hint="give the scheme, the host and the port as in http://localhost:3000; there is no "
            "wildcard",
        )
    return origin


class Cors:
    """The pages that may use the address."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request comes from a page of the list."""
        return headers.get("origin", "").lower() in self._origins

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Return whether a browser asks what a page of the list may send."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and self.allows(headers)
        )

    def preflight(self, headers: Mapping[str, str]) -> Response:
        """Return the answer to a preflight, less what ``headers`` gives for every answer."""
        answer = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE, HEAD",
            "Access-Control-Max-Age": str(_MAX_AGE_SECONDS),
        }
        asked = headers.get("access-control-request-headers", "")
        if asked and len(asked) <= _MAX_ASKED_HEADERS and _HEADER_NAMES.fullmatch(asked):
            answer["Access-Control-Allow-Headers"] = asked
        if headers.get("access-control-request-private-network") == "true":
            answer["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=answer)

    def headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        """Return what every answer to a request gets, errors as well."""
        if not self._origins:
            return []
        if not self.allows(headers):
            return [_VARY]
        origin = headers["origin"].encode("latin-1")
        return [_VARY, (b"access-control-allow-origin", origin), _EXPOSED]
