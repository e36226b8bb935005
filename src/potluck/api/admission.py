"""How many requests are worked on, how many wait, and how many bytes of bodies are held.

A request's body is held as it came until the request has a slot. Then it is decoded and tokenized,
which takes several times its size for a while, so that is done for one large body at a time; and
what is left of it afterwards are tokens, of which a context holds so many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import Request

from potluck.allocator import return_free_memory
from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, ClientGoneError, overloaded

LARGE_BODY_BYTES = 64 * 1024
"""Bodies beyond it are decoded and tokenized one at a time.

Of smaller ones at most ``ApiLimits.max_concurrent_requests`` are worked on: 4 MiB of bodies.
"""

_MOST_RETRY_SECONDS = 60.0
"""Clients such as OpenAI's take no notice of more."""

_LATEST_SHARE = 0.2
"""Of the mean time between ends, so that the last ten or so count."""

_TRIM_SECONDS = 1.0
"""From the end of a large body to returning memory, so that what came of it is gone, too."""

T = TypeVar("T")


class Admission:
    """Lets requests in, first come first served. For one event loop."""

    def __init__(self, limits: ApiLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._slots = asyncio.Semaphore(limits.max_concurrent_requests)
        self._full_since = 0.0
        self._mean_seconds = 0.0
        self.num_running = 0
        self.num_queued = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Raises ``ApiError`` (429) when too many wait already."""
        if self._slots.locked() and self.num_queued >= self._limits.max_queued_requests:
            raise overloaded(
                f"{self.num_running} requests are being answered and {self.num_queued} wait",
                self._seconds_to_an_end(),
            )
        if self.num_queued == 0:
            self._full_since = self._clock()
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
            if self.num_queued:
                self._note_end()

    def _note_end(self) -> None:
        """A request has ended while others waited: measure the time from the one before."""
        now = self._clock()
        seconds = now - self._full_since
        share = _LATEST_SHARE if self._mean_seconds else 1.0
        self._mean_seconds += share * (seconds - self._mean_seconds)
        self._full_since = now

    def _seconds_to_an_end(self) -> float:
        """About when the next request ends, so that another may wait.

        If none has ended for long, as while a model is loaded again, it may take as long again.
        """
        seconds = self._mean_seconds
        if self.num_queued:
            seconds = max(seconds, self._clock() - self._full_since)
        return max(self._limits.retry_after_seconds, min(seconds, _MOST_RETRY_SECONDS))


class Preparation:
    """Decodes and tokenizes bodies on threads, one large one at a time. For one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, num_bytes: int) -> AsyncIterator[None]:
        """Wait until a body of ``num_bytes`` may be worked on; the next waits until this ends."""
        if num_bytes <= LARGE_BODY_BYTES:
            yield
            return
        async with self._turn:
            yield


async def in_thread(work: Callable[[], T]) -> T:
    """The result of ``work`` on another thread. Cancelled, it waits for the thread's end first.

    So what ``work`` uses counts as used for as long as it is.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is left to be told
        raise
    finally:
        del task  # whose exception has this frame


class Body:
    """The bytes of a request's body, which count as held until they are released."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self.data = bytearray()

    def release(self) -> None:
        """Let go of the bytes; more than once does no harm."""
        self._reader.on_released(len(self.data))
        self.data = bytearray()


class BodyReader:
    """Reads bodies within limits of size, time and memory. For one event loop."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self.held_bytes = 0
        self._trim: asyncio.TimerHandle | None = None

    def on_released(self, num_bytes: int) -> None:
        """A body of ``num_bytes`` is held no longer; soon after large ones, memory is returned."""
        self.held_bytes -= num_bytes
        if num_bytes > LARGE_BODY_BYTES and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(_TRIM_SECONDS, self._return_memory)

    def _return_memory(self) -> None:
        self._trim = None
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, return_free_memory)
        if self.held_bytes > LARGE_BODY_BYTES:
            self._trim = loop.call_later(_TRIM_SECONDS, self._return_memory)

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[Body]:
        """The body of ``request``, counted as held until it is released or the block is left.

        Raises ``ApiError``: 408 too slow, 413 too large, 429 too many held; and
        ``ClientGoneError``. What is left of a body that was refused is thrown away by the
        connection, within the time that a request's head may take.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limits.max_body_bytes:
            raise self._too_large()
        body = Body(self)
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
            yield body
        finally:
            body.release()

    async def _fill(self, request: Request, body: Body) -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            if len(body.data) + len(part) > self._limits.max_body_bytes:
                raise self._too_large()
            if self.held_bytes + len(part) > self._limits.max_buffered_bytes:
                raise overloaded(
                    "the requests being answered take all the memory there is for them",
                    self._limits.retry_after_seconds,
                )
            body.data += part
            self.held_bytes += len(part)
            if not message.get("more_body", False):
                return

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body has more than {self._limits.max_body_bytes} bytes",
            code="request_too_large",
        )
