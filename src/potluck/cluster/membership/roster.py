"""Who is in the cluster: a pure state machine over sightings of tokens.

A node may for a while have several sessions: its agent was killed and has started again before the
lease of the first ran out, or its state directory was copied. The one seen first counts, so that a
copy does not take the place of an agent that runs; when it goes, the next one is taken up. Of one
node every ``Joined`` is followed by a ``Left`` before the next ``Joined``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from potluck.cluster.membership.keys import SessionId, Sighting
from potluck.types.cluster import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The node can be called at this session."""

    node_id: NodeId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The session is gone; calls to and from it are over."""

    node_id: NodeId
    session_id: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatible:
    """A node of another wire version is there; it is no member."""

    node_id: NodeId
    wire_version: int


Change = Joined | Left | Incompatible


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The other nodes, as the node ``own_node_id`` sees them.

    ``sessions``: of each member, in the order in which they were seen; never empty.
    """

    own_node_id: NodeId
    wire_version: int
    sessions: Mapping[NodeId, tuple[SessionId, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    incompatible: frozenset[Sighting] = field(default_factory=frozenset)

    def session_of(self, node_id: NodeId) -> SessionId | None:
        """Where to call a node; None if it is no member."""
        sessions = self.sessions.get(node_id)
        return None if sessions is None else sessions[0]

    def appeared(self, sighting: Sighting) -> tuple[Roster, tuple[Change, ...]]:
        """The roster after a token was seen, and what changed by it."""
        node_id, session_id = sighting.node_id, sighting.session_id
        if node_id == self.own_node_id:
            return self, ()
        if sighting.wire_version != self.wire_version:
            if sighting in self.incompatible:
                return self, ()
            after = replace(self, incompatible=self.incompatible | {sighting})
            return after, (Incompatible(node_id=node_id, wire_version=sighting.wire_version),)
        known = self.sessions.get(node_id, ())
        if session_id in known:
            return self, ()
        joined = () if known else (Joined(node_id=node_id, session_id=session_id),)
        return self._with(node_id, (*known, session_id)), joined

    def vanished(self, sighting: Sighting) -> tuple[Roster, tuple[Change, ...]]:
        """The roster after a token went away, and what changed by it."""
        node_id, session_id = sighting.node_id, sighting.session_id
        if sighting in self.incompatible:
            return replace(self, incompatible=self.incompatible - {sighting}), ()
        known = self.sessions.get(node_id, ())
        if sighting.wire_version != self.wire_version or session_id not in known:
            return self, ()
        remaining = tuple(session for session in known if session != session_id)
        after = self._with(node_id, remaining)
        if session_id != known[0]:
            return after, ()
        left = Left(node_id=node_id, session_id=session_id)
        following = tuple(Joined(node_id=node_id, session_id=session) for session in remaining[:1])
        return after, (left, *following)

    def _with(self, node_id: NodeId, sessions: tuple[SessionId, ...]) -> Roster:
        others = {known: value for known, value in self.sessions.items() if known != node_id}
        after = {**others, node_id: sessions} if sessions else others
        return replace(self, sessions=MappingProxyType(after))
