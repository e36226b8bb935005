"""The interface of a dialect: endpoints, API keys and the format of errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.errors import ApiError
from potluck.api.service import ApiService

_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path and its handler. ``path`` may end with a parameter, ``/{name:path}``."""

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Response]]


class Dialect(Protocol):
    """An API that clients use. Each dialect is a package in ``potluck.api.dialects``."""

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """Return the endpoints, which use ``service``."""
        ...

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """Return the API key in a request, if there is one."""
        ...

    def error(self, error: ApiError) -> bytes:
        """Return ``error`` as the JSON body of a response."""
        ...


def bearer_key(headers: Mapping[str, str]) -> str | None:
    """Return the key in the header ``Authorization: Bearer KEY``."""
    match = _BEARER.fullmatch(headers.get("authorization", "").strip())
    return None if match is None else match[1]
