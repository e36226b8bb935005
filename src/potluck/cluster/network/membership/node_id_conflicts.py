"""Other agents with this node's id: an earlier run whose token has not expired, or a copy.

Copying a state directory (usually with a whole SD card) makes two nodes with one id. The agent that
has run longer continues; the other one must leave. An earlier run of the same agent leaves a token
too, which answers no calls and expires within the lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from potluck.cluster.network.membership.client import CallClient
from potluck.cluster.network.membership.messages import MALFORMED, NodeSession, SessionId
from potluck.cluster.network.membership.server import MethodTable
from potluck.errors import CallError, NodeIdInUseError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_METHOD = "membership.run"

_MORE_SECONDS = 0.5
"""How long beyond the lease to wait: a token that still exists then belongs to a running agent."""

_AGAIN_SECONDS = 0.05
"""The delay before asking again; a token may be known before its session can be reached."""

_SURELY_OLDER_SECONDS = 1.0
"""The difference in age from which one run is considered older, since answers take time. If two
started closer together, their session ids decide."""


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent: its session and address, and how long it has run."""

    session_id: SessionId
    address: str
    seconds: float


class NodeIdConflicts:
    """The other sessions with this node's id. For use in the session's event loop.

    ``on_conflict`` is called once, with an error for the user, if this node must leave.
    """

    def __init__(
        self,
        node_id: NodeId,
        session_id: SessionId,
        address: str,
        client: CallClient,
        *,
        wire_version: int,
        lease_milliseconds: int,
        on_conflict: Callable[[NodeIdInUseError], None],
    ) -> None:
        self._node_id = node_id
        self._session_id = session_id
        self._address = address
        self._client = client
        self._wire_version = wire_version
        self._patience_seconds = lease_milliseconds / 1000 + _MORE_SECONDS
        self._on_conflict = on_conflict
        self._started = time.monotonic()
        self._earlier: set[SessionId] = set()
        self._examinations: dict[NodeSession, asyncio.Task[None]] = {}
        self._warned_of: set[SessionId] = set()

    def register(self, methods: MethodTable) -> None:
        """Register the call by which other runs ask about this one."""
        methods.register(_METHOD, self._on_run)

    def moved(self, session_id: SessionId, address: str, client: CallClient) -> None:
        """Handle that this run has another session from now on; the token of the earlier one
        may still be seen for a while.
        """
        self.close()
        self._earlier.add(self._session_id)
        self._session_id, self._address, self._client = session_id, address, client

    def on_put(self, node_session: NodeSession) -> None:
        """Handle a token with this node's id; those of this run are ignored."""
        is_other = (
            node_session.node_id == self._node_id
            and node_session.session_id != self._session_id
            and node_session.session_id not in self._earlier
        )
        if is_other and node_session not in self._examinations:
            self._examinations[node_session] = asyncio.create_task(self._examine(node_session))

    def on_delete(self, node_session: NodeSession) -> None:
        """Handle the end of such a token."""
        self._warned_of.discard(node_session.session_id)
        examination = self._examinations.pop(node_session, None)
        if examination is not None:
            examination.cancel()

    def close(self) -> None:
        """Stop asking: this node is leaving."""
        for examination in self._examinations.values():
            examination.cancel()
        self._examinations.clear()

    async def _on_run(self, payload: bytes) -> bytes:
        """Answer another run of this id, which may leave before it is asked in turn."""
        try:
            other = msgspec.msgpack.decode(payload, type=_Run)
        except MALFORMED as error:
            raise CallError(f"this is not a run of an agent: {error}") from error
        if self._stays(other.session_id, other):
            self._warn_of(other.session_id, other)
        return msgspec.msgpack.encode(self._run())

    def _run(self) -> _Run:
        return _Run(
            session_id=self._session_id,
            address=self._address,
            seconds=time.monotonic() - self._started,
        )

    async def _examine(self, node_session: NodeSession) -> None:
        deadline = time.monotonic() + self._patience_seconds
        other = None
        while other is None and (left := deadline - time.monotonic()) > 0:
            if node_session.wire_version == self._wire_version:
                other = await self._ask(node_session.session_id, left)
            await asyncio.sleep(_AGAIN_SECONDS if other is None else 0)
        if self._stays(node_session.session_id, other):
            self._warn_of(node_session.session_id, other)
            return
        self._on_conflict(
            NodeIdInUseError(
                self._node_id,
                f"node id {self._node_id} is in use by {_describe(other)}: this state directory "
                "was probably copied",
                hint="give this node a new id with: potluck up --new-node-id",
            )
        )

    def _warn_of(self, session_id: SessionId, other: _Run | None) -> None:
        """Log that another session has this node's id, once for each session."""
        if session_id in self._warned_of:
            return
        self._warned_of.add(session_id)
        _log.warning(
            "%s also uses this node's id %s: its state directory is probably a copy of this "
            "one. It must be stopped, and started once with --new-node-id",
            _describe(other),
            self._node_id,
        )

    async def _ask(self, session_id: SessionId, seconds: float) -> _Run | None:
        try:
            answer = await self._client.call(
                self._node_id,
                session_id,
                _METHOD,
                msgspec.msgpack.encode(self._run()),
                timeout_seconds=seconds,
            )
            return msgspec.msgpack.decode(answer, type=_Run)
        except (CallError, *MALFORMED) as error:
            _log.debug("another session of this node's id: %s", error)
            return None

    def _stays(self, session_id: SessionId, other: _Run | None) -> bool:
        """Return whether this run continues; the other run decides by the same rule.

        A run that does not answer is assumed to be older than one that has only just started.
        """
        own_seconds = self._run().seconds
        if other is None:
            return own_seconds > 2 * self._patience_seconds
        if abs(own_seconds - other.seconds) < _SURELY_OLDER_SECONDS:
            return self._session_id < session_id
        return own_seconds > other.seconds


def _describe(run: _Run | None) -> str:
    return "an agent that does not answer" if run is None else f"the agent at {run.address}"
