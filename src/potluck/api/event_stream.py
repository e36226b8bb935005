"""Stream a watch as server-sent events until the client disconnects or the server stops.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.api.connection import while_connected
from potluck.api.errors import ApiError, forget_frames
from potluck.errors import OverloadedError
from potluck.types.console import Notice, Watch

_ALIVE = b": alive\n\n"
"""A comment, which clients ignore, sent when there has been nothing to send for a while."""


class EventStream(Response):
    """Streams ``watch``, which is always closed at the end. Clients that read too slowly are cut
    off. They, and clients of a server that stops, see the end of the stream and can reconnect.
    """

    def __init__(self, watch: Watch, ending: asyncio.Event, *, silence_seconds: float) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._watch = watch
        self._ending = ending
        self._silence_seconds = silence_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises ``ClientGoneError``."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await while_connected(receive, self._ending, self._send_all(send))
            except (OverloadedError, ApiError) as error:
                forget_frames(error)
        finally:
            self._watch.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": _ALIVE, "more_body": True})
        while True:
            notices = await self._watch.take(self._silence_seconds)
            body = b"".join(map(event_of, notices)) or _ALIVE
            await send({"type": "http.response.body", "body": body, "more_body": True})


def event_of(notice: Notice) -> bytes:
    """Return a notice as an event of the stream."""
    number = b"" if notice.event_id is None else b"id: %d\n" % notice.event_id
    return b"event: %s\n%sdata: %s\n\n" % (notice.kind.encode(), number, notice.data)
