"""Drafts of the next tokens of sequences, and their outcome.

A sequence's slice may contain guesses of the tokens that follow its last one (``SequenceSlice``).
If a pipeline would be idle meanwhile, the next slice is formed on the assumption that all of these
are right: its first token is a guess of the last sample. The guesses in flight are
``SequenceState.ahead``. When one turns out wrong, all slices after it give nothing, and the
sequence continues from its last token; steps that contain nothing else are cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from potluck.scheduling.block_cache import BlockCache
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.draft_lengths import MAX_DRAFTS, DraftHistory, DraftLengths
from potluck.scheduling.sequence import SequenceState
from potluck.scheduling.sequence_cache import SequenceCache, StateCache
from potluck.scheduling.step_builder import Scheduled, StepBuilder, StepInFlight
from potluck.types.drafting import Drafter, DraftSource, DraftTotals
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, StateCopy, StepId

_num_awaited_of = attrgetter("num_awaited")


@dataclass(slots=True)
class _Drafted:
    """The drafter of a sequence, and the guesses it was last shown, from ``shown_from`` on.

    ``num_dead`` drafts gave nothing since they were last reported. ``chances`` are those of its
    latest guesses, None if it cannot tell, and ``chances_ahead`` those of the guesses in flight.
    """

    drafter: Drafter
    history: DraftHistory = field(default_factory=DraftHistory)
    shown_from: int = 0
    shown: tuple[int, ...] = ()
    num_dead: int = 0
    chances: Sequence[float] | None = None
    chances_ahead: list[float] = field(default_factory=list)

    def take(self, num_drafts: int, num_ahead: int) -> None:
        """Record that a step takes the first of the latest guesses; ``num_ahead`` are in flight
        now.
        """
        self.chances_ahead += (self.chances or ())[:num_drafts]
        del self.chances_ahead[: max(0, len(self.chances_ahead) - num_ahead)]

    def likely(self, num_ahead: int) -> float:
        """Return how likely the ``num_ahead`` guesses in flight and the next one are all right."""
        if self.chances is None:
            return self.history.likely(num_ahead + 1)
        in_flight = self.chances_ahead[len(self.chances_ahead) - num_ahead :]
        return math.prod((*in_flight, *self.chances[:1]))


class Drafting:
    """The drafters of a scheduler's sequences. Without a ``source`` nothing is drafted."""

    def __init__(self, source: DraftSource | None, num_steps: int) -> None:
        self._source = source
        self._drafted: dict[SequenceId, _Drafted | None] = {}
        self._totals = DraftTotals()
        self._cancelled: set[StepId] = set()
        self.lengths = self._new_lengths(num_steps)

    @property
    def totals(self) -> DraftTotals:
        """Return the counts so far, over all restarts."""
        return replace(self._totals)

    def restart(self, num_steps: int) -> None:
        """Start again with other stages, up to ``num_steps`` steps at a time; none so far."""
        self._cancelled.clear()
        self.lengths = self._new_lengths(num_steps)

    def record(self, seconds: float, in_flight: StepInFlight) -> None:
        """Record that a step took ``seconds`` since it was formed, or since the end of the one
        before.
        """
        is_decode = not any(part.num_chunk_tokens for part in in_flight.scheduled)
        if in_flight.scheduled and is_decode and in_flight.is_telling:
            num_sequences = len(in_flight.scheduled)
            kind = replace(in_flight.kind, num_sequences=num_sequences)
            self.lengths.record(seconds, kind, in_flight.step.num_tokens - num_sequences)

    def begin(self, builder: StepBuilder, num_sequences: int, num_decoding: int) -> None:
        """Begin a step with ``num_sequences`` of ``num_decoding`` that decode."""
        builder.kind = replace(builder.kind, num_sequences=num_sequences, num_decoding=num_decoding)
        if self._source is not None:
            builder.is_plain = self.lengths.wants_plain(builder.kind)

    def add_decode(
        self, builder: StepBuilder, sequence: SequenceState, cache: SequenceCache, room: int
    ) -> None:
        """Add the last token of a sequence to a step, and up to ``room`` more with its drafts.

        Nothing is added if the sequence's drafter has no draft yet. If a draft was wrong and the
        model has a state, the others are computed again.
        """
        count = min(sequence.num_unscheduled, 1 + room)
        drafts: Sequence[int] | None = ()
        drafted = self._drafted_of(sequence)
        is_last = count == sequence.num_unscheduled
        if drafted is not None and is_last and not builder.is_plain:
            length = partial(
                self.lengths.length,
                drafted.history,
                builder.kind,
                num_drafts=builder.num_tokens - len(builder.slices) + count - 1,
                computes_again=sequence.state is not None,
            )
            start = sequence.num_scheduled + count
            most = 1 + room - count
            if cache.states is not None:
                most = min(most, cache.states.most_drafts(start))
            drafts = _propose(drafted, sequence, cache.blocks, start, most, length)
        if drafts is None:
            return
        if cache.states is None:
            builder.take(sequence, count, is_decode=True, drafts=drafts)
        else:
            drafts = _take_with_state(builder, sequence, count, drafts, cache.states)
        if drafted is not None:
            drafted.take(len(drafts), len(sequence.ahead))

    def add_ahead(
        self, builder: StepBuilder, running: Sequence[SequenceState], blocks: BlockCache, room: int
    ) -> None:
        """Add up to ``room`` guesses to an empty step, as if all in flight were right.

        They are of the sequence with the fewest steps in flight.
        """
        if self._source is None:
            return
        for sequence in sorted(running, key=_num_awaited_of):
            drafted = self._drafted_of(sequence)
            if drafted is None or sequence.state is not None or not sequence.awaiting_sample:
                continue
            drafts = _propose(
                drafted,
                sequence,
                blocks,
                sequence.num_scheduled,
                room,
                partial(self._length_ahead, drafted, sequence),
            )
            if drafts:
                builder.take(sequence, 0, is_decode=True, drafts=drafts)
                drafted.take(len(drafts), len(sequence.ahead))
                return

    def _length_ahead(
        self, drafted: _Drafted, sequence: SequenceState, chances: Sequence[float] | None
    ) -> int:
        if chances is not None and not chances:
            return 0
        return self.lengths.length_ahead(
            drafted.history,
            likely=drafted.likely(len(sequence.ahead)),
            num_steps_ahead=sequence.num_awaited,
            chances=None if chances is None else chances[1:],
        )

    def void_steps(
        self, in_flight: Mapping[StepId, StepInFlight], live: Container[SequenceId]
    ) -> Mapping[StepId, StepInFlight]:
        """Return the steps in flight whose results are no longer needed."""
        return {
            step_id: step
            for step_id, step in in_flight.items()
            if step.scheduled
            and all(
                part.is_dead or part.sequence.sequence_id not in live for part in step.scheduled
            )
        }

    def cancel(self, void: Mapping[StepId, StepInFlight]) -> tuple[StepId, ...]:
        """Return which of these steps are to be cancelled, each only once."""
        steps = tuple(
            step_id
            for step_id, each in void.items()
            if each.step.can_be_skipped and step_id not in self._cancelled
        )
        self._cancelled.update(steps)
        self._totals.num_cancelled += len(steps)
        return steps

    def was_cancelled(self, step_id: StepId) -> bool:
        """Return whether a completed step was cancelled before; asked once."""
        if step_id not in self._cancelled:
            return False
        self._cancelled.remove(step_id)
        return True

    def verified(
        self,
        part: Scheduled,
        step: StepInFlight,
        num_samples: int,
        *,
        is_right_after: bool | None,
    ) -> tuple[int, int]:
        """Record the outcome of a slice after which its sequence has ``num_samples`` more tokens.

        ``is_right_after``: whether the guess of the token after its drafts was right; None if none
        was sampled or guessed. Return how many drafts were verified with the slice, and how many of
        them were right.
        """
        drafted = self._drafted.get(part.sequence.sequence_id)
        if drafted is None:
            return 0, 0
        num_drafts, begins_with_draft = part.num_drafts, part.begins_with_draft
        num_drafted, drafted.num_dead = num_drafts + drafted.num_dead, 0
        # The first one of a slice with nothing else was verified by the slice before.
        num_right = min(num_samples - 1, num_drafts - begins_with_draft)
        is_wrong = num_right < num_drafts - begins_with_draft
        drafted.history.verified(
            num_right + (is_right_after is True),
            is_wrong=is_wrong or is_right_after is False,
            is_first=not begins_with_draft,
            num_tokens=num_samples,
            cost=self._cost(part, step),
        )
        if not num_drafts:
            return num_drafted, 0
        if begins_with_draft:
            drafted.history.went_ahead(self.lengths.saved_by_live)
        num_accepted = num_right + begins_with_draft
        totals = self._totals
        totals.num_drafted += num_drafts
        totals.num_accepted += num_accepted
        totals.num_verifications += 1
        totals.num_samples += num_samples
        return num_drafted, num_accepted

    def _cost(self, part: Scheduled, step: StepInFlight) -> float:
        """Return a slice's share of the cost of drafts in a step, in tokens not sampled."""
        num_own = part.end - part.start - 1
        if part.num_chunk_tokens or not num_own:
            return 0.0
        decodes = [each for each in step.scheduled if not each.num_chunk_tokens]
        num_drafts = sum(each.end - each.start - 1 for each in decodes)
        kind = replace(step.kind, num_sequences=len(decodes))
        return self.lengths.cost(num_drafts, kind) * num_own / num_drafts

    def came_to_nothing(self, part: Scheduled) -> None:
        """Record that a slice gave nothing: a draft before it was wrong, or its sequence is
        over.
        """
        self._totals.num_drafted += part.num_drafts
        self._totals.num_verifications += part.num_drafts > 0
        drafted = self._drafted.get(part.sequence.sequence_id)
        if drafted is not None:
            drafted.num_dead += part.num_drafts
            if part.begins_with_draft:
                drafted.history.went_ahead(-self.lengths.cost_of_dead(part.num_drafts))

    def forget(self, sequence: SequenceState) -> None:
        """Close the drafter of a sequence that has ended."""
        drafted = self._drafted.pop(sequence.sequence_id, None)
        if drafted is not None:
            drafted.drafter.close()

    def close(self) -> None:
        """Close the drafters of all sequences."""
        for drafted in self._drafted.values():
            if drafted is not None:
                drafted.drafter.close()
        self._drafted.clear()

    def _new_lengths(self, num_steps: int) -> DraftLengths:
        if self._source is None:
            return DraftLengths(num_steps)
        return DraftLengths(num_steps, self._source.seconds)

    def _drafted_of(self, sequence: SequenceState) -> _Drafted | None:
        """Return the drafter state of a sequence; None if nothing is drafted for it now."""
        if self._source is None or sequence.is_alone:
            return None
        key = sequence.sequence_id
        if key not in self._drafted:
            drafter = self._source.open(key, sequence.request)
            self._drafted[key] = None if drafter is None else _Drafted(drafter)
        return self._drafted[key]


