"""The list of members: a pure state machine over liveliness tokens.

A node may have several sessions for a while: its agent was killed and restarted before the first
lease expired, or its state directory was copied. The first one seen counts, so that a copy does not
replace a running agent; when it ends, the next one is used. For each node ``Joined`` and
``SessionEnded`` alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from potluck.cluster.network.membership.messages import NodeSession, SessionId
from potluck.types.cluster import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The node can be called at this session."""

    node_id: NodeId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """The session has ended; calls to and from it have ended, too."""

    node_id: NodeId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatible:
    """A node with another wire version exists; it is not a member."""

    node_id: NodeId
    wire_version: int


Change = Joined | SessionEnded | Incompatible


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The other nodes, as seen by ``own_node_id``.

    ``sessions`` are those of each member in the order in which they were seen; never empty.
    """

    own_node_id: NodeId
    wire_version: int
    sessions: Mapping[NodeId, tuple[SessionId, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    incompatible: frozenset[NodeSession] = field(default_factory=frozenset)

    def session_of(self, node_id: NodeId) -> SessionId | None:
        """Return the session to call a node at; None if it is not a member."""
        sessions = self.sessions.get(node_id)
        return None if sessions is None else sessions[0]

    def with_token(self, node_session: NodeSession) -> tuple[Roster, tuple[Change, ...]]:
        """Return the roster after a token appeared, and the resulting changes."""
        node_id, session_id = node_session.node_id, node_session.session_id
        if node_id == self.own_node_id:
            return self, ()
        if node_session.wire_version != self.wire_version:
            if node_session in self.incompatible:
                return self, ()
            after = replace(self, incompatible=self.incompatible | {node_session})
            return after, (Incompatible(node_id=node_id, wire_version=node_session.wire_version),)
        known = self.sessions.get(node_id, ())
        if session_id in known:
            return self, ()
        joined = () if known else (Joined(node_id=node_id, session_id=session_id),)
        return self._with(node_id, (*known, session_id)), joined

    def without_token(self, node_session: NodeSession) -> tuple[Roster, tuple[Change, ...]]:
        """Return the roster after a token disappeared, and the resulting changes."""
        node_id, session_id = node_session.node_id, node_session.session_id
        if node_session in self.incompatible:
            return replace(self, incompatible=self.incompatible - {node_session}), ()
        known = self.sessions.get(node_id, ())
        if node_session.wire_version != self.wire_version or session_id not in known:
            return self, ()
        remaining = tuple(session for session in known if session != session_id)
        after = self._with(node_id, remaining)
        if session_id != known[0]:
            return after, ()
        left = SessionEnded(node_id=node_id, session_id=session_id)
        following = tuple(Joined(node_id=node_id, session_id=session) for session in remaining[:1])
        return after, (left, *following)

    def _with(self, node_id: NodeId, sessions: tuple[SessionId, ...]) -> Roster:
        others = {known: value for known, value in self.sessions.items() if known != node_id}
        after = {**others, node_id: sessions} if sessions else others
        return replace(self, sessions=MappingProxyType(after))
