"""A Zenoh session for asyncio.

Zenoh's callbacks run on its own threads and must not block there. Operations that may wait for the
network run on other threads: sends in an outbox for each peer (``outboxes``), opening and closing
on threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import zenoh

from potluck.cluster.network.acceptor.supervisor import AcceptorProcess
from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.membership.config import MembershipConfig, zenoh_json
from potluck.cluster.network.membership.listening import INNER, concrete, start_acceptor
from potluck.cluster.network.membership.messages import SessionId, left_error
from potluck.cluster.network.membership.outboxes import Outboxes
from potluck.cluster.network.membership.sockets import LinkSockets, endpoint_of
from potluck.cluster.network.trust.removed import RemovedNodes
from potluck.errors import CallError, JoinError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

CLOSE_SECONDS = 3.0
"""Under packet loss Zenoh takes up to 10 s to close; other nodes notice by the lease anyway."""

_SEND_SECONDS = 1.0
"""How long a closed session waits for messages that are being sent, before their links are reset
and after that. A send to a peer that reads takes milliseconds."""

_LOOK_SECONDS = 0.005

_BLOCK = zenoh.CongestionControl.BLOCK
_PRIORITY = zenoh.Priority.DATA
"""The same priority for all messages, since those of different priorities overtake each other."""


class ZenohSession:
    """An open session. Everything except ``run``'s own work happens in the event loop that opened
    it.
    """

    def __init__(
        self,
        session: zenoh.Session,
        address: Address,
        acceptor: AcceptorProcess | None,
        *,
        stall_milliseconds: int,
        removed: RemovedNodes,
    ) -> None:
        self._session = session
        self._acceptor = acceptor
        self._sockets = LinkSockets(stall_milliseconds)
        self._removed = removed
        self._outboxes = Outboxes("zenoh-send", self._sockets.is_clear)
        self._loop = asyncio.get_running_loop()
        self._declared: list[object] = []  # keeps them alive: dropping a token undeclares it
        self._is_closed = False
        self.address = address
        self.session_id = SessionId(str(session.zid()))
        self._guard_links()

    @classmethod
    async def open(
        cls, config: MembershipConfig, *, successor_of: ZenohSession | None = None
    ) -> ZenohSession:
        """Listen, and begin to connect; members may not have been reached when this returns.

        With TLS, a separate process accepts connections at the address and connects members to the
        session at a loopback address (see ``cluster.network.acceptor``). A successor takes over
        that process with its routes; the earlier session is then to be closed. Raises ``JoinError``
        if the address cannot be listened on or the PEM files are invalid.
        """
        listen = concrete(config.listen)
        inner = None if config.pem is None else concrete(INNER)
        removed = RemovedNodes(None if config.pem is None else config.pem.removed)
        settings = zenoh.Config.from_json5(zenoh_json(config, listen, inner, removed.nodes()))
        opening = _in_thread(lambda: zenoh.open(settings), "zenoh-open")
        try:
            session = await asyncio.wrap_future(opening)
        except zenoh.ZError as error:
            _log.debug("zenoh: %s", error)
            raise JoinError(
                f"cannot listen on {listen}: the secure transport could not be set up",
                hint="the address may be in use, or the certificate files invalid",
            ) from error
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        try:
            acceptor = None
            if config.pem is not None and inner is not None:
                running = None if successor_of is None else successor_of._acceptor
                acceptor = await start_acceptor(config, config.pem, listen, inner, running)
                if successor_of is not None:
                    successor_of._acceptor = None
        except BaseException:
            _in_thread(session.close, "zenoh-close")
            raise
        return cls(
            session,
            listen,
            acceptor,
            stall_milliseconds=config.stall_milliseconds,
            removed=removed,
        )

    def run(
        self,
        peer: SessionId,
        work: Callable[[], _T],
        *,
        num_bytes: int = 0,
        is_last: bool = False,
    ) -> asyncio.Future[_T]:
        """Send something to ``peer``, in order; the future need not be awaited.

        It waits for that peer alone. ``is_last`` is for a message that ends a call, which may wait
        beyond the bounds. Raises ``CallError``, immediately or from the future, if the session is
        closed or refuses, or if too much is waiting for the peer.
        """
        if self._is_closed:
            raise left_error()

        def guarded() -> _T:
            try:
                return work()
            except zenoh.ZError as error:
                raise CallError(f"cannot send a message: {error}") from error

        waiting = self._outboxes.submit(peer, guarded, num_bytes=num_bytes, is_last=is_last)
        future = asyncio.wrap_future(waiting, loop=self._loop)
        future.add_done_callback(_note_failure)
        return future

    def watch_liveliness(self, pattern: str, on_token: Callable[[str, bool], None]) -> None:
        """Call ``on_token(key, is alive)`` in the event loop for every existing token and every
        change.
        """

        def on_sample(sample: zenoh.Sample) -> None:
            self._call_soon(on_token, str(sample.key_expr), sample.kind == zenoh.SampleKind.PUT)

        handler = zenoh.handlers.Callback(on_sample, indirect=False)
        self._declared.append(
            self._session.liveliness().declare_subscriber(pattern, handler, history=True)
        )

    def subscribe(self, key: str, on_message: Callable[[bytes], None]) -> None:
        """Call ``on_message`` in the event loop for every message put to ``key``."""

        def on_sample(sample: zenoh.Sample) -> None:
            self._call_soon(on_message, sample.payload.to_bytes())

        handler = zenoh.handlers.Callback(on_sample, indirect=False)
        self._declared.append(self._session.declare_subscriber(key, handler))

    def serve(self, key: str, on_query: Callable[[zenoh.Query], None]) -> None:
        """Call ``on_query`` in the event loop for every query to ``key``."""

        def on_arrival(query: zenoh.Query) -> None:
            self._call_soon(on_query, query)

        handler = zenoh.handlers.Callback(on_arrival, indirect=False)
        self._declared.append(self._session.declare_queryable(key, handler, complete=True))

    def declare_alive(self, key: str) -> None:
        """Declare the token ``key``, visible to everyone for as long as this session exists."""
        self._declared.append(self._session.liveliness().declare_token(key))

    def query(
        self,
        peer: SessionId,
        key: str,
        header: bytes,
        payload: bytes,
        on_reply: Callable[[bytes, bytes], None],
        on_finished: Callable[[], object],
        *,
        lifetime_seconds: float,
    ) -> asyncio.Future[None]:
        """Query ``key`` of ``peer``; the future is done when the query was handed to the network.

        Zenoh ends the query after ``lifetime_seconds``, and keeps half a kilobyte for so long even
        if it was answered at once, so callers should choose a short lifetime. ``on_reply(header,
        payload)`` and finally ``on_finished`` are called on other threads and must not block.
        Replies arrive one by one, in order.
        """

        def on_any_reply(reply: zenoh.Reply) -> None:
            sample = reply.ok
            if sample is not None and sample.attachment is not None:
                on_reply(sample.attachment.to_bytes(), sample.payload.to_bytes())

        def send() -> None:
            self._session.get(
                key,
                zenoh.handlers.Callback(on_any_reply, on_finished, indirect=False),
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=_BLOCK,
                priority=_PRIORITY,
                express=True,
                timeout=lifetime_seconds,
                attachment=header,
                payload=payload,
            )

        return self.run(peer, send, num_bytes=len(payload))

    def put(self, peer: SessionId, key: str, payload: bytes) -> asyncio.Future[None]:
        """Send a message to the subscriber of ``key``, which is ``peer``."""

        def send() -> None:
            self._session.put(
                key, payload, congestion_control=_BLOCK, priority=_PRIORITY, express=True
            )

        return self.run(peer, send, num_bytes=len(payload), is_last=True)

    def refuse_removed(self) -> None:
        """Close the connections with removed nodes, and any that they open later."""
        if self._acceptor is not None:
            self._acceptor.end_removed()
        self._sockets.refuse(self.is_removed)

    def is_removed(self, node: str) -> bool:
        """Return whether a node was removed from the cluster."""
        return NodeId(node) in self._removed

    def session_left(self, session_id: SessionId) -> None:
        """Release what is held for a session that has ended."""
        self._sockets.forget(session_id)

    def peer_host(self, node_id: NodeId, session_id: SessionId) -> str | None:
        """Return the IP address of the peer of a session's connection; None if there is none."""
        # A link to the acceptor has the acceptor's own address.
        host = None if self._acceptor is None else self._acceptor.host_of(node_id)
        if host is not None:
            return host
        for link in self._session.info.links():
            if str(link.zid) == session_id:
                return endpoint_of(link.dst)[0]
        return None

    def add_route(self, name: str) -> socket.socket | None:
        """See ``AcceptorProcess``; None without an acceptor, which only TLS has."""
        return None if self._acceptor is None else self._acceptor.add_route(name)

    def remove_route(self, name: str) -> None:
        """See ``AcceptorProcess``."""
        if self._acceptor is not None:
            self._acceptor.remove_route(name)

    async def close(self, *, wait_seconds: float) -> None:
        """Close the session, usually in milliseconds, waiting at most ``wait_seconds``. Idempotent.

        After that, closing continues in the background.
        """
        if self._is_closed:
            return
        self._is_closed = True
        done = asyncio.Event()

        def end() -> None:
            try:
                self._session.close()
            finally:
                self._call_soon(done.set)

        _in_thread(end, "zenoh-close")
        try:
            async with asyncio.timeout(wait_seconds):
                await done.wait()
        except TimeoutError:
            _log.info("the session is taking more than %s s to close", wait_seconds)
        finally:
            if self._acceptor is not None:
                await self._acceptor.close()
            self._declared.clear()
            self._outboxes.close()
            await self._end_sends()
            self._sockets.close()

    async def _end_sends(self) -> None:
        """Wait until no thread sends any more; what a peer does not read is given up.

        A thread that outlives the session would hold objects of Zenoh when the interpreter ends,
        which aborts the process.
        """
        if await self._are_sends_over():
            return
        self._sockets.reset()
        if not await self._are_sends_over():
            _log.warning("a message to another node is still being sent after the session closed")

    async def _are_sends_over(self) -> bool:
        """Return whether all threads that send have ended, waiting ``_SEND_SECONDS`` for that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEND_SECONDS):
                while not self._outboxes.is_idle:
                    await asyncio.sleep(_LOOK_SECONDS)
        return self._outboxes.is_idle

    def _guard_links(self) -> None:
        """Ensure that no connection blocks Zenoh's threads, which serve all of them."""

        def on_event(event: zenoh.LinkEvent) -> None:
            link = event.link
            # Zenoh has given up a deleted link, and would now wait until everything was sent.
            is_new = event.kind == zenoh.SampleKind.PUT
            ends = (endpoint_of(link.src), endpoint_of(link.dst))
            if not is_new:
                self._sockets.given_up(str(link.zid), *ends)
                return
            node = link.auth_identifier  # the common name of its certificate; None without TLS
            self._sockets.opened(str(link.zid), *ends, node)
            if node is not None and self.is_removed(node):
                self._sockets.given_up(str(link.zid), *ends)

        handler = zenoh.handlers.Callback(on_event, indirect=False)
        self._declared.append(
            self._session.info.declare_link_events_listener(handler, history=True)
        )

    def _call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the event loop is closed
            _log.debug("ignored an event after the event loop was closed")


def _in_thread(work: Callable[[], _T], name: str) -> Future[_T]:
    """Run ``work`` on a daemon thread, which, unlike an executor's, does not delay exit."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # so that it always gets a result

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - passed on to the waiter
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _note_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.debug("%s", error)


def _close_unwanted(opening: Any) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
