"""What a dialect is: addresses, how its clients show their keys, and how it writes errors."""

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
    """An address and what answers it. ``path`` may end with a parameter, ``/{name:path}``."""

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Response]]


class Dialect(Protocol):
    """An API that clients speak. Each is a folder of ``potluck.api.dialects``."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """Its addresses, answered with ``service``."""
        ...

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The API key that a client shows, if it shows one."""
        ...

    def error(self, error: ApiError) -> bytes:
        """Return ``error`` as the JSON of an answer."""
        ...


def bearer_key(headers: Mapping[str, str]) -> str | None:
    """The key of a header ``Authorization: Bearer KEY``."""
    match = _BEARER.fullmatch(headers.get("authorization", "").strip())
    return None if match is None else match[1]