def _propose(
    drafted: _Drafted,
    sequence: SequenceState,
    blocks: BlockCache,
    start: int,
    most: int,
    length: Callable[[Sequence[float] | None], int],
) -> Sequence[int] | None:
    """Return up to ``most`` guesses of the tokens from ``start`` on, with blocks for them.

    ``length`` returns how many are wanted, given the chances of each. Return None if the drafter
    has none yet: the sequence waits.
    """
    most = min(most, sequence.max_tokens - 1 - start)
    if most < 1:
        return ()
    drafter, num_known = drafted.drafter, len(sequence.tokens)
    with _all_tokens(sequence) as tokens:
        _take_back(drafted, tokens)
        drafted.chances = drafter.chances(tokens, min(most, MAX_DRAFTS))
        most = min(most, length(drafted.chances))
        if drafted.chances is None and most < 1:
            return ()  # it was not shown the tokens
        drafted.shown_from, drafted.shown = num_known, tuple(sequence.ahead)
        guesses = drafter.propose(tokens, most) if most > 0 else ()
    if guesses is None:
        return None
    guesses = _before_stop(guesses[:most], sequence.request.stop_tokens)
    while guesses and len(sequence.block_table) < blocks_for(start + len(guesses)):
        if not blocks.grow(sequence):
            break
    return guesses[: len(sequence.block_table) * KV_BLOCK_TOKENS - start]


