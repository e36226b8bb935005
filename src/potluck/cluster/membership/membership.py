"""A node's place in the cluster: who else is there, and calls to and from them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from potluck.cluster.membership.address import Address
from potluck.cluster.membership.client import CallClient
from potluck.cluster.membership.config import MembershipConfig
from potluck.cluster.membership.diagnosis import explain
from potluck.cluster.membership.keys import KeySpace, SessionId, parse_alive
from potluck.cluster.membership.namesakes import Namesakes
from potluck.cluster.membership.roster import Change, Incompatible, Joined, Left, Roster
from potluck.cluster.membership.server import CallServer, MethodTable
from potluck.cluster.membership.session import CLOSE_SECONDS, ZenohSession
from potluck.errors import JoinError, NodeIdInUseError, NodeLostError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_OTHERS_SECONDS = 0.5
"""How long a member may take to show up after a node of another version has."""

_GIVE_UP_SECONDS = 0.5
"""How long to wait for the end of a session that nobody will miss: a connection to an address that
is silent holds it for seconds."""

DEFAULT_CALL_SECONDS = 5.0


def _ignore_node(node_id: NodeId) -> None:
    return


def _ignore_version(node_id: NodeId, wire_version: int) -> None:
    return


def _ignore_conflict(error: NodeIdInUseError) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Told in the loop of what happens to other nodes, also while :meth:`Membership.open` waits.

    For one node ``on_join`` and ``on_leave`` alternate; one whose agent restarts leaves and joins.
    ``on_incompatible`` is given the wire version of a node that cannot take part. ``on_conflict``
    is called when this node has to leave, because another agent runs under its id.
    """

    on_join: Callable[[NodeId], None] = _ignore_node
    on_leave: Callable[[NodeId], None] = _ignore_node
    on_incompatible: Callable[[NodeId, int], None] = _ignore_version
    on_conflict: Callable[[NodeIdInUseError], None] = _ignore_conflict


