"""The step that is being formed, and what is remembered of it until it completes."""

from __future__ import annotations

from dataclasses import dataclass, field

from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.checkpoints import Checkpoint
from potluck.scheduling.sequence import SequenceState
from potluck.types.step import BlockCopy, SequenceId, SequenceOpening, SequenceSlice, StateCopy


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sequence's part of a step: its tokens up to ``end``, under one of its block tables.

    ``num_chunk_tokens`` of them are of a prompt, or of what is computed again. ``checkpoint`` is
    made of its state before.
    """

    sequence: SequenceState
    num_admissions: int
    end: int
    num_chunk_tokens: int
    checkpoint: Checkpoint | None = None

    @property
    def is_current(self) -> bool:
        """The sequence still has the blocks that the step wrote to."""
        sequence = self.sequence
        return bool(sequence.block_table) and sequence.num_admissions == self.num_admissions


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that is not complete: its sequences, and those that it closes."""

    scheduled: tuple[Scheduled, ...] = ()
    closed: tuple[SequenceId, ...] = ()


@dataclass(slots=True)
class Forming:
    """A step that is being formed."""

    slices: list[SequenceSlice] = field(default_factory=list)
    openings: list[SequenceOpening] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    state_copies: list[StateCopy] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)

    def take(
        self,
        sequence: SequenceState,
        count: int,
        *,
        is_decode: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Add the next ``count`` tokens of a sequence that has blocks for them.

        Before that its state is copied to ``checkpoint``.
        """
        state = sequence.state
        if checkpoint is not None and state is not None:
            self.state_copies.append(StateCopy(source=state, target=checkpoint.slot))
        start = sequence.num_scheduled
        end = start + count
        sequence.num_scheduled = end
        pooling = sequence.request.pooling
        is_last = end == (len(sequence.tokens) if pooling is None else sequence.num_to_compute)
        sequence.awaiting_sample = is_last
        score_from = _score_from(sequence, start, end)
        is_more_known = score_from is not None and not is_last
        part = SequenceSlice(
            sequence_id=sequence.sequence_id,
            tokens=tuple(sequence.tokens[start:end]),
            start_position=start,
            block_table=tuple(sequence.block_table[: blocks_for(end)]),
            sample=is_last and pooling is None,
            score_from=score_from,
            next_token=sequence.tokens[end] if is_more_known else None,
            pooling=pooling,
            ends_pooling=is_last and pooling is not None,
            state=state,
        )
        if pooling is not None:
            sequence.is_opened = True  # the last stage has its sum until it is closed
        if part.wanted and not sequence.is_opened:
            self.openings.append(sequence.opening())
            sequence.is_opened = True
        self.slices.append(part)
        num_chunk_tokens = 0 if is_decode else count
        self.scheduled.append(
            Scheduled(sequence, sequence.num_admissions, end, num_chunk_tokens, checkpoint)
        )


def _score_from(sequence: SequenceState, start: int, end: int) -> int | None:
    """Ask for the scores that positions ``[start, end)`` can give and no step was asked for.

    Returns the index in the slice of the first token that is followed by one to be scored. When
    there is one, so are all to the slice's end, but for the token that is sampled: nothing was
    generated yet, because the step that samples first is asked for the last scores, too.
    """
    first = max(sequence.next_score, start + 1)
    last = min(end, sequence.num_prompt_tokens - 1)
    if not sequence.request.score_prompt or first > last:
        return None
    sequence.next_score = last + 1
    return first - 1 - start
