"""The step that is being formed, and what is remembered of it until it completes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.checkpoints import Checkpoint
from potluck.scheduling.draft_lengths import ALONE, StepKind
from potluck.scheduling.sequence import SequenceState
from potluck.types.step import BlockCopy, SequenceOpening, SequenceSlice, StateCopy, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A sequence's part of a step: tokens ``[start, end)``, with one of its block tables.

    ``num_chunk_tokens`` of them belong to a prompt, or are computed again, and ``num_drafts`` are
    drafts. ``checkpoint`` is made of its state before the step. The step samples for it, or gives
    its vector, if it ``is_awaited``.
    """

    sequence: SequenceState
    start: int
    end: int
    num_admissions: int
    generation: int
    num_chunk_tokens: int
    num_drafts: int = 0
    is_awaited: bool = False
    checkpoint: Checkpoint | None = None

    @property
    def begins_with_draft(self) -> bool:
        """Return whether its first token is a guess, which an earlier step in flight verifies."""
        return self.num_drafts == self.end - self.start

    @property
    def is_dead(self) -> bool:
        """Return whether a draft before it was wrong, so that it gives the sequence nothing."""
        return self.generation != self.sequence.generation

    @property
    def is_current(self) -> bool:
        """Return whether the sequence still has the blocks that the step wrote to."""
        sequence = self.sequence
        return bool(sequence.block_table) and sequence.num_admissions == self.num_admissions


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A ``step`` that is not complete, and the parts of its sequences.

    Its time ``is_telling`` for its ``kind`` unless a step before it was cancelled, or the last one
    is shorter: then it takes longer than the slowest stage.
    """

    step: Step
    scheduled: tuple[Scheduled, ...] = ()
    kind: StepKind = ALONE
    is_telling: bool = True


@dataclass(slots=True)
class StepBuilder:
    """A step that is being formed. Its decodes are of the ``kind``, and have no drafts if plain."""

    kind: StepKind = ALONE
    is_plain: bool = False
    slices: list[SequenceSlice] = field(default_factory=list)
    openings: list[SequenceOpening] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    state_copies: list[StateCopy] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    num_tokens: int = 0

    def take(
        self,
        sequence: SequenceState,
        count: int,
        *,
        is_decode: bool = False,
        drafts: Sequence[int] = (),
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Add the next ``count`` tokens of a sequence that has blocks for them, and ``drafts``.

        Before that its state is copied to ``checkpoint``.
        """
        state = None if sequence.state is None else sequence.state.slot
        if checkpoint is not None and state is not None:
            self.state_copies.append(StateCopy(source=state, target=checkpoint.slot))
        start = sequence.num_scheduled
        known_end = start + count
        end = known_end + len(drafts)
        sequence.num_scheduled = end
        pooling = sequence.request.pooling
        num_known = len(sequence.tokens) + len(sequence.ahead)
        is_last = known_end == (num_known if pooling is None else sequence.num_to_compute)
        if drafts and not is_last:
            raise ValueError("drafts follow the last known token")
        sequence.ahead.extend(drafts)
        sequence.num_awaited += is_last
        score_from = _score_from(sequence, start, end)
        is_more_known = score_from is not None and not is_last
        part = SequenceSlice(
            sequence_id=sequence.sequence_id,
            tokens=(*sequence.tokens[start:known_end], *drafts),
            start_position=start,
            block_table=tuple(sequence.block_table[: blocks_for(end)]),
            sample=is_last and pooling is None,
            score_from=score_from,
            next_token=sequence.tokens[end] if is_more_known else None,
            pooling=pooling,
            ends_pooling=is_last and pooling is not None,
            state=state,
            num_drafts=len(drafts),
        )
        if pooling is not None:
            sequence.is_opened = True  # the last stage has it until it is closed
        if part.wanted and not sequence.is_opened:
            self.openings.append(sequence.opening())
            sequence.is_opened = True
        self.slices.append(part)
        self.num_tokens += len(part.tokens)
        self.scheduled.append(
            Scheduled(
                sequence=sequence,
                start=start,
                end=end,
                num_admissions=sequence.num_admissions,
                generation=sequence.generation,
                num_chunk_tokens=0 if is_decode else count,
                num_drafts=len(drafts),
                is_awaited=is_last,
                checkpoint=checkpoint,
            )
        )


def _score_from(sequence: SequenceState, start: int, end: int) -> int | None:
    """Request the scores that positions ``[start, end)`` can give and that were not requested yet.

    Return the index in the slice of the first token that is followed by one to be scored. If there
    is one, all following tokens of the slice are scored as well, except for the sampled one:
    nothing was generated yet, because the step that samples first is also asked for the last
    scores.
    """
    scores = sequence.scores
    if scores is None:
        return None
    first = max(scores.next_position, start + 1)
    last = min(end, sequence.num_prompt_tokens - 1)
    if first > last:
        return None
    scores.next_position = last + 1
    return first - 1 - start
