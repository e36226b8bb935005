"""The memory of a program on tinygrad in addition to its weights. Does not import tinygrad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.types.program import Attention, Head
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from potluck.types.program import Program

BUCKETS = (1, 32)
"""Numbers of tokens that one call computes; smaller ones are padded.

1 is for decoding, where every product reads its weights for one row. At 32, a product reads them
once for 32 rows, and a desktop GPU starts to be limited by arithmetic; with more, padding would
increase.
"""

_F32_BYTES = 4
_F16_BYTES = 2


def cache_bytes(program: Program, num_blocks: int, *, has_f16: bool) -> int:
    """Return the size of the key-value caches of ``num_blocks`` blocks, and of one more for
    padding.
    """
    row = sum(2 * cache.num_kv_heads * cache.head_dim for cache in program.caches)
    return (num_blocks + 1) * KV_BLOCK_TOKENS * row * (_F16_BYTES if has_f16 else _F32_BYTES)


def scratch_bytes(program: Program, max_step_tokens: int) -> int:
    """Return the maximum memory of the calls of all buckets.

    Every bucket has its inputs and outputs. In addition, at most the registers, twice (with the
    copies that products and norms make), and the scores of one attention exist at a time; this
    count assumes that registers do not share memory, although tinygrad's do.
    """
    context = num_table_blocks(program) * KV_BLOCK_TOKENS
    widths = sum(register.width for register in program.registers)
    scores = max(
        (op.num_heads * context for op in program.ops if isinstance(op, Attention)), default=0
    )
    logits = max((op.vocab_size for op in program.ops if isinstance(op, Head)), default=0)
    given = 4 + num_table_blocks(program) + 2 * program.hidden_size
    given += sum(2 * int(rope.cos.shape[1]) for rope in program.ropes)
    per_token = 2 * widths + scores + logits + given
    buckets = [size for size in BUCKETS if size == 1 or max_step_tokens > 1]
    return _F32_BYTES * per_token * sum(buckets)


def num_table_blocks(program: Program) -> int:
    """Return the maximum number of cache blocks of a sequence: the size of a block table."""
    return -(-program.context_tokens // KV_BLOCK_TOKENS)
