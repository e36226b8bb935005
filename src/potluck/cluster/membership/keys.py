"""The cluster's key space in Zenoh.

    potluck/<cluster>/<wire version>/alive/<node id>/<session id>    liveliness token
    potluck/<cluster>/<wire version>/call/<node id>/<session id>     queryable
    potluck/<cluster>/<wire version>/cancel/<node id>/<session id>   subscriber

A session id names one run of a node's agent, so that a node that restarts within a lease is seen
to have left and joined. The layout of tokens is the same in every wire version: it is how versions
find out about each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from potluck.cluster.membership.config import is_node_id
from potluck.types.cluster import NodeId

SessionId = NewType("SessionId", str)
"""One run of a node's agent: the id that Zenoh gives its session."""

_ROOT = "potluck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A session of a node, as its token says."""

    node_id: NodeId
    session_id: SessionId
    wire_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpace:
    """The keys of one cluster, as a node of ``wire_version`` uses them."""

    cluster_id: str
    wire_version: int

    def alive(self, node_id: NodeId, session_id: SessionId) -> str:
        """The liveliness token of a session."""
        return self._key("alive", node_id, session_id)

    def call(self, node_id: NodeId, session_id: SessionId) -> str:
        """Where a session takes calls."""
        return self._key("call", node_id, session_id)

    def cancel(self, node_id: NodeId, session_id: SessionId) -> str:
        """Where a session is told that a call's answer is no longer wanted."""
        return self._key("cancel", node_id, session_id)

    def anyone_alive(self) -> str:
        """Matches every token of the cluster, whatever its wire version."""
        return f"{_ROOT}/{self.cluster_id}/*/alive/*/*"

    def _key(self, kind: str, node_id: NodeId, session_id: SessionId) -> str:
        return f"{_ROOT}/{self.cluster_id}/{self.wire_version}/{kind}/{node_id}/{session_id}"


def parse_alive(key: str) -> Sighting | None:
    """What a token's key says; None if it is not one of ours."""
    match key.split("/"):
        case [root, _, version, "alive", node_id, session_id] if (
            root == _ROOT and version.isascii() and version.isdigit() and is_node_id(node_id)
        ):
            return Sighting(
                node_id=NodeId(node_id),
                session_id=SessionId(session_id),
                wire_version=int(version),
            )
    return None
