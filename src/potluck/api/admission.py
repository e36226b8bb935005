"""How many requests are worked on, how many wait, and how many bytes of bodies are held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, ClientGoneError, overloaded


class Admission:
    """Lets requests in, first come first served. For one event loop."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_concurrent_requests)
        self.num_running = 0
        self.num_queued = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Raises ``ApiError`` (429) when too many wait already."""
        if self._slots.locked() and self.num_queued >= self._limits.max_queued_requests:
            raise overloaded(
                f"{self.num_running} requests are being answered and {self.num_queued} wait",
                self._limits.retry_after_seconds,
            )
        self.num_queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.num_queued -= 1
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1
            self._slots.release()


class BodyReader:
    """Reads bodies within limits of size, time and memory. For one event loop."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self._held_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body of ``request``, counted as held until the block is left.

        Raises ``ApiError``: 408 too slow, 413 too large, 429 too many held; and
        ``ClientGoneError``. What is left of a body that was refused is thrown away by the
        connection, within the time that a request's head may take.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limits.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    await self._fill(request, body)
            except TimeoutError:
                raise ApiError(
                    408,
                    f"the body did not come in {self._limits.body_seconds:g} s",
                    code="request_timeout",
                    headers={"Connection": "close"},
                ) from None
            yield bytes(body)
        finally:
            self._held_bytes -= len(body)

    async def _fill(self, request: Request, body: bytearray) -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            if len(body) + len(part) > self._limits.max_body_bytes:
                raise self._too_large()
            if self._held_bytes + len(part) > self._limits.max_buffered_bytes:
                raise overloaded(
                    "the requests being answered take all the memory there is for them",
                    self._limits.retry_after_seconds,
                )
            body += part
            self._held_bytes += len(part)
            if not message.get("more_body", False):
                return

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than {self._limits.max_body_bytes} bytes",
            code="request_too_large",
        )
