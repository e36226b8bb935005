"""The replies to one query."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from potluck.cluster.membership import messages
from potluck.cluster.membership.keys import SessionId
from potluck.cluster.membership.messages import End, Failure, Part
from potluck.cluster.membership.session import ZenohSession
from potluck.errors import CallError

if TYPE_CHECKING:
    import zenoh


class Replies:
    """Owns a query. A reply is sent only after the one before it."""

    def __init__(self, session: ZenohSession, caller: SessionId, query: zenoh.Query) -> None:
        self._session = session
        self._caller = caller
        self._query = query
        self._last: asyncio.Future[None] | None = None

    async def send(self, part: Part, payload: bytes) -> None:
        """Send a part. Waits while the network is congested.

        Raises ``CallError`` if too much is waiting for the caller.
        """
        query = self._query
        header = messages.encode(part)

        def work() -> None:
            query.reply(query.key_expr, payload, attachment=header, express=True)

        # Shielded: a cancelled handler must not drop the query while a thread is replying.
        self._last = self._session.run(self._caller, work, num_bytes=len(payload))
        await asyncio.shield(self._last)

    async def finish(self, end: End | Failure) -> None:
        """Send the outcome of the call, and release the query."""
        query = self._query
        header = messages.encode(end)

        def work() -> None:
            query.reply(query.key_expr, b"", attachment=header, express=True)
            query.drop()

        self._last = self._session.run(self._caller, work, is_last=True)
        await asyncio.shield(self._last)

    def drop(self) -> None:
        """Release the query; the caller sees an interrupted call, unless it was finished."""
        if self._last is None:
            self._drop_soon()
        else:
            self._last.add_done_callback(lambda _: self._drop_soon())

    def _drop_soon(self) -> None:
        try:
            self._session.run(self._caller, self._query.drop, is_last=True)
        except CallError:  # the session and its queries are closed
            return