class Membership:
    """Made by :meth:`open`; use it as an async context manager, or ``close`` it.

    For use in the loop that opened it only. Others see this node leave when it is closed, within
    milliseconds when its process dies, and within the lease when it is stopped or cut off.
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
        self._session = session
        self._observer = observer
        self._client = CallClient(session, keys, config.node_id)
        self._server = CallServer(session, methods)
        self._roster = Roster(own_node_id=config.node_id, wire_version=config.wire_version)
        self._someone_seen = asyncio.Event()
        self._conflict: NodeIdInUseError | None = None
        self._namesakes = Namesakes(
            config.node_id,
            session.session_id,
            str(session.address),
            self._client,
            wire_version=config.wire_version,
            lease_milliseconds=config.lease_milliseconds,
            on_conflict=self._on_conflict,
        )
        self._namesakes.register(methods)
        me = (config.node_id, session.session_id)
        session.serve(keys.call(*me), self._server.on_query)
        session.subscribe(keys.cancel(*me), self._server.on_cancel)
        session.watch_liveliness(keys.anyone_alive(), self._on_token)
        session.declare_alive(keys.alive(*me))  # last: who sees it may call at once

    @classmethod
    async def open(
        cls,
        config: MembershipConfig,
        *,
        methods: MethodTable | None = None,
        observer: Observer | None = None,
    ) -> Membership:
        """Take part. Where ``config`` names addresses to join at, wait until a member is seen.

        Raises ``JoinError`` when the address cannot be listened on, and when no member was reached
        within ``config.join_timeout_seconds`` (and three seconds more to find out why);
        ``NodeIdInUseError`` when the first that is met has this node's id.
        """
        session = await ZenohSession.open(config)
        membership = cls(config, session, methods or MethodTable(), observer or Observer())
        try:
            if config.connect:
                await membership._wait_for_members()
        except BaseException:
            await membership._leave(_GIVE_UP_SECONDS)
            raise
        return membership

    @property
    def node_id(self) -> NodeId:
        """The node that takes part here."""
        return self._config.node_id

    @property
    def address(self) -> Address:
        """Where this node listens, and others may join."""
        return self._session.address

    def nodes(self) -> frozenset[NodeId]:
        """The other members at this moment."""
        return frozenset(self._roster.sessions)

    def peer_host(self, node_id: NodeId) -> str | None:
        """The IP address from which another member is connected; None where it is not."""
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
        """What ``method`` of a node (this one, too) answers. Cancelling it cancels the handler.

        Raises ``NodeLostError`` when the node is no member or leaves, and ``CallError`` with the
        handler's own message and hint, for an unknown method, a payload over
        ``messages.MAX_PAYLOAD_BYTES``, or no answer in time.
        """
        target = self._find(node_id)
        return await self._client.call(
            node_id, target, method, payload, timeout_seconds=timeout_seconds
        )

    def call_stream(
        self, node_id: NodeId, method: str, payload: bytes, *, silence_seconds: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The parts of the answer as they are made, in order.

        Closing the generator, or cancelling the task that waits for it, cancels the handler.
        ``silence_seconds``: the longest wait for a part, after which ``SilentNodeError`` is raised;
        None waits while the node lives. Raises as ``call`` does, and ``CallError`` when parts come
        so much faster than they are taken that over ``client.MAX_WAITING_PARTS`` or
        ``client.MAX_WAITING_BYTES`` wait.
        """
        target = self._find(node_id)
        return self._client.stream(
            node_id, target, method, payload, silence_seconds=silence_seconds
        )

    async def close(self) -> None:
        """Leave: end handlers, fail calls, close the session. Bounded in time, and idempotent."""
        await self._leave(CLOSE_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _leave(self, wait_seconds: float) -> None:
        self._namesakes.close()
        self._client.close()
        await self._server.close()
        await self._session.close(wait_seconds=wait_seconds)

    def _find(self, node_id: NodeId) -> SessionId:
        if node_id == self._config.node_id:
            return self._session.session_id
        session_id = self._roster.session_of(node_id)
        if session_id is None:
            raise NodeLostError(
                node_id, f"node {node_id} is not in the cluster", hint="potluck ps shows who is"
            )
        return session_id

    def _on_token(self, key: str, is_alive: bool) -> None:
        sighting = parse_alive(key)
        if sighting is None:
            _log.warning("a token that makes no sense: %s", key)
            return
        (self._namesakes.appeared if is_alive else self._namesakes.vanished)(sighting)
        step = self._roster.appeared if is_alive else self._roster.vanished
        self._roster, changes = step(sighting)
        for change in changes:
            self._apply(change)

    def _on_conflict(self, error: NodeIdInUseError) -> None:
        self._conflict = error
        self._someone_seen.set()
        self._observer.on_conflict(error)

    def _apply(self, change: Change) -> None:
        match change:
            case Joined(node_id=node_id):
                _log.info("node %s joined", node_id)
                self._someone_seen.set()
                self._observer.on_join(node_id)
            case Left(node_id=node_id, session_id=session_id):
                _log.info("node %s left", node_id)
                self._client.session_left(node_id, session_id)
                self._server.session_left(session_id)
                self._session.session_left(session_id)
                self._observer.on_leave(node_id)
            case Incompatible(node_id=node_id, wire_version=wire_version):
                _log.warning(
                    "node %s cannot take part: it speaks wire version %d, and this node %d",
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
            versions = sorted({sighting.wire_version for sighting in self._roster.incompatible})
            raise JoinError(
                f"could not join at {where}: the nodes there speak wire version "
                f"{', '.join(map(str, versions))}, and this node {self._config.wire_version}",
                hint="install the same version of Potluck on every node",
            )
        reasons = await asyncio.gather(
            *(
                asyncio.to_thread(explain, address, self._config.pem)
                for address in self._config.connect
            )
        )
        answers = zip(self._config.connect, reasons, strict=True)
        raise JoinError(
            "could not join at " + "; ".join(f"{address}: {reason}" for address, reason in answers),
            hint="check the address, and that every node was given the same secret",
        )
