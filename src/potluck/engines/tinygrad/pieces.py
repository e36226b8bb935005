"""Split steps into the calls that compute them, pieces of a bucket's size.

Does not import tinygrad.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from potluck.scheduling.blocks import blocks_for
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.program import Program
    from potluck.types.step import SequenceSlice, Step

    Ints = NDArray[np.int32]


BUCKETS = (1, 32)
"""Numbers of tokens that one call computes; smaller ones are padded.

1 is for decoding, where every product reads its weights for one row. At 32, a product reads them
once for 32 rows, and a desktop GPU starts to be limited by arithmetic; with more, padding would
increase.
"""


def buckets_up_to(max_rows: int) -> tuple[int, ...]:
    """Return the buckets that steps of at most ``max_rows`` tokens need."""
    return BUCKETS if max_rows > 1 else (1,)


def num_table_blocks(program: Program) -> int:
    """Return the maximum number of cache blocks of a sequence: the size of a block table."""
    return blocks_for(program.context_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows ``[first_row, first_row + num_rows)`` of a step, in a call for ``bucket`` rows.

    All arrays are int32 with one row per row of the call. ``slots`` is where each token's key and
    value go: cache block × 16 + offset. ``tables`` ``[bucket, num_blocks]`` are the sequences'
    block tables, up to the longest one in use. ``wanted`` are the rows, within the piece, whose
    logits are requested.
    """

    bucket: int
    first_row: int
    num_rows: int
    tokens: Ints
    positions: Ints
    slots: Ints
    tables: Ints
    wanted: Ints

    @property
    def num_blocks(self) -> int:
        """Number of blocks that attention has to read."""
        return int(self.tables.shape[1])


@dataclass(frozen=True, slots=True)
class _Row:
    token: int
    position: int
    part: SequenceSlice
    is_wanted: bool


def pieces_of(step: Step, *, trash_block: int, has_cache: bool) -> Iterator[Piece]:
    """Return the pieces of a validated step, in the order of computation.

    Padding is token 0 at position 0, which is written to ``trash_block`` and sees nothing else.
    Without a cache (a stage without layers), block tables are ignored.
    """
    rows = list(_rows(step))
    first = 0
    while first < len(rows):
        bucket = bucket_for(len(rows) - first)
        piece = rows[first : first + bucket]
        yield _piece(piece, first, bucket, trash_block, has_cache=has_cache)
        first += len(piece)


def padding_piece(bucket: int, trash_block: int) -> Piece:
    """Return a piece that consists of padding, with all logits requested."""
    padding = _piece([], 0, bucket, trash_block, has_cache=False)
    return replace(padding, num_rows=bucket, wanted=np.arange(bucket, dtype=np.int32))


def bucket_for(num_rows: int) -> int:
    """Return the smallest bucket that holds ``num_rows``, or the largest one."""
    return next((bucket for bucket in BUCKETS if bucket >= num_rows), BUCKETS[-1])


def _rows(step: Step) -> Iterator[_Row]:
    for part in step.slices:
        wanted = part.wanted
        for index, token in enumerate(part.tokens):
            yield _Row(token, part.start_position + index, part, index in wanted)


def _piece(
    rows: list[_Row], first_row: int, bucket: int, trash_block: int, *, has_cache: bool
) -> Piece:
    num_blocks = max(row.position for row in rows) // KV_BLOCK_TOKENS + 1 if has_cache else 1
    tokens, positions = np.zeros(bucket, np.int32), np.zeros(bucket, np.int32)
    slots = np.full(bucket, trash_block * KV_BLOCK_TOKENS, np.int32)
    tables = np.full((bucket, num_blocks), trash_block, np.int32)
    for index, row in enumerate(rows):
        tokens[index] = row.token
        positions[index] = row.position
        if not has_cache:
            continue
        block, offset = divmod(row.position, KV_BLOCK_TOKENS)
        slots[index] = row.part.block_table[block] * KV_BLOCK_TOKENS + offset
        tables[index, : block + 1] = row.part.block_table[: block + 1]
    wanted = np.array([i for i, row in enumerate(rows) if row.is_wanted], np.int32)
    return Piece(
        bucket=bucket,
        first_row=first_row,
        num_rows=len(rows),
        tokens=tokens,
        positions=positions,
        slots=slots,
        tables=tables,
        wanted=wanted,
    )
