"""The key space of control calls in Zenoh, and their messages: msgpack of msgspec beside payloads.

A query carries a ``CallHeader`` as its attachment and the request as its payload. Each reply
carries a ``Part``, with that part of the answer as its payload, or ends the call with ``End`` or
``Failure``. A query that ends without either was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType

import msgspec

from potluck.cluster.network.trust.credentials import is_node_id
from potluck.errors import CallError
from potluck.types.cluster import NodeId

MAX_PAYLOAD_BYTES = 1 << 20
"""The limit for a request and for each part of an answer. Control only: weights and activations use
edges."""


SessionId = NewType("SessionId", str)
"""The id of one run of a node's agent, which is that of its Zenoh session."""

_ROOT = "potluck"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSession:
    """A node's session, as read from its liveliness token.

        potluck/<cluster>/<wire version>/alive/<node id>/<session id>    liveliness token
        potluck/<cluster>/<wire version>/call/<node id>/<session id>     queryable
        potluck/<cluster>/<wire version>/cancel/<node id>/<session id>   subscriber

    A session id identifies one run of a node's agent, so that a node that restarts within a lease
    is seen to leave and join. The layout of tokens is the same in every wire version, so that nodes
    of different versions can detect each other.
    """

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


class CallHeader(msgspec.Struct, frozen=True, array_like=True):
    """The calling session and the method; ``call_id`` is unique within the session."""

    node_id: str
    session_id: str
    call_id: int
    method: str


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """Cancels a call."""

    session_id: str
    call_id: int


class Part(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One part of an answer, numbered from 0 so that a lost one is detected."""

    index: int


class End(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer is complete."""

    num_parts: int


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The call failed; the fields of a ``PotluckError``."""

    message: str
    hint: str


ReplyHeader = Part | End | Failure

MALFORMED = (ValueError, RecursionError)
"""The errors of decoding: no msgpack, text that is not UTF-8, another type, nested too deeply."""

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(CallHeader).decode
decode_cancel = msgspec.msgpack.Decoder(Cancel).decode
decode_reply: Callable[[bytes], ReplyHeader] = msgspec.msgpack.Decoder(Part | End | Failure).decode


def check_payload(payload: bytes, what: str) -> None:
    """Raise ``CallError`` if ``payload``, described as ``what``, is over the limit."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise CallError(
            f"{what} has {len(payload):,} bytes; the limit for a control message is "
            f"{MAX_PAYLOAD_BYTES:,}",
            hint="send it in parts",
        )


def left_error() -> CallError:
    """Return the error of calls by a node that has left."""
    return CallError("this node has left the cluster")
