"""The client side of control calls."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from potluck.cluster.network.membership import messages
from potluck.cluster.network.membership.messages import End, Failure, KeySpace, Part, SessionId
from potluck.cluster.network.membership.session import ZenohSession
from potluck.errors import CallError, NodeLostError, SilentNodeError
from potluck.types.cluster import NodeId

MAX_WAITING_PARTS = 1024
MAX_WAITING_BYTES = 16 * messages.MAX_PAYLOAD_BYTES
"""How much may be unread before a stream fails: a 3 GB board has room for a few of these."""

STREAM_SECONDS = 24 * 3600.0
"""The longest that a streamed answer may take: weights over a slow link take hours."""

_MARGIN_SECONDS = 1.0
"""How much later than the caller's own timeout, which has a better message, the network gives up.
"""

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """A bounded queue from the threads of a library, which must never block, to one asyncio task.

    It has the items in the order in which they were offered, then the error with which it was
    closed.

    ``offer`` and ``close`` may be called on any thread and never block; ``get`` only in ``loop``,
    by one task at a time. The bounds hold even while the event loop is blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_items: int, max_bytes: int) -> None:
        self._loop = loop
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._items: deque[tuple[_T, int]] = deque()
        self._num_bytes = 0
        self._closed_with: Exception | None = None
        self._arrival = asyncio.Event()

    def offer(self, item: _T, num_bytes: int) -> bool:
        """Add an item. Return False, dropping it, if a bound is reached or after ``close``."""
        with self._lock:
            is_full = (
                len(self._items) >= self._max_items or self._num_bytes + num_bytes > self._max_bytes
            )
            if is_full or self._closed_with is not None:
                return False
            self._items.append((item, num_bytes))
            self._num_bytes += num_bytes
            is_first = len(self._items) == 1
        if is_first:
            self._wake()
        return True

    def close(self, error: Exception, *, discard: bool = False) -> bool:
        """Stop accepting items; ``error`` is raised after the remaining items were read (or
        discarded).

        Only the first call counts; the others return False.
        """
        with self._lock:
            if self._closed_with is not None:
                return False
            self._closed_with = error
            if discard:
                self._items.clear()
                self._num_bytes = 0
        self._wake()
        return True

    async def get(self) -> _T:
        """Wait for the next item. Raises the error that the queue was closed with."""
        while True:
            with self._lock:
                if self._items:
                    item, num_bytes = self._items.popleft()
                    self._num_bytes -= num_bytes
                    return item
                if self._closed_with is not None:
                    raise self._closed_with
                self._arrival.clear()
            await self._arrival.wait()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is waiting
            self._loop.call_soon_threadsafe(self._arrival.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    target: SessionId
    inbox: Inbox[tuple[bytes, bytes]]


class CallClient:
    """Makes calls from one node to the others. For use in the session's event loop only."""

    def __init__(self, session: ZenohSession, keys: KeySpace, node_id: NodeId) -> None:
        self._session = session
        self._keys = keys
        self._node_id = node_id
        self._call_ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._is_closed = False

    async def call(
        self,
        node_id: NodeId,
        target: SessionId,
        method: str,
        payload: bytes,
        *,
        timeout_seconds: float,
    ) -> bytes:
        """Return the only part of the answer."""
        parts: list[bytes] = []
        stream = self.stream(
            node_id,
            target,
            method,
            payload,
            silence_seconds=None,
            lifetime_seconds=timeout_seconds + _MARGIN_SECONDS,
        )
        try:
            async with asyncio.timeout(timeout_seconds), aclosing(stream):
                async for part in stream:
                    parts.append(part)
                    if len(parts) > 1:
                        break
        except TimeoutError as error:
            raise CallError(
                f"node {node_id} did not answer {method!r} within {timeout_seconds:g} s"
            ) from error
        if len(parts) != 1:
            raise CallError(f"{method!r} of node {node_id} returns a stream, not a value")
        return parts[0]

    async def stream(
        self,
        node_id: NodeId,
        target: SessionId,
        method: str,
        payload: bytes,
        *,
        silence_seconds: float | None,
        lifetime_seconds: float = STREAM_SECONDS,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the answer in order. Closing or cancelling it cancels the handler."""
        if self._is_closed:
            raise messages.left_error()
        messages.check_payload(payload, f"the request of {method!r}")
        call_id = next(self._call_ids)
        loop = asyncio.get_running_loop()
        inbox: Inbox[tuple[bytes, bytes]] = Inbox(
            loop, max_items=MAX_WAITING_PARTS, max_bytes=MAX_WAITING_BYTES
        )
        cut_short = NodeLostError(node_id, f"node {node_id} was lost while it answered {method!r}")
        too_slow = CallError(
            f"the answer to {method!r} arrived faster than it was read: more than "
            f"{MAX_WAITING_PARTS} parts or {MAX_WAITING_BYTES:,} bytes were waiting"
        )

        def on_reply(header: bytes, part: bytes) -> None:
            if not inbox.offer((header, part), len(part)) and inbox.close(too_slow, discard=True):
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(self._cancel, node_id, target, call_id)

        header = messages.encode(
            messages.CallHeader(
                node_id=self._node_id,
                session_id=self._session.session_id,
                call_id=call_id,
                method=method,
            )
        )
        sent = self._session.query(
            target,
            self._keys.call(node_id, target),
            header,
            payload,
            on_reply,
            lambda: inbox.close(cut_short),
            lifetime_seconds=lifetime_seconds,
        )
        self._pending[call_id] = _Pending(target=target, inbox=inbox)
        is_over = False
        num_parts = 0
        try:
            await asyncio.shield(sent)
            while True:
                try:
                    async with asyncio.timeout(silence_seconds):
                        reply, part = await inbox.get()
                except TimeoutError as error:
                    raise SilentNodeError(
                        f"node {node_id} was silent for {silence_seconds:g} s while it answered "
                        f"{method!r}"
                    ) from error
                match _decode(reply, node_id):
                    case Part(index=index) if index == num_parts:
                        num_parts += 1
                        yield part
                    case End(num_parts=expected) if expected == num_parts:
                        is_over = True
                        return
                    case Failure(message=message, hint=hint):
                        is_over = True
                        raise CallError(message, hint=hint)
                    case _:
                        raise CallError(f"a part of node {node_id}'s answer to {method!r} was lost")
        finally:
            del self._pending[call_id]
            if not is_over:
                sent.add_done_callback(lambda _: self._cancel(node_id, target, call_id))

    def session_left(self, node_id: NodeId, session_id: SessionId) -> None:
        """Fail the calls to a session that has ended."""
        for pending in self._pending.values():
            if pending.target == session_id:
                pending.inbox.close(NodeLostError(node_id, f"node {node_id} left the cluster"))

    def close(self) -> None:
        """Fail all calls, current and future."""
        self._is_closed = True
        for pending in self._pending.values():
            pending.inbox.close(messages.left_error())

    def _cancel(self, node_id: NodeId, target: SessionId, call_id: int) -> None:
        cancel = messages.Cancel(session_id=self._session.session_id, call_id=call_id)
        # Once this node has left, its calls are cancelled everywhere without a message.
        with contextlib.suppress(CallError):
            self._session.put(target, self._keys.cancel(node_id, target), messages.encode(cancel))


def _decode(reply: bytes, node_id: NodeId) -> messages.ReplyHeader:
    try:
        return messages.decode_reply(reply)
    except messages.MALFORMED as error:
        raise CallError(f"node {node_id} sent a malformed answer: {error}") from error
