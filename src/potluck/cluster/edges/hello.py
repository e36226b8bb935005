"""The handshake of a new edge.

The sender's HELLO says which edge it wants to be; the receiver answers with its own HELLO, or with
a FAILURE whose header has the reason. Without an answer a sender would learn that it was refused
only when a later send fails: in TLS 1.3 a client's handshake is complete before its certificate has
been checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from potluck.cluster.edges.frames import (
    PREAMBLE_BYTES,
    FrameKind,
    Preamble,
    Scope,
    describe_difference,
    encode_preamble_into,
    encode_scope,
)
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.step import StepId

HELLO_LIMITS = EdgeLimits(max_header_bytes=1024, max_payload_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies an edge of a plan.

    ``index`` counts the edges of a plan: edge 0 leads from the coordinator to the first stage, edge
    i from stage i - 1 to stage i, and the last one from the last stage back to the coordinator.
    Stages that are members of a group are counted too, but edges connect only group leaders. Within
    the group whose leader is stage ``index``, an edge leads from member ``sender`` to member
    ``receiver``. ``is_reversed``: the receiver connects, because the sender cannot reach it.
    """

    scope: Scope
    index: int
    sender: int | None = None
    receiver: int | None = None
    is_reversed: bool = False

    @property
    def name(self) -> str:
        """Return the name of the edge for error messages."""
        if self.sender is None:
            return f"edge {self.index}" + (" from its receiver" if self.is_reversed else "")
        return f"edge {self.sender} to {self.receiver} of group {self.index}"


class _HelloHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    index: int
    sender: int | None = None
    receiver: int | None = None
    is_reversed: bool = False


class _RefusalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str


def encode_hello(hello: Hello) -> bytes:
    """Return the frame that a sender begins with, and that an agreeing receiver answers with."""
    header = _HelloHeader(
        index=hello.index,
        sender=hello.sender,
        receiver=hello.receiver,
        is_reversed=hello.is_reversed,
    )
    return _frame(hello.scope, FrameKind.HELLO, header)


def encode_refusal(scope: Scope, reason: str) -> bytes:
    """Return the frame with which a receiver refuses an edge."""
    return _frame(scope, FrameKind.FAILURE, _RefusalHeader(reason=reason[:500]))


def read_hello(scope: Scope, preamble: Preamble, header: bytes) -> Hello:
    """Return the hello in a frame. Raise ``ValueError`` with the reason if it is not one for
    ``scope``.
    """
    if preamble.kind is not FrameKind.HELLO:
        raise ValueError("it did not begin with a hello")
    if preamble.scope != scope:
        raise ValueError(describe_difference(scope, preamble.scope))
    try:
        read = msgspec.msgpack.decode(header, type=_HelloHeader)
    except ValueError as error:  # DecodeError, or text that is not UTF-8
        raise ValueError("it sent a malformed hello") from error
    return Hello(
        scope=scope,
        index=read.index,
        sender=read.sender,
        receiver=read.receiver,
        is_reversed=read.is_reversed,
    )


def check_hello(expected: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError`` with the reason unless the frame is the expected hello."""
    found = read_hello(expected.scope, preamble, header)
    if found != expected:
        raise ValueError(f"expected {expected.name}, got {found.name}")


def check_answer(sent: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError`` with the reason unless the frame accepts the hello that was sent."""
    if preamble.kind is not FrameKind.FAILURE:
        check_hello(sent, preamble, header)
        return
    try:
        reason = msgspec.msgpack.decode(header, type=_RefusalHeader).reason
    except ValueError as error:  # DecodeError, or text that is not UTF-8
        raise ValueError("it sent a malformed refusal") from error
    raise ValueError(f"refused: {reason}")


def _frame(scope: Scope, kind: FrameKind, header: msgspec.Struct) -> bytes:
    encoded = msgspec.msgpack.encode(header)
    preamble = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(preamble, encode_scope(scope), kind, StepId(0), len(encoded), 0)
    return bytes(preamble) + encoded
