"""A Zenoh session for asyncio.

Callbacks from Zenoh run on its own threads and must not wait there. What may wait for the network
runs on other threads: sends in an outbox for each peer (``outboxes``), opening and closing on their
own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import zenoh

from potluck.cluster.acceptor.supervisor import AcceptorProcess
from potluck.cluster.membership.address import Address
from potluck.cluster.membership.config import MembershipConfig
from potluck.cluster.membership.keys import SessionId
from potluck.cluster.membership.listening import INNER, concrete, start_acceptor
from potluck.cluster.membership.outboxes import Outboxes
from potluck.cluster.membership.sockets import LinkSockets, endpoint_of
from potluck.cluster.membership.zenoh_config import zenoh_json
from potluck.errors import CallError, JoinError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

CLOSE_SECONDS = 3.0
"""Under packet loss Zenoh takes up to 10 s to say good-bye; others notice by the lease anyway."""

_BLOCK = zenoh.CongestionControl.BLOCK
_PRIORITY = zenoh.Priority.DATA
"""One for all messages: those of different priorities overtake each other."""


class ZenohSession:
    """An open session. Everything but ``run``'s own work happens in the loop that opened it."""

    def __init__(
        self,
        session: zenoh.Session,
        address: Address,
        acceptor: AcceptorProcess | None,
        *,
        stall_milliseconds: int,
    ) -> None:
        self._session = session
        self._acceptor = acceptor
        self._sockets = LinkSockets(stall_milliseconds)
        self._outboxes = Outboxes("zenoh-send", self._sockets.is_clear)
        self._loop = asyncio.get_running_loop()
        self._declared: list[object] = []  # dropping a token would undeclare it
        self._is_closed = False
        self.address = address
        self.session_id = SessionId(str(session.zid()))
        self._guard_links()

    @classmethod
    async def open(cls, config: MembershipConfig) -> ZenohSession:
        """Listen, and begin to connect; members may not have been reached yet.

        With TLS, what comes to the address is accepted by a process of its own, which joins
        members to the session at a loopback address (see ``cluster.acceptor``).

        Raises ``JoinError`` where the address cannot be listened on or the PEM files are bad.
        """
        listen = concrete(config.listen)
        inner = None if config.pem is None else concrete(INNER)
        settings = zenoh.Config.from_json5(zenoh_json(config, listen, inner))
        opening = _in_thread(lambda: zenoh.open(settings), "zenoh-open")
        try:
            session = await asyncio.wrap_future(opening)
        except zenoh.ZError as error:
            _log.debug("zenoh: %s", error)
            raise JoinError(
                f"cannot take part at {listen}: the secure transport could not be set up",
                hint="the address may be in use, or the certificate files are not sound",
            ) from error
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        try:
            acceptor = None
            if config.pem is not None and inner is not None:
                acceptor = await start_acceptor(config, config.pem, listen, inner)
        except BaseException:
            _in_thread(session.close, "zenoh-close")
            raise
        return cls(session, listen, acceptor, stall_milliseconds=config.stall_milliseconds)

    def run(
        self,
        peer: SessionId,
        work: Callable[[], _T],
        *,
        num_bytes: int = 0,
        is_last: bool = False,
    ) -> asyncio.Future[_T]:
        """Send something to ``peer``, in order; the future need not be awaited.

        It waits for that peer alone. ``is_last``: it ends a call, and may wait beyond the bounds.
        ``CallError``, at once or from the future, when the session is closed or refuses, or when
        too much waits for the peer.
        """
        if self._is_closed:
            raise CallError("this node has left the cluster")

        def guarded() -> _T:
            try:
                return work()
            except zenoh.ZError as error:
                raise CallError(f"the network refused a message: {error}") from error

        waiting = self._outboxes.submit(peer, guarded, num_bytes=num_bytes, is_last=is_last)
        future = asyncio.wrap_future(waiting, loop=self._loop)
        future.add_done_callback(_note_failure)
        return future

    def watch_liveliness(self, pattern: str, on_token: Callable[[str, bool], None]) -> None:
        """Call ``on_token(key, is alive)`` in the loop for every token there is and changes."""

        def on_sample(sample: zenoh.Sample) -> None:
            self._call_soon(on_token, str(sample.key_expr), sample.kind == zenoh.SampleKind.PUT)

        handler = zenoh.handlers.Callback(on_sample, indirect=False)
        self._declared.append(
            self._session.liveliness().declare_subscriber(pattern, handler, history=True)
        )

    def subscribe(self, key: str, on_message: Callable[[bytes], None]) -> None:
        """Call ``on_message`` in the loop for every message put to ``key``."""

        def on_sample(sample: zenoh.Sample) -> None:
            self._call_soon(on_message, sample.payload.to_bytes())

        handler = zenoh.handlers.Callback(on_sample, indirect=False)
        self._declared.append(self._session.declare_subscriber(key, handler))

    def serve(self, key: str, on_query: Callable[[zenoh.Query], None]) -> None:
        """Call ``on_query`` in the loop for every query to ``key``."""

        def on_arrival(query: zenoh.Query) -> None:
            self._call_soon(on_query, query)

        handler = zenoh.handlers.Callback(on_arrival, indirect=False)
        self._declared.append(self._session.declare_queryable(key, handler, complete=True))

    def declare_alive(self, key: str) -> None:
        """Show the token ``key`` to everyone for as long as this session lives."""
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
        """Ask ``key`` of ``peer``; the future is done when the question was handed to the network.

        Zenoh ends the query after ``lifetime_seconds``, and keeps half a kilobyte for so long even
        if it was answered at once: callers give as little as will do.

        ``on_reply(header, payload)`` and at last ``on_finished`` are called on other threads and
        must not wait. Replies come one by one, in the order in which they were made.
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

    def session_left(self, session_id: SessionId) -> None:
        """Hold nothing of a session that is gone."""
        self._sockets.forget(session_id)

    def peer_host(self, node_id: NodeId, session_id: SessionId) -> str | None:
        """The IP address at the other end of a connection with a session; None without one."""
        # A link to the acceptor has the acceptor's own address.
        host = None if self._acceptor is None else self._acceptor.host_of(node_id)
        if host is not None:
            return host
        for link in self._session.info.links():
            if str(link.zid) == session_id:
                return endpoint_of(link.dst)[0]
        return None

    async def close(self, *, wait_seconds: float) -> None:
        """Leave. Takes a few milliseconds, as a rule, and at worst ``wait_seconds``. Idempotent.

        After those the session goes on closing by itself.
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
            _log.info("the session takes more than %s s to close", wait_seconds)
        finally:
            if self._acceptor is not None:
                await self._acceptor.close()
            self._declared.clear()
            self._outboxes.close()
            self._sockets.close()

    def _guard_links(self) -> None:
        """See that no connection holds up Zenoh's threads, which serve all of them."""

        def on_event(event: zenoh.LinkEvent) -> None:
            link = event.link
            # Zenoh has given a link up that is deleted, and would now wait until all was sent.
            is_new = event.kind == zenoh.SampleKind.PUT
            take = self._sockets.opened if is_new else self._sockets.given_up
            take(str(link.zid), endpoint_of(link.src), endpoint_of(link.dst))

        handler = zenoh.handlers.Callback(on_event, indirect=False)
        self._declared.append(
            self._session.info.declare_link_events_listener(handler, history=True)
        )

    def _call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed, and nobody is there to be told
            _log.debug("an event came after the end of the loop")


def _in_thread(work: Callable[[], _T], name: str) -> Future[_T]:
    """Do ``work`` on a thread that does not keep the interpreter, as an executor's would."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # so that its result is there, wanted or not

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it has to know
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _note_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.debug("%s", error)


def _close_unwanted(opening: Any) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
