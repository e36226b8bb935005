"""A node's membership: the other members, and calls to and from them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.membership.client import CallClient
from potluck.cluster.network.membership.config import MembershipConfig
from potluck.cluster.network.membership.diagnosis import REMOVED, explain, hint_for
from potluck.cluster.network.membership.messages import (
    KeySpace,
    NodeSession,
    SessionId,
    parse_alive,
)
from potluck.cluster.network.membership.node_id_conflicts import NodeIdConflicts
from potluck.cluster.network.membership.roster import (
    Change,
    Incompatible,
    Joined,
    Roster,
    SessionEnded,
)
from potluck.cluster.network.membership.server import CallServer, MethodTable
from potluck.cluster.network.membership.session import CLOSE_SECONDS, ZenohSession
from potluck.errors import (
    JoinError,
    NodeIdInUseError,
    NodeLostError,
    RemovedFromClusterError,
)
from potluck.types.cluster import SAME_VERSION, NodeId

_log = logging.getLogger(__name__)

_OTHERS_SECONDS = 0.5
"""How long a compatible member may take to appear after a node of another version has."""

_GIVE_UP_SECONDS = 0.5
"""How long to wait for a failed session to close: a connection to an address that does not answer
keeps it open for seconds."""

DEFAULT_CALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Callbacks for changes of other nodes, called in the event loop, also during
    :meth:`Membership.open`.

    For each node, ``on_join`` and ``on_leave`` alternate; if its agent restarts, it leaves and
    joins. ``on_incompatible`` gets the wire version of a node that cannot join. ``on_conflict`` is
    called when this node must leave because another agent uses its id.
    """

    on_join: Callable[[NodeId], None] = lambda node_id: None
    on_leave: Callable[[NodeId], None] = lambda node_id: None
    on_incompatible: Callable[[NodeId, int], None] = lambda node_id, wire_version: None
    on_conflict: Callable[[NodeIdInUseError], None] = lambda error: None


