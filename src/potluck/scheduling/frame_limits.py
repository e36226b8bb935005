"""The limits of one step, and of the frames that carry steps and results between stages."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.errors import ParameterError
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.scheduling.blocks import blocks_for
from potluck.types.ranges import MAX_TOP_LOGPROBS
from potluck.types.sampling import MAX_LOGIT_BIAS_TOKENS
from potluck.types.step import KV_BLOCK_TOKENS

MAX_COUNT = 2**32 - 1
"""The largest number of bytes of a header, and of a payload."""

MAX_WAITING_SEQUENCES = 256
"""Per deployment. Beyond that a request is told to retry later: it would wait for minutes."""

MAX_TABLES = 512
"""Block tables remembered by an edge's ends: several times the number of sequences of a step. The
least recently used one is dropped."""

MAX_FAILURE_CHARACTERS = 500
_MAX_CANCELLED = 256
"""More than the number of stages, which limits the number of steps in flight."""

_INTEGER_BYTES = 9
"""The maximum size of a msgpack integer."""
_BLOCK_BYTES = 128
"""Per hashed block, whose two hashes have 32 bytes each."""
_TOKEN_BYTES = 48
_TOP_BYTES = 20
"""Per returned token, and per alternative."""


MAX_STEP_TOKENS = 512
"""Tokens per step: prefill is bound by arithmetic well before, and scratch stays small."""

MAX_STEP_SEQUENCES = 64
"""Sequences per step: beyond that a CPU step is bound by arithmetic, not by reading weights."""

MAX_MOVED_BLOCKS = 8
"""The maximum number of blocks that a step restores, or saves beyond those that it computes. Other
sequences wait meanwhile: 8 blocks of a 1B model are 4 MiB, about 5 ms from the page cache."""

MAX_SAVED_STATES = 1
"""The maximum number of states that a step saves: one is as large as the blocks of some 1,000
tokens."""


def sequences_in_step(max_step_tokens: int) -> int:
    """Return the maximum number of sequences in a step of at most ``max_step_tokens``."""
    return min(MAX_STEP_SEQUENCES, max_step_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """The size limits of frames, from the plan. A buffer never grows beyond them."""

    max_header_bytes: int
    max_payload_bytes: int

    def __post_init__(self) -> None:
        for count in (self.max_header_bytes, self.max_payload_bytes):
            if not 0 <= count <= MAX_COUNT:
                raise ValueError(f"{count} bytes do not fit in a frame")


def result_bytes(max_step_tokens: int, max_step_sequences: int, hidden_size: int) -> int:
    """Return the maximum size of a result's header.

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
    num_states: int = 0,
) -> EdgeLimits:
    """Return bounds on the frames of a deployment's edges: no step of its scheduler is larger.

    Without its lists, a slice with its opening takes well under a kilobyte, including the copy of a
    block with which a sequence may begin. Sequences share blocks,
    so the table of each may be as long as the context allows. Openings have whole prompts and
    grammars. A sequence closes once, and at most those that hold blocks or wait do. As many blocks
    are saved as the step computes, and a few more, and a state. No state slot is copied to twice.
    If all of a step's tokens are scored, they are sent twice, and each is returned with 20
    alternatives, and if sequences are pooled, each is returned with its vector.

    Raise ``ParameterError`` for a context or a cache that is too large for one frame.
    """
    per_sequence = (
        1024
        + MAX_GRAMMAR_BYTES
        + _INTEGER_BYTES * context_tokens
        + (1 + 2 * _INTEGER_BYTES) * MAX_LOGIT_BIAS_TOKENS
    )
    num_tables = max_step_sequences * blocks_for(context_tokens)
    num_integers = (
        3 * max_step_tokens
        + num_tables
        + num_blocks
        + 3 * num_states
        + MAX_WAITING_SEQUENCES
        + MAX_TABLES
        + _MAX_CANCELLED
    )
    num_saved = max_step_tokens // KV_BLOCK_TOKENS + MAX_MOVED_BLOCKS + MAX_SAVED_STATES
    max_header_bytes = (
        8 * MAX_FAILURE_CHARACTERS
        + 4096
        + max(
            _INTEGER_BYTES * num_integers
            + max_step_sequences * per_sequence
            + _BLOCK_BYTES * num_saved,
            result_bytes(max_step_tokens, max_step_sequences, hidden_size),
        )
    )
    if max_header_bytes > MAX_COUNT:
        raise ParameterError(
            "cache",
            f"a cache of {num_blocks * KV_BLOCK_TOKENS} tokens with contexts of {context_tokens} "
            f"is too large: a step would take {max_header_bytes} bytes on the network, and at "
            f"most {MAX_COUNT} are possible",
            hint="use a smaller --cache or --context",
        )
    return EdgeLimits(
        max_header_bytes=max_header_bytes,
        max_payload_bytes=4 * hidden_size * max_step_tokens,
    )
