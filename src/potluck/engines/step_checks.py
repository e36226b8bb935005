"""Validate steps for a stage, and the order of the weights that a sink receives.

Every engine validates a step before it changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.errors import DEFECT_HINT, EngineError
from potluck.types.step import KV_BLOCK_TOKENS, Pooling

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from numpy.typing import NDArray

    from potluck.types.engine import TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import BlockCopy, SequenceSlice, StateCopy, Step
    from potluck.types.tensor import TensorInfo


def check_step(
    program: Program,
    num_blocks: int,
    num_states: int,
    step: Step,
    hidden: NDArray[np.float32] | None,
) -> None:
    """Raise ``EngineError`` unless ``program`` can run the step with these blocks and states."""
    seen = set()
    written: set[int] = set()
    written_states: set[int] = set()
    for part in step.slices:
        if part.sequence_id in seen:
            raise inconsistent(f"sequence {part.sequence_id} occurs twice in one step")
        seen.add(part.sequence_id)
        _check_tokens(program, part.tokens)
        _check_positions(program, part)
        _check_drafts(part)
        _check_scored(program, part)
        _check_pooled(part)
        if program.caches:
            _check_blocks(num_blocks, part, written)
        if program.states:
            _check_state(num_states, part, written_states)
    if program.caches:
        _check_copies("block", num_blocks, step.copies)
    if program.states:
        _check_copies("state slot", num_states, step.state_copies)
    if program.head is not None and not program.has_logits and step.num_wanted:
        raise inconsistent("logits are requested from a stage without a head")
    _check_hidden(program, step, hidden)


def check_openings(program: Program, step: Step, open_sequences: Iterable[int]) -> None:
    """Raise ``EngineError`` unless the step opens only new sequences, with valid tokens."""
    known = set(open_sequences)
    for opening in step.opened:
        if opening.sequence_id in known:
            raise inconsistent(f"sequence {opening.sequence_id} is opened twice")
        known.add(opening.sequence_id)
        for tokens in (opening.prompt_tokens, opening.output_tokens):
            _check_vocabulary(program, tokens)


def check_sampled(step: Step, open_sequences: Iterable[int]) -> None:
    """Raise ``EngineError`` unless all sequences that are sampled or scored are open or opened."""
    known = {*open_sequences, *(opening.sequence_id for opening in step.opened)}
    for part in step.slices:
        if part.wanted and part.sequence_id not in known:
            raise inconsistent(f"sequence {part.sequence_id} is sampled but was never opened")


def check_masks(program: Program, step: Step, masks: TokenMasks) -> None:
    """Raise ``EngineError`` unless every mask belongs to a sampled sequence and allows a token."""
    if not masks:
        return
    if not program.shard.has_head:
        raise inconsistent("a stage without the head does not accept masks")
    num_rows = {
        # Drafts that follow the first sampled token have rows of their own.
        part.sequence_id: 1 + part.num_drafts - part.begins_with_draft
        for part in step.slices
        if part.sample
    }
    num_words = -(-program.vocab_size // 32)
    last_bits = np.uint32((1 << (program.vocab_size - 32 * (num_words - 1))) - 1)
    for sequence_id, rows in masks.items():
        if sequence_id not in num_rows:
            raise inconsistent(f"sequence {sequence_id} has a mask but is not sampled")
        wanted = (num_rows[sequence_id], num_words)
        if rows.shape != wanted or rows.dtype.str != "<u4":
            raise inconsistent(
                f"the masks of sequence {sequence_id} are {rows.dtype} {rows.shape}, "
                f"but must be uint32 {wanted}"
            )
        allows_some = rows[:, :-1].any(axis=1) | ((rows[:, -1] & last_bits) != 0)
        if not allows_some.all():
            raise inconsistent(f"a mask of sequence {sequence_id} allows no token")


def _check_drafts(part: SequenceSlice) -> None:
    if part.num_drafts == 0:
        return
    if not 0 < part.num_drafts <= len(part.tokens):
        raise inconsistent(
            f"{part.num_drafts} of {len(part.tokens)} tokens of sequence {part.sequence_id} are "
            "drafts"
        )
    if not part.sample or part.score_from is not None:
        raise inconsistent(f"sequence {part.sequence_id} has drafts, so it must only be sampled")


def _check_scored(program: Program, part: SequenceSlice) -> None:
    if part.score_from is None:
        if part.next_token is not None:
            raise inconsistent(f"sequence {part.sequence_id} has a next token but is not scored")
        return
    if not 0 <= part.score_from < len(part.tokens):
        raise inconsistent(
            f"sequence {part.sequence_id} is scored from token {part.score_from} of "
            f"{len(part.tokens)} on"
        )
    if part.sample == (part.next_token is not None):
        raise inconsistent(
            f"the token after those of sequence {part.sequence_id} is to be both sampled and "
            "scored, or neither"
        )
    if part.next_token is not None:
        _check_vocabulary(program, (part.next_token,))


def _check_pooled(part: SequenceSlice) -> None:
    if part.pooling is None:
        if part.ends_pooling:
            raise inconsistent(f"sequence {part.sequence_id} ends its pooling but is not pooled")
        return
    if part.sample or part.score_from is not None:
        raise inconsistent(
            f"sequence {part.sequence_id} is pooled, so it must not be sampled or scored"
        )
    if part.pooling is Pooling.CLS and part.ends_pooling and part.start_position:
        raise inconsistent(
            f"the first token of sequence {part.sequence_id} is not in the slice that ends its "
            "pooling"
        )


def _check_tokens(program: Program, tokens: tuple[int, ...]) -> None:
    if not tokens:
        raise inconsistent("a slice has no tokens")
    _check_vocabulary(program, tokens)


def _check_vocabulary(program: Program, tokens: tuple[int, ...]) -> None:
    for token in tokens:
        if not 0 <= token < program.vocab_size:
            raise inconsistent(f"token {token} is not in a vocabulary of {program.vocab_size}")


def _check_positions(program: Program, part: SequenceSlice) -> None:
    end = part.start_position + len(part.tokens)
    if part.start_position < 0 or end > program.context_tokens:
        raise inconsistent(
            f"positions {part.start_position} to {end} of sequence {part.sequence_id} "
            f"are not in a context of {program.context_tokens}"
        )


def _check_blocks(num_blocks: int, part: SequenceSlice, written: set[int]) -> None:
    """Check the cache blocks; ``written`` collects those that the step's slices write, which must
    differ.
    """
    end = part.start_position + len(part.tokens)
    num_covering = -(-end // KV_BLOCK_TOKENS)
    blocks = part.block_table[:num_covering]
    if len(blocks) < num_covering:
        raise inconsistent(
            f"the block table of sequence {part.sequence_id} has {len(blocks)} blocks, but {end}"
            f" positions need {num_covering}"
        )
    for block in blocks:
        if not 0 <= block < num_blocks:
            raise inconsistent(f"block {block} is not one of {num_blocks}")
    if len(set(blocks)) < len(blocks):
        raise inconsistent(f"the block table of sequence {part.sequence_id} names a block twice")
    new = blocks[part.start_position // KV_BLOCK_TOKENS :]
    if shared := written.intersection(new):
        raise inconsistent(f"two sequences write block {min(shared)}")
    written.update(new)


def _check_copies(name: str, count: int, copies: Iterable[BlockCopy | StateCopy]) -> None:
    for copy in copies:
        for index in (copy.source, copy.target):
            if not 0 <= index < count:
                raise inconsistent(f"{name} {index}, of a copy, is not one of {count}")
        if copy.source == copy.target:
            raise inconsistent(f"{name} {copy.source} is copied to itself")


def _check_state(num_states: int, part: SequenceSlice, written: set[int]) -> None:
    """Check the state slot; ``written`` collects those that the step's slices write, which must
    differ.
    """
    if part.state is None:
        raise inconsistent(f"sequence {part.sequence_id} has no state slot")
    if not 0 <= part.state < num_states:
        raise inconsistent(f"state slot {part.state} is not one of {num_states}")
    if part.state in written:
        raise inconsistent(f"two sequences write state slot {part.state}")
    written.add(part.state)


def _check_hidden(program: Program, step: Step, hidden: NDArray[np.float32] | None) -> None:
    if program.shard.has_embedding:
        if hidden is not None:
            raise inconsistent("the stage with the embedding does not accept hidden states")
        return
    expected = (step.num_tokens, program.hidden_size)
    if hidden is None:
        raise inconsistent(f"hidden states {expected} are missing")
    if hidden.shape != expected or hidden.dtype.str != "<f4":
        raise inconsistent(
            f"hidden states are {hidden.dtype} {hidden.shape}, but must be float32 {expected}"
        )


def inconsistent(problem: str) -> EngineError:
    """Return the error for a step that the engine must not run."""
    return EngineError(f"inconsistent step: {problem}", hint=DEFECT_HINT)


def check_begin(
    shapes: Mapping[str, tuple[int, ...]], info: TensorInfo, missing: Container[str]
) -> None:
    """Raise ``EngineError`` unless ``info`` is a tensor of ``shapes`` that is still ``missing``."""
    if info.name not in shapes:
        raise weights_refused(f"the program does not use the tensor {info.name}")
    if info.shape != shapes[info.name]:
        raise weights_refused(f"{info.name} is {info.shape}, but must be {shapes[info.name]}")
    if info.name not in missing:
        raise weights_refused(f"{info.name} is written twice")


def check_rows(
    info: TensorInfo, num_written: int, start_row: int, end_row: int, data: memoryview
) -> None:
    """Raise ``EngineError`` unless ``data`` is the rows after the ``num_written`` first ones."""
    if start_row != num_written or not start_row <= end_row <= info.num_rows:
        raise weights_refused(
            f"rows {start_row} to {end_row} of {info.name} after row {num_written}"
        )
    if data.nbytes != (end_row - start_row) * info.row_bytes:
        raise weights_refused(f"{data.nbytes} bytes for {end_row - start_row} rows of {info.name}")


def check_whole(info: TensorInfo, num_written: int) -> None:
    """Raise ``EngineError`` unless all rows were written."""
    if num_written < info.num_rows:
        raise weights_refused(f"{info.name} ends after row {num_written}")


def weights_refused(problem: str) -> EngineError:
    """Return the error that a sink raises."""
    return EngineError(f"cannot take the weights: {problem}", hint=DEFECT_HINT)
