"""Steps and their results as frames carry them.

Headers are msgpack documents of the frozen values themselves; the payload of a step is the hidden
state, float32 little-endian ``[num_tokens, hidden_size]``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.cluster.edges.edge import EdgeLimits
from potluck.errors import EngineError, PotluckError
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.keeping import MAX_MOVED_BLOCKS
from potluck.types.ranges import MAX_TOP_LOGPROBS
from potluck.types.sampling import MAX_LOGIT_BIAS_TOKENS
from potluck.types.step import KV_BLOCK_TOKENS, HashedBlock, SampledToken, Step

MAX_WAITING_SEQUENCES = 256
"""Of a deployment. Beyond that a request is told to come again: it would wait for minutes."""

_MAX_FAILURE_CHARACTERS = 500
_INTEGER_BYTES = 9
"""The most that msgpack takes for one."""
_BLOCK_BYTES = 128
"""Of a hashed block, whose two hashes have 32 bytes each."""
_TOKEN_BYTES = 96
_TOP_BYTES = 40
"""Of a token that comes back, and of each alternative: names of fields and numbers."""


StepKind = tuple[int, int]


class _Failure(msgspec.Struct, frozen=True):
    message: str
    hint: str


encode_step = msgspec.msgpack.Encoder().encode
encode_sampled = msgspec.msgpack.Encoder().encode
decode_step = msgspec.msgpack.Decoder(Step).decode
encode_restores = msgspec.msgpack.Encoder().encode
"""Of a step's ``restores``, from the first on: a stage sends on those that it has put back."""
decode_restores = msgspec.msgpack.Decoder(tuple[HashedBlock, ...]).decode
encode_restored = msgspec.msgpack.Encoder().encode
"""How many of them all stages have put back: the header of such a step's result."""
decode_restored = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=0)]).decode
decode_sampled = msgspec.msgpack.Decoder(tuple[SampledToken, ...]).decode
_decode_failure = msgspec.msgpack.Decoder(_Failure).decode


def encode_failure(error: PotluckError) -> bytes:
    """The header of a frame that takes a result's place."""
    most = _MAX_FAILURE_CHARACTERS
    return msgspec.msgpack.encode(_Failure(message=error.message[:most], hint=error.hint[:most]))


def decode_failure(header: bytes | memoryview) -> EngineError:
    """The error that a stage met."""
    failure = _decode_failure(header)
    return EngineError(failure.message, hint=failure.hint)


def kind_of(step: Step) -> StepKind:
    """The binary orders of magnitude of its tokens and of the last position that it computes.

    Steps of one kind take about as long.
    """
    num_tokens = end = 0
    for part in step.slices:
        count = len(part.tokens)
        num_tokens += count
        if part.start_position + count > end:  # a call of max() would take as long as all the rest
            end = part.start_position + count
    return num_tokens.bit_length(), end.bit_length()


def result_bytes(max_step_tokens: int, max_step_sequences: int, hidden_size: int) -> int:
    """The most that the header of a result takes.

    Every sequence may give a vector, which has at most as many numbers as the hidden state.
    """
    of_tokens = max_step_tokens * (_TOKEN_BYTES + _TOP_BYTES * MAX_TOP_LOGPROBS)
    return of_tokens + max_step_sequences * 4 * hidden_size


def edge_limits(
    *,
    hidden_size: int,
    context_tokens: int,
    max_step_tokens: int,
    max_step_sequences: int,
    num_blocks: int,
) -> EdgeLimits:
    """Bounds on the frames of a deployment's edges: no step of its scheduler is larger.

    The names of fields and the numbers beside lists take well under a kilobyte in a slice and an
    opening together, with the copy of a block that a sequence may begin with. Sequences share
    blocks, so the table of each may be as long as the context allows. Openings have whole prompts
    and grammars. A sequence closes once, and at most those that hold blocks or wait do. As many
    blocks are saved as the step computes, and a few more. Where all of a step's tokens are scored,
    each comes back with 20 alternatives, and where sequences are pooled, each with its vector.
    """
    per_sequence = (
        1024
        + MAX_GRAMMAR_BYTES
        + _INTEGER_BYTES * context_tokens
        + (1 + 2 * _INTEGER_BYTES) * MAX_LOGIT_BIAS_TOKENS
    )
    num_tables = max_step_sequences * blocks_for(context_tokens)
    num_integers = max_step_tokens + num_tables + num_blocks + MAX_WAITING_SEQUENCES
    num_saved = max_step_tokens // KV_BLOCK_TOKENS + MAX_MOVED_BLOCKS
    return EdgeLimits(
        max_header_bytes=8 * _MAX_FAILURE_CHARACTERS
        + 4096
        + max(
            _INTEGER_BYTES * num_integers
            + max_step_sequences * per_sequence
            + _BLOCK_BYTES * num_saved,
            result_bytes(max_step_tokens, max_step_sequences, hidden_size),
        ),
        max_payload_bytes=4 * hidden_size * max_step_tokens,
    )
