"""The messages of control calls: msgspec msgpack next to the payload.

A query carries a ``CallHeader`` as its attachment and the request as its payload. Each reply
carries a ``Part``, with that part of the answer as its payload, or ends the call with ``End`` or
``Failure``. A query that ends without either was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from potluck.errors import CallError

MAX_PAYLOAD_BYTES = 1 << 20
"""The limit for a request and for each part of an answer. Control only: weights and activations use
edges."""


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
