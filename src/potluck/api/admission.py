"""Limit the number of running and queued requests, and the memory used by request bodies.

A request's body is held as received until the request has a slot. Decoding and tokenizing it then
temporarily takes several times its size, so large bodies are processed one at a time. Only tokens
remain afterwards, and their number is limited by the context length.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.requests import Request

from potluck.api.compressed import decompressor_for
from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, ClientGoneError, overloaded
from potluck.host.allocator import return_free_memory

LARGE_BODY_BYTES = 64 * 1024
"""Bodies larger than this are decoded and tokenized one at a time.

At most ``ApiLimits.max_concurrent_requests`` smaller ones are processed at once: 4 MiB of bodies.
"""

_MOST_RETRY_SECONDS = 60.0
"""Maximum Retry-After. OpenAI's clients and others ignore longer values."""

_LATEST_SHARE = 0.2
"""Smoothing factor of the mean time between completions, which averages over about the last ten."""

_TRIM_SECONDS = 1.0
"""Delay between processing a large body and trimming the heap, so that the data derived from it has
been freed, too."""

T = TypeVar("T")


class Admission:
    """Admits requests in first-come, first-served order. Belongs to one event loop."""

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
        """Wait for a slot and hold it. Raises ``ApiError`` (429) if too many are queued."""
        if self._slots.locked() and self.num_queued >= self._limits.max_queued_requests:
            raise overloaded(
                f"the server is busy: {self.num_running} requests are running and "
                f"{self.num_queued} are waiting",
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
        """Update the mean time between completions, because a request ended while others waited."""
        now = self._clock()
        seconds = now - self._full_since
        share = _LATEST_SHARE if self._mean_seconds else 1.0
        self._mean_seconds += share * (seconds - self._mean_seconds)
        self._full_since = now

    def _seconds_to_an_end(self) -> float:
        """Estimate when the next request completes, so that another can be queued.

        If none has completed for a long time, for example because a model is being reloaded, assume
        that it takes as long again.
        """
        seconds = self._mean_seconds
        if self.num_queued:
            seconds = max(seconds, self._clock() - self._full_since)
        return max(self._limits.retry_after_seconds, min(seconds, _MOST_RETRY_SECONDS))


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread and return its result. If cancelled, wait for the thread first.

    The memory that ``work`` uses therefore stays accounted for until it is free.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the caller is gone
        raise
    finally:
        del task  # the exception refers to this frame


class Body:
    """The bytes of a request's body, which count towards the limit until they are released."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self.data = bytearray()

    def release(self) -> None:
        """Release the bytes; calling it again has no effect."""
        self._reader.on_released(len(self.data))
        self.data = bytearray()


class BodyReader:
    """Reads bodies within limits of size, time and memory. Belongs to one event loop."""

    def __init__(self, limits: ApiLimits) -> None:
        self._limits = limits
        self.held_bytes = 0
        self._trim: asyncio.TimerHandle | None = None

    def on_released(self, num_bytes: int) -> None:
        """Note that a body of ``num_bytes`` was released; trim the heap soon after large ones."""
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
        """Read the body of ``request``; it counts as held until it is released or the block exits.

        A compressed body is decompressed, and all limits are for the result. Raises ``ApiError``
        (408 too slow, 413 too large, 415 compressed in an unknown way, 429 too many bytes held) or
        ``ClientGoneError``. The connection discards the rest of a rejected body, within the time
        allowed for a request's head.
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
                    f"the request body did not arrive within {self._limits.body_seconds:g} s",
                    code="request_timeout",
                    headers={"Connection": "close"},
                ) from None
            yield body
        finally:
            body.release()

    async def _fill(self, request: Request, body: Body) -> None:
        decompressor = decompressor_for(request.headers)
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            if decompressor is None:
                self._take(part, body)
            else:
                for piece in decompressor.pieces(part):
                    self._take(piece, body)
                    await asyncio.sleep(0)  # others take their turns
            if not message.get("more_body", False):
                break
        if decompressor is not None:
            decompressor.end()

    def _take(self, part: bytes, body: Body) -> None:
        if len(body.data) + len(part) > self._limits.max_body_bytes:
            raise self._too_large()
        if self.held_bytes + len(part) > self._limits.max_buffered_bytes:
            raise overloaded(
                "the requests in progress use all the memory reserved for request bodies",
                self._limits.retry_after_seconds,
            )
        body.data += part
        self.held_bytes += len(part)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the request body is larger than {self._limits.max_body_bytes} bytes",
            code="request_too_large",
        )