class Membership:
    """Created by :meth:`open`; call ``close`` when done.

    For use only in the event loop that opened it. Others see this node leave when it is closed,
    within milliseconds if its process dies, and within the lease if it is stopped or disconnected.
    """

    def __init__(
        self,
        config: MembershipConfig,
        session: ZenohSession,
        methods: MethodTable,
        observer: Observer,
    ) -> None:
        keys = KeySpace(cluster_id=config.cluster_id, wire_version=config.wire_version)
        self._config = config
        self._keys = keys
        self._methods = methods
        self._observer = observer
        self._use(session)
        self._someone_seen = asyncio.Event()
        self._conflict: NodeIdInUseError | None = None
        self._has_left = False
        self._conflicts = NodeIdConflicts(
            config.node_id,
            session.session_id,
            str(session.address),
            self._client,
            wire_version=config.wire_version,
            lease_milliseconds=config.lease_milliseconds,
            on_conflict=self._on_conflict,
        )
        self._conflicts.register(methods)
        self._declare()

    @classmethod
    async def open(
        cls,
        config: MembershipConfig,
        *,
        methods: MethodTable | None = None,
        observer: Observer | None = None,
    ) -> Membership:
        """Join. If ``config`` names addresses to join, wait until a member is seen.

        Raises ``JoinError`` if the address cannot be listened on, and if no member was reached
        within ``config.join_timeout_seconds`` (plus three seconds to diagnose why);
        ``NodeIdInUseError`` if the first member seen has this node's id.
        """
        session = await ZenohSession.open(config)
        membership = cls(config, session, methods or MethodTable(), observer or Observer())
        try:
            if config.connect:
                await membership._wait_for_members()
        except BaseException:
            await membership.close(wait_seconds=_GIVE_UP_SECONDS)
            raise
        return membership

    async def move(self, listen: Address, connect: Sequence[Address]) -> None:
        """Listen at ``listen`` from now on, and connect to ``connect``: the address so far is gone.

        All members leave, and those that can be reached join again; so does this node as they see
        it. Calls in progress, also to this node, fail with ``NodeLostError``. Routes stay. Raises
        ``JoinError`` if the address cannot be listened on; then nothing has changed.
        """
        config = replace(self._config, listen=listen, connect=tuple(connect))
        session = await ZenohSession.open(config, successor_of=self._session)
        if self._has_left:
            await session.close(wait_seconds=_GIVE_UP_SECONDS)
            return
        before, server, client = self._session, self._server, self._client
        for node_id in list(self._roster.sessions):
            self._forget(node_id)
        client.session_left(self.node_id, before.session_id)
        self._config = config
        self._use(session)
        self._conflicts.moved(session.session_id, str(session.address), self._client)
        self._declare()
        client.close()
        await server.close()
        await before.close(wait_seconds=_GIVE_UP_SECONDS)

    def refuse_removed(self) -> None:
        """Disconnect the nodes that are now in the file of removed nodes.

        Each of them leaves as if its agent had exited, and cannot join again.
        """
        self._session.refuse_removed()
        for node_id in list(self._roster.sessions):
            if self._is_removed(node_id):
                self._forget(node_id)

    @property
    def node_id(self) -> NodeId:
        """Return this node's id."""
        return self._config.node_id

    @property
    def address(self) -> Address:
        """Return the address where this node listens, and which others may join."""
        return self._session.address

    def add_route(self, name: str) -> socket.socket | None:
        """Route connections to this node's address that ask for ``name`` (SNI) to the returned
        socket.

        It is the receiving end for ``trust.connection_sources.HandedConnections``, belongs to the
        caller, and can be inherited by a child process. The name is in lower case and ends with
        ``.potluck``. Returns None if this node does not use TLS, which happens only in tests.
        """
        return self._session.add_route(name)

    def remove_route(self, name: str) -> None:
        """Refuse connections that ask for ``name``. Idempotent."""
        self._session.remove_route(name)

    def nodes(self) -> frozenset[NodeId]:
        """Return the other current members."""
        return frozenset(self._roster.sessions)

    def reachable_nodes(self) -> frozenset[NodeId]:
        """Return the current members, this node included: those that ``call`` can reach."""
        return self.nodes() | {self.node_id}

    def peer_host(self, node_id: NodeId) -> str | None:
        """Return the IP address from which another member is connected; None if it is not."""
        session_id = self._roster.session_of(node_id)
        return None if session_id is None else self._session.peer_host(node_id, session_id)

    async def call(
        self,
        node_id: NodeId,
        method: str,
        payload: bytes,
        *,
        timeout_seconds: float = DEFAULT_CALL_SECONDS,
    ) -> bytes:
        """Return the answer of ``method`` of a node (including this one). Cancelling cancels the
        handler.

        Raises ``NodeLostError`` if the node is not a member or leaves, and ``CallError`` with the
        handler's own message and hint, for an unknown method, for a payload over
        ``messages.MAX_PAYLOAD_BYTES``, and if there is no answer in time.
        """
        target = self._find(node_id)
        return await self._client.call(
            node_id, target, method, payload, timeout_seconds=timeout_seconds
        )

    def call_stream(
        self, node_id: NodeId, method: str, payload: bytes, *, silence_seconds: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the answer in order, as they are produced.

        Closing the generator, or cancelling the task that waits for it, cancels the handler.
        ``silence_seconds`` is the longest wait for a part, after which ``SilentNodeError`` is
        raised; None waits as long as the node is a member. Raises as ``call`` does, and
        ``CallError`` if more than ``client.MAX_WAITING_PARTS`` or ``client.MAX_WAITING_BYTES`` are
        unread.
        """
        target = self._find(node_id)
        return self._client.stream(
            node_id, target, method, payload, silence_seconds=silence_seconds
        )

    async def close(self, *, wait_seconds: float = CLOSE_SECONDS) -> None:
        """Leave: cancel handlers, fail calls, close the session. Bounded in time. Idempotent."""
        self._has_left = True
        self._conflicts.close()
        self._client.close()
        await self._server.close()
        await self._session.close(wait_seconds=wait_seconds)

    def _use(self, session: ZenohSession) -> None:
        """Call and answer over ``session``, in which no other member is known yet."""
        self._session = session
        self._client = CallClient(session, self._keys, self.node_id)
        self._server = CallServer(session, self._methods, self._is_removed)
        self._roster = Roster(own_node_id=self.node_id, wire_version=self._config.wire_version)

    def _declare(self) -> None:
        """Take part in the cluster with the current session."""
        session, keys, me = self._session, self._keys, (self.node_id, self._session.session_id)
        session.serve(keys.call(*me), self._server.on_query)
        session.subscribe(keys.cancel(*me), self._server.on_cancel)
        session.watch_liveliness(keys.anyone_alive(), partial(self._on_token, session))
        session.declare_alive(keys.alive(*me))  # last: nodes that see it may call immediately

    def _forget(self, node_id: NodeId) -> None:
        """Handle the end of all sessions of a node."""
        for session_id in reversed(self._roster.sessions[node_id]):
            ended = NodeSession(
                node_id=node_id, session_id=session_id, wire_version=self._config.wire_version
            )
            self._step(self._roster.without_token, ended)

    def _find(self, node_id: NodeId) -> SessionId:
        if node_id == self._config.node_id:
            return self._session.session_id
        session_id = self._roster.session_of(node_id)
        if session_id is None:
            raise NodeLostError(
                node_id,
                f"node {node_id} is not in the cluster",
                hint="list its nodes with: potluck ps",
            )
        return session_id

    def _on_token(self, session: ZenohSession, key: str, is_alive: bool) -> None:
        if session is not self._session:
            return  # it is being closed
        node_session = parse_alive(key)
        if node_session is None:
            _log.warning("ignored a malformed liveliness token: %s", key)
            return
        if is_alive and self._is_removed(node_session.node_id):
            return
        (self._conflicts.on_put if is_alive else self._conflicts.on_delete)(node_session)
        self._step(
            self._roster.with_token if is_alive else self._roster.without_token, node_session
        )

    def _is_removed(self, node_id: NodeId) -> bool:
        return self._session.is_removed(node_id)

    def _step(
        self,
        step: Callable[[NodeSession], tuple[Roster, tuple[Change, ...]]],
        node_session: NodeSession,
    ) -> None:
        self._roster, changes = step(node_session)
        for change in changes:
            self._apply(change)

    def _on_conflict(self, error: NodeIdInUseError) -> None:
        self._conflict = error
        self._someone_seen.set()
        self._observer.on_conflict(error)

    def _apply(self, change: Change) -> None:
        match change:
            case Joined(node_id=node_id):
                _log.debug("node %s joined", node_id)
                self._someone_seen.set()
                self._observer.on_join(node_id)
            case SessionEnded(node_id=node_id, session_id=session_id):
                _log.debug("the session of node %s ended", node_id)
                self._client.session_left(node_id, session_id)
                self._server.session_left(session_id)
                self._session.session_left(session_id)
                self._observer.on_leave(node_id)
            case Incompatible(node_id=node_id, wire_version=wire_version):
                _log.warning(
                    "node %s cannot join: it speaks wire version %d, and this node %d",
                    node_id,
                    wire_version,
                    self._config.wire_version,
                )
                self._someone_seen.set()
                self._observer.on_incompatible(node_id, wire_version)

    async def _wait_for_members(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.join_timeout_seconds):
                await self._someone_seen.wait()
        if self._conflict is not None:
            raise self._conflict
        if self._roster.incompatible and not self._roster.sessions:
            await asyncio.sleep(_OTHERS_SECONDS)
        if self._roster.sessions:
            return
        where = ", ".join(map(str, self._config.connect))
        if self._roster.incompatible:
            versions = sorted(
                {node_session.wire_version for node_session in self._roster.incompatible}
            )
            raise JoinError(
                f"could not join at {where}: the nodes there speak wire version "
                f"{', '.join(map(str, versions))}, and this node {self._config.wire_version}",
                hint=SAME_VERSION,
            )
        reasons = await asyncio.gather(
            *(
                asyncio.to_thread(explain, address, self._config.pem)
                for address in self._config.connect
            )
        )
        if REMOVED in reasons:
            raise RemovedFromClusterError(self.node_id)
        if not self._config.has_to_join:
            where = ", ".join(map(str, self._config.connect))
            _log.warning("no other node answers at %s; this node keeps trying", where)
            return
        answers = zip(self._config.connect, reasons, strict=True)
        raise JoinError(
            "could not join at " + "; ".join(f"{address}: {reason}" for address, reason in answers),
            hint=hint_for(reasons),
        )
