"""Steps and their results as frames carry them.

Headers are msgpack documents of the frozen values themselves; the payload of a step is the hidden
state, float32 little-endian ``[num_tokens, hidden_size]``.
"""

from __future__ import annotations

import msgspec

from potluck.cluster.edges.edge import EdgeLimits
from potluck.errors import EngineError, PotluckError
from potluck.scheduling.blocks import blocks_for
from potluck.types.step import SampledToken, Step


class _Failure(msgspec.Struct, frozen=True):
    message: str
    hint: str


encode_step = msgspec.msgpack.Encoder().encode
encode_sampled = msgspec.msgpack.Encoder().encode
decode_step = msgspec.msgpack.Decoder(Step).decode
decode_sampled = msgspec.msgpack.Decoder(tuple[SampledToken, ...]).decode
_decode_failure = msgspec.msgpack.Decoder(_Failure).decode


def encode_failure(error: PotluckError) -> bytes:
    """The header of a frame that takes a result's place."""
    return msgspec.msgpack.encode(_Failure(message=error.message, hint=error.hint))


def decode_failure(header: bytes | memoryview) -> EngineError:
    """The error that a stage met."""
    failure = _decode_failure(header)
    return EngineError(failure.message, hint=failure.hint)


def edge_limits(
    *, hidden_size: int, context_tokens: int, max_step_tokens: int, max_step_sequences: int
) -> EdgeLimits:
    """Bounds on the frames of a deployment's edges.

    A header's integers take at most 9 bytes each; the names of fields and the rest of a slice well
    under 400. An opening has the whole sequence, and 20 alternatives a token come back.
    """
    per_sequence = 1024 + 9 * (blocks_for(context_tokens) + context_tokens) + 20 * 64
    return EdgeLimits(
        max_header_bytes=4096 + 9 * max_step_tokens + max_step_sequences * per_sequence,
        max_payload_bytes=4 * hidden_size * max_step_tokens,
    )
