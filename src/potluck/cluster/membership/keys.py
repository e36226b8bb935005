"""The cluster's key space in Zenoh.

    potluck/<cluster>/<wire version>/alive/<node id>/<session id>    liveliness token
    potluck/<cluster>/<wire version>/call/<node id>/<session id>     queryable
    potluck/<cluster>/<wire version>/cancel/<node id>/<session id>   subscriber

A session id identifies one run of a node's agent, so that a node that restarts within a lease is
seen to leave and join. The layout of tokens is the same in every wire version, so that nodes of
different versions can detect each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from potluck.cluster.membership.config import is_node_id
from potluck.types.cluster import NodeId

SessionId = NewType("SessionId", str)
"""The id of one run of a node's agent, which is that of its Zenoh session."""

_ROOT = "potluck"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSession:
    """A node's session, as read from its liveliness token."""

    node_id: NodeId
    session_id: SessionId
    wire_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpace:
    """The keys of one cluster for a node of ``wire_version``."""

    cluster_id: str
    wire_version: int

    def alive(self, node_id: NodeId, session_id: SessionId) -> str:
        """Return the key of a session's liveliness token."""
        return self._key("alive", node_id, session_id)

    def call(self, node_id: NodeId, session_id: SessionId) -> str:
        """Return the key on which a session receives calls."""
        return self._key("call", node_id, session_id)

    def cancel(self, node_id: NodeId, session_id: SessionId) -> str:
        """Return the key on which a session receives cancellations of calls."""
        return self._key("cancel", node_id, session_id)

    def anyone_alive(self) -> str:
        """Return a pattern for every token of the cluster, of any wire version."""
        return f"{_ROOT}/{self.cluster_id}/*/alive/*/*"

    def _key(self, kind: str, node_id: NodeId, session_id: SessionId) -> str:
        return f"{_ROOT}/{self.cluster_id}/{self.wire_version}/{kind}/{node_id}/{session_id}"


def parse_alive(key: str) -> NodeSession | None:
    """Parse the key of a token; None if it is not one of ours."""
    match key.split("/"):
        case [root, _, version, "alive", node_id, session_id] if (
            root == _ROOT and version.isascii() and version.isdigit() and is_node_id(node_id)
        ):
            return NodeSession(
                node_id=NodeId(node_id),
                session_id=SessionId(session_id),
                wire_version=int(version),
            )
    return None
