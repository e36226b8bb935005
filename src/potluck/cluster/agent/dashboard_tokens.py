"""Tokens with which the owner of an agent administers it from a browser: ``potluck dashboard``.

Only digests are kept, in this process's memory, so they become invalid when it exits.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from hmac import compare_digest

VALID_SECONDS = 8 * 3600.0
MAX_TOKENS = 16
"""The most tokens valid at one time; the oldest is dropped first."""

_PREFIX = "pt-"
_TOKEN_BYTES = 32
_MAX_TOKEN_CHARACTERS = 512


class DashboardTokens:
    """For one event loop. ``clock`` is in seconds, and monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._valid: dict[bytes, float] = {}

    def make(self) -> str:
        """Return a new token of 256 random bits, valid for ``VALID_SECONDS``."""
        self._forget()
        while len(self._valid) >= MAX_TOKENS:
            del self._valid[next(iter(self._valid))]
        token = _PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        self._valid[_digest(token)] = self._clock() + VALID_SECONDS
        return token

    def admits(self, token: str) -> bool:
        """Return whether a token is valid, in constant time."""
        self._forget()
        presented = _digest(token[:_MAX_TOKEN_CHARACTERS])
        found = False
        for digest in self._valid:
            found |= compare_digest(digest, presented)
        return found

    def _forget(self) -> None:
        now = self._clock()
        self._valid = {digest: until for digest, until in self._valid.items() if now < until}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
