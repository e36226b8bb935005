"""Tie a request's work to its connection: it ends on disconnect and on shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.errors import ApiError, ClientGoneError, forget_frames, internal_error
from potluck.api.rendering import Renderer
from potluck.errors import PotluckError

_log = logging.getLogger(__name__)

T = TypeVar("T")


async def while_connected(
    receive: Receive, ending: asyncio.Event, work: Coroutine[Any, Any, T]
) -> T:
    """Return the result of ``work``; cancel it if the client disconnects or the server stops.

    The request's body must have been read. Raises ``ClientGoneError`` if the client has closed the
    connection, and ``ApiError`` (503) if ``ending`` was set.
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
        del task  # the exception refers to this frame


class AnswerStream(Response):
    """A response that is streamed in pieces, as written by ``renderer``.

    ``first`` was already taken from ``pieces``, so that an earlier error could still set the HTTP
    status. A later error ends the stream with the renderer's error event. ``pieces`` is always
    closed at the end. ``to_error`` converts an exception to the error that clients see.
    """

    def __init__(
        self,
        first: bytes,
        pieces: AsyncGenerator[bytes, None],
        ending: asyncio.Event,
        renderer: Renderer,
        to_error: Callable[[PotluckError], ApiError],
    ) -> None:
        super().__init__(
            media_type=renderer.stream_type,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._first = first
        self._pieces = pieces
        self._ending = ending
        self._renderer = renderer
        self._to_error = to_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream. Raises ``ClientGoneError``."""
        async with aclosing(self._pieces):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = b""
            try:
                await while_connected(receive, self._ending, self._send_pieces(send))
            except PotluckError as error:
                forget_frames(error)
                last = self._renderer.failed(self._to_error(error))
            except ClientGoneError:
                raise
            except Exception:  # noqa: BLE001 - the client shall see that the answer is not whole
                _log.exception("a response stream failed")
                last = self._renderer.failed(internal_error())
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_pieces(self, send: Send) -> None:
        await self._send(send, self._first)
        async for piece in self._pieces:
            await self._send(send, piece)

    async def _send(self, send: Send, piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
