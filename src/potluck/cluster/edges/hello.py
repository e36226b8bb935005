"""What the two sides of a new edge say to each other before the first step.

The sender says which edge it means to be; the receiver answers with a HELLO of its own, or with a
FAILURE whose header says why not. Without an answer a sender would learn that it was refused
only when a later send fails: in TLS 1.3 a client is done before its certificate has been looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.edges.frames import (
    PREAMBLE_BYTES,
    FrameKind,
    Preamble,
    Scope,
    describe_difference,
    encode_preamble_into,
    encode_scope,
)
from potluck.types.step import StepId

HELLO_LIMITS = EdgeLimits(max_header_bytes=1024, max_payload_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Which edge of which plan a connection is.

    ``index`` counts the edges of a plan: 0 leads from the coordinator to the first stage, i from
    stage i - 1 to stage i, and the last one from the last stage back to the coordinator.
    """

    scope: Scope
    index: int


class _HelloHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: int


class _RefusalHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str


def encode_hello(hello: Hello) -> bytes:
    """The frame that a sender begins with, and that an agreeing receiver answers with."""
    return _frame(hello.scope, FrameKind.HELLO, _HelloHeader(index=hello.index))


def encode_refusal(scope: Scope, reason: str) -> bytes:
    """The frame that a receiver answers with when the edge is not what it waits for."""
    return _frame(scope, FrameKind.FAILURE, _RefusalHeader(reason=reason[:500]))


def check_hello(expected: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError``, saying why, unless the frame is the hello that is expected."""
    if preamble.kind is not FrameKind.HELLO:
        raise ValueError("it did not begin with a hello")
    if preamble.scope != expected.scope:
        raise ValueError(describe_difference(expected.scope, preamble.scope))
    try:
        index = msgspec.msgpack.decode(header, type=_HelloHeader).index
    except ValueError as error:  # DecodeError, or text that is no UTF-8
        raise ValueError("it sent a malformed hello") from error
    if index != expected.index:
        raise ValueError(f"edge {index} is not edge {expected.index}")


def check_answer(sent: Hello, preamble: Preamble, header: bytes) -> None:
    """Raise ``ValueError``, saying why, unless the frame agrees to the hello that was sent."""
    if preamble.kind is not FrameKind.FAILURE:
        check_hello(sent, preamble, header)
        return
    try:
        reason = msgspec.msgpack.decode(header, type=_RefusalHeader).reason
    except ValueError as error:  # DecodeError, or text that is no UTF-8
        raise ValueError("it sent a malformed refusal") from error
    raise ValueError(f"refused: {reason}")


def _frame(scope: Scope, kind: FrameKind, header: msgspec.Struct) -> bytes:
    encoded = msgspec.msgpack.encode(header)
    preamble = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(preamble, encode_scope(scope), kind, StepId(0), len(encoded), 0)
    return bytes(preamble) + encoded