def _take_with_state(
    builder: StepBuilder,
    sequence: SequenceState,
    count: int,
    drafts: Sequence[int],
    states: StateCache,
) -> Sequence[int]:
    """Add a decode to a step, with ``drafts`` if there is a snapshot to return to; return these.

    The state before wrong drafts is copied from the snapshot, and that before new ones to it.
    """
    state = sequence.live_state
    snapshot = states.take_snapshot(state) if drafts else state.snapshot
    if snapshot is None:
        drafts = ()
    is_resumed, state.must_roll_back = state.must_roll_back, False
    if is_resumed and snapshot is not None:
        builder.state_copies.append(StateCopy(source=snapshot, target=state.slot))
    checkpoint = states.checkpoint(sequence)
    builder.take(sequence, count, is_decode=True, drafts=drafts, checkpoint=checkpoint)
    if not drafts or snapshot is None:
        states.give_back_snapshot(state)
    elif not is_resumed:
        builder.state_copies.append(StateCopy(source=state.slot, target=snapshot))
    return drafts


@contextmanager
def _all_tokens(sequence: SequenceState) -> Iterator[Sequence[int]]:
    """Yield the tokens followed by the guesses in flight, without copying a long text."""
    tokens, num_known = sequence.tokens, len(sequence.tokens)
    tokens.extend(sequence.ahead)
    try:
        yield tokens
    finally:
        del tokens[num_known:]


def _take_back(drafted: _Drafted, tokens: Sequence[int]) -> None:
    """Tell the drafter which of the guesses it was shown were wrong."""
    for position, guess in enumerate(drafted.shown, drafted.shown_from):
        if position >= len(tokens) or tokens[position] != guess:
            drafted.drafter.truncate(position)
            drafted.shown = drafted.shown[: position - drafted.shown_from]
            return


def _before_stop(guesses: Sequence[int], stop_tokens: frozenset[int]) -> Sequence[int]:
    """Return what comes before a token that ends the text: nothing is sampled after that."""
    end = next((i for i, token in enumerate(guesses) if token in stop_tokens), len(guesses))
    return guesses[:end]
