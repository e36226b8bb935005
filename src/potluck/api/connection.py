"""A request's work tied to its client: it ends when the client goes or the server does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.errors import (
    ApiError,
    ClientGoneError,
    forget_frames,
    internal_error,
    to_api_error,
)
from potluck.errors import PotluckError

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def while_connected(
    receive: Receive, ending: asyncio.Event, work: Coroutine[Any, Any, T]
) -> T:
    """The result of ``work``, which is cancelled when there is nobody left to take it.

    The request's body must have been read. Raises ``ClientGoneError`` when the client has closed
    the connection, and ``ApiError`` (503) when ``ending`` was set.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    end = asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait((task, gone, end), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGoneError
        raise ApiError(503, "the server is shutting down", code="shutting_down")
    finally:
        for each in (task, gone, end):
            each.cancel()
        await asyncio.gather(task, gone, end, return_exceptions=True)
        del task  # whose exception has this frame


class EventStream(Response):
    """Server-sent events, one for each JSON object, as OpenAI streams them.

    ``first`` was taken from ``chunks`` already, so that an error before it could still have a
    status of its own. A later one is an event with an error object, and ends the stream; otherwise
    ``[DONE]`` does. ``chunks`` is closed at the end, however it comes.
    """

    def __init__(
        self, first: bytes, chunks: AsyncGenerator[bytes, None], ending: asyncio.Event
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._first = first
        self._chunks = chunks
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream. Raises ``ClientGoneError``."""
        async with aclosing(self._chunks):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await while_connected(receive, self._ending, self._send_chunks(send))
            except PotluckError as error:
                forget_frames(error)
                last = to_api_error(error).encoded()
            except ClientGoneError:
                raise
            except Exception:  # noqa: BLE001 - the client shall see that the answer is not whole
                _log.exception("a stream failed")
                last = internal_error().encoded()
            else:
                last = b"[DONE]"
        await send({"type": "http.response.body", "body": _event(last), "more_body": False})

    async def _send_chunks(self, send: Send) -> None:
        chunk: bytes | None = self._first
        while chunk is not None:
            await send({"type": "http.response.body", "body": _event(chunk), "more_body": True})
            chunk = await anext(self._chunks, None)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
