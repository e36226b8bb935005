"""The server side of control calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from potluck.cluster.network.membership import messages
from potluck.cluster.network.membership.messages import (
    CallHeader,
    End,
    Failure,
    Part,
    ReplyHeader,
    SessionId,
)
from potluck.cluster.network.membership.session import ZenohSession
from potluck.errors import CallError, PotluckError
from potluck.types.cluster import SAME_VERSION, NodeId

if TYPE_CHECKING:
    import zenoh

_log = logging.getLogger(__name__)

MAX_RUNNING_CALLS = 256
"""The most concurrent handlers; each agent of a large cluster needs a few."""

_UNKNOWN = SessionId("")
"""The caller of a call that does not name it."""

_END_SECONDS = 2.0
"""How long handlers may take to finish when their node leaves."""

Handler = Callable[[bytes], Awaitable[bytes]]
CallerHandler = Callable[[NodeId, bytes], Awaitable[bytes]]
StreamHandler = Callable[[bytes], AsyncGenerator[bytes, None]]
_Method = Callable[[NodeId, bytes], AsyncGenerator[bytes, None]]


class _Replies:
    """Owns a query. A reply is sent only after the one before it."""

    def __init__(self, session: ZenohSession, caller: SessionId, query: zenoh.Query) -> None:
        self._session = session
        self._caller = caller
        self._query = query
        self._last: asyncio.Future[None] | None = None

    async def send(self, message: ReplyHeader, payload: bytes = b"") -> None:
        """Send a part, or the outcome of the call, which releases the query. Waits while the
        network is congested.

        Raises ``CallError`` if the session is closed, or, for a part, if too much is waiting for
        the caller.
        """
        query = self._query
        header = messages.encode(message)
        is_last = not isinstance(message, Part)

        def work() -> None:
            query.reply(query.key_expr, payload, attachment=header, express=True)
            if is_last:
                query.drop()

        # Shielded: a cancelled handler must not drop the query while a thread is replying.
        self._last = self._session.run(self._caller, work, num_bytes=len(payload), is_last=is_last)
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


class MethodTable:
    """The methods of a node, by name. Methods may be added at any time.

    While the table is not ``is_complete``, calls of unknown methods wait until it is.
    """

    def __init__(self, *, is_complete: bool = True) -> None:
        self._methods: dict[str, _Method] = {}
        self._completed = asyncio.Event()
        if is_complete:
            self._completed.set()

    def complete(self) -> None:
        """Mark the table complete; unknown methods are refused from now on."""
        self._completed.set()

    def register(self, name: str, handler: Handler) -> None:
        """Register ``handler``, which returns the answer. Raises ``ValueError`` if the name is
        taken.
        """
        self.register_for_caller(name, lambda _, request: handler(request))

    def register_stream(self, name: str, handler: StreamHandler) -> None:
        """Register ``handler``, which yields the answer; it is closed if the caller leaves."""
        self._put(name, lambda _, request: handler(request))

    def register_for_caller(self, name: str, handler: CallerHandler) -> None:
        """Register a handler as ``register`` does, for a method whose answer depends on the caller.

        The caller's id is not verified: every member can claim to be another.
        """

        async def one_part(caller: NodeId, request: bytes) -> AsyncGenerator[bytes, None]:
            yield await handler(caller, request)

        self._put(name, one_part)

    def _put(self, name: str, method: _Method) -> None:
        if name in self._methods:
            raise ValueError(f"the method {name!r} is already registered")
        self._methods[name] = method

    async def find(self, name: str) -> _Method:
        """Return the handler of ``name``. Raises ``CallError`` if there is none."""
        if name not in self._methods:
            await self._completed.wait()
        handler = self._methods.get(name)
        if handler is None:
            raise CallError(
                f"the node called does not know the method {name!r}",
                hint=SAME_VERSION,
            )
        return handler


class CallServer:
    """Runs handlers, one task per call, and cancels them when their callers leave."""

    def __init__(
        self,
        session: ZenohSession,
        methods: MethodTable,
        is_removed: Callable[[NodeId], bool],
    ) -> None:
        self._is_removed = is_removed
        self._session = session
        self._methods = methods
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._is_closed = False

    def on_query(self, query: zenoh.Query) -> None:
        """Handle a call."""
        if self._is_closed:
            return
        try:
            header = messages.decode_call(_bytes(query.attachment))
        except messages.MALFORMED as error:
            _log.warning("ignored a malformed call: %s", error)
            _Replies(self._session, _UNKNOWN, query).drop()
            return
        replies = _Replies(self._session, SessionId(header.session_id), query)
        if self._is_removed(NodeId(header.node_id)):
            replies.drop()
            return
        key = (header.session_id, header.call_id)
        if key in self._running:
            _log.warning(
                "ignored a duplicate of call %d of session %s", header.call_id, header.session_id
            )
            replies.drop()
            return
        is_busy = len(self._running) >= MAX_RUNNING_CALLS
        answer = _refuse(replies) if is_busy else self._answer(header, query, replies)
        task = asyncio.create_task(answer)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    def on_cancel(self, message: bytes) -> None:
        """Cancel the handler of a call."""
        try:
            cancel = messages.decode_cancel(message)
        except messages.MALFORMED as error:
            _log.warning("ignored a malformed cancellation: %s", error)
            return
        if (task := self._running.get((cancel.session_id, cancel.call_id))) is not None:
            task.cancel()

    def session_left(self, session_id: SessionId) -> None:
        """Cancel the handlers of a caller that has left."""
        for (caller, _), task in self._running.items():
            if caller == session_id:
                task.cancel()

    async def close(self) -> None:
        """Stop accepting calls, cancel all handlers, and wait a limited time for them to finish."""
        self._is_closed = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            _, unwilling = await asyncio.wait(tasks, timeout=_END_SECONDS)
            if unwilling:
                _log.warning("%d handlers did not finish within %s s", len(unwilling), _END_SECONDS)

    async def _answer(self, header: CallHeader, query: zenoh.Query, replies: _Replies) -> None:
        try:
            await replies.send(await self._run(header, _bytes(query.payload), replies))
        except asyncio.CancelledError:
            replies.drop()
            raise
        except CallError as error:  # the network failed: the caller sees an interrupted call
            _log.debug("%s", error)
            replies.drop()
        except Exception:  # noqa: BLE001 - the caller would wait forever
            _log.exception("could not answer a call of %r", header.method)
            replies.drop()

    async def _run(self, header: CallHeader, request: bytes, replies: _Replies) -> End | Failure:
        method, caller = header.method, NodeId(header.node_id)
        num_parts = 0
        try:
            messages.check_payload(request, f"the request of {method!r}")
            handler = await self._methods.find(method)
            async with aclosing(handler(caller, request)) as parts:
                async for part in parts:
                    messages.check_payload(part, f"the answer to {method!r}")
                    await replies.send(Part(num_parts), part)
                    num_parts += 1
        except PotluckError as error:
            return Failure(error.message, error.hint)
        except Exception as error:  # noqa: BLE001 - every failure is reported to the caller
            _log.exception("the handler of %r failed", method)
            return Failure(
                f"{method!r} failed on the node called: {type(error).__name__}",
                "see that node's log for details",
            )
        return End(num_parts)


async def _refuse(replies: _Replies) -> None:
    with contextlib.suppress(CallError):  # the network failed, and the caller sees that
        await replies.send(Failure("the node called is busy", "try again later"))


def _bytes(data: zenoh.ZBytes | None) -> bytes:
    return b"" if data is None else data.to_bytes()
