"""Steps cut into the calls of the tinygrad engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from potluck.engines.tinygrad.pieces import bucket_for, padding_piece, pieces_of
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

LONG = SequenceSlice(
    sequence_id=SequenceId(3),
    tokens=tuple(range(100, 130)),
    start_position=10,
    block_table=(7, 2, 5, 99),
    sample=True,
)
SHORT = SequenceSlice(
    sequence_id=SequenceId(4), tokens=(8, 9, 10), start_position=0, block_table=(4,), sample=True
)
STEP = Step(step_id=StepId(0), slices=(LONG, SHORT))


def test_33_tokens_are_a_full_call_and_one_of_a_single_token() -> None:
    first, second = pieces_of(STEP, trash_block=50, has_cache=True)
    assert (first.bucket, first.first_row, first.num_rows) == (32, 0, 32)
    assert (second.bucket, second.first_row, second.num_rows) == (1, 32, 1)
    assert first.tokens.tolist() == [*range(100, 130), 8, 9]
    assert first.positions.tolist() == [*range(10, 40), 0, 1]
    # Positions 10 to 15 are in block 7, to 31 in block 2, to 39 in block 5.
    slots = [7 * 16 + i for i in range(10, 16)] + [2 * 16 + i for i in range(16)]
    slots += [5 * 16 + i for i in range(8)] + [4 * 16, 4 * 16 + 1]
    assert first.slots.tolist() == slots
    assert first.num_blocks == 3, "block 99 is beyond the last new token"
    assert first.tables[0].tolist() == [7, 50, 50], "position 10 is in the first block"
    assert first.tables[29].tolist() == [7, 2, 5]
    assert first.tables[31].tolist() == [4, 50, 50]
    assert first.wanted.tolist() == [29]
    assert second.tables.tolist() == [[4]]
    assert second.wanted.tolist() == [0]


def test_logits_are_wanted_of_scored_tokens_in_every_call() -> None:
    scored = replace(LONG, sample=False, score_from=28, next_token=8)
    step = replace(STEP, slices=(scored, replace(SHORT, score_from=0)))
    first, second = pieces_of(step, trash_block=50, has_cache=True)
    assert first.wanted.tolist() == [28, 29, 30, 31]
    assert second.wanted.tolist() == [0]


def test_what_is_fewer_is_padded() -> None:
    step = Step(step_id=StepId(0), slices=(replace(SHORT, sample=False),))
    (piece,) = pieces_of(step, trash_block=50, has_cache=True)
    assert (piece.bucket, piece.num_rows) == (32, 3)
    assert piece.slots[3:].tolist() == [50 * 16] * 29
    assert piece.tables[3:].tolist() == [[50]] * 29
    assert not piece.tokens[3:].any()
    assert not piece.positions[3:].any()
    assert not len(piece.wanted)


def test_without_a_cache_no_block_table_is_needed() -> None:
    step = Step(step_id=StepId(0), slices=(replace(LONG, block_table=()),))
    (piece,) = pieces_of(step, trash_block=0, has_cache=False)
    assert piece.positions[:30].tolist() == list(range(10, 40))
    assert piece.num_blocks == 1


def test_a_step_of_nothing_has_no_calls() -> None:
    assert not list(pieces_of(replace(STEP, slices=()), trash_block=0, has_cache=True))


def test_buckets() -> None:
    assert [bucket_for(count) for count in (1, 2, 32, 33, 500)] == [1, 32, 32, 32, 32]


def test_padding_writes_to_the_trash_block_alone() -> None:
    piece = padding_piece(32, 50)
    assert set(piece.slots.tolist()) == {50 * 16}
    assert set(piece.tables.flat) == {50}
    np.testing.assert_array_equal(piece.wanted, np.arange(32))
