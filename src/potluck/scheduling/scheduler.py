"""Forms ragged steps with chunked prefill and keeps several of them in flight.

The policy, in the order in which a step is filled:

1. Decodes: every running sequence that waits for its next token, oldest first. While several steps
   may be in flight, a step takes only its share of them (the running decodes divided by the steps),
   so that every stage of a pipeline has something to do.
2. Prefill: chunks of admitted prompts, oldest first, up to the step's token budget. Where several
   steps may be in flight, the budget of a step is a share of what is left to prefill, so that the
   stages compute chunks of one prompt, or of several, at the same time. While somebody decodes, it
   is what a step can compute within the target (``chunks``).
3. Admission: waiting sequences, first come first served, when the blocks of all their known tokens
   are free. What the prefix cache has of these is not computed (``block_cache``). A sequence whose
   prompt others are computing for the most part waits for them and lets others pass.

When a decode needs a block and none is free, the youngest running sequence is preempted: it loses
its blocks, goes back to the head of the queue and is later computed again from its committed
tokens, but for what is still in the cache. Its text does not change, because a token's logits
depend on its own sequence alone and draws are keyed by position.

A sequence may ask to be computed alone: its steps have no other, and no step is in flight beside
them. Such steps and those of all others take turns.

Steps pass through every stage in the order in which they were formed. That is why blocks may be
given back while a step that writes to them is still in flight: whoever gets them next writes later.

When the stages are lost, :meth:`Scheduler.restart` preempts every sequence in the same way, and new
stages compute them again. The last stage is then told of the tokens generated before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain

from potluck.scheduling.block_cache import BlockCache, PrefixCounters
from potluck.scheduling.chunks import ChunkController
from potluck.scheduling.forming import Forming, StepInFlight
from potluck.scheduling.keeping import MAX_MOVED_BLOCKS, MAX_SAVED_STATES, Restorer, hashed
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.prefix_index import PrefixMatch
from potluck.scheduling.requests import num_new_tokens
from potluck.scheduling.sequence import SequenceState
from potluck.scheduling.stateful_cache import StatefulCache
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    FinishReason,
    SequenceRequest,
)
from potluck.types.states import StateSlots
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SampledToken,
    SequenceId,
    Step,
    StepId,
)

_LEAST_CHUNK_TOKENS = 64
"""A share of a prefill has at least as many tokens: the weights are read once for each chunk, which
takes as long as computing 8 tokens (4 bits) to 40 (BF16 with matrix units)."""

_CHUNKS_PER_STEP_IN_FLIGHT = 4
"""A prefill is cut into as many chunks for each step that may be in flight. At its beginning and
its end some stages have nothing to do, for as long as one chunk takes."""


class Scheduler:
    """Admits sequences, forms steps, owns block tables. Not thread-safe."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._counters = PrefixCounters()
        self._cache = self._empty_cache()
        self._restorer = Restorer(self._cache)
        self._chunks = self._new_controller()
        self._waiting: deque[SequenceState] = deque()
        self._running: list[SequenceState] = []  # in order of admission
        self._sequences: dict[SequenceId, SequenceState] = {}
        self._steps_in_flight: dict[StepId, StepInFlight] = {}
        self._closing: list[SequenceId] = []
        self._is_alone_in_flight = False
        self._is_turn_of_alone = True
        self._next_sequence = 0
        self._next_step = 0

    @property
    def num_sequences(self) -> int:
        """Live sequences, running and waiting."""
        return len(self._sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks yet."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """Cache blocks that no sequence holds, with those that are kept for later ones."""
        return self._cache.num_free

    @property
    def num_kept_blocks(self) -> int:
        """Cache blocks that no sequence holds and that are kept for later ones."""
        return self._cache.num_kept

    @property
    def state_slots(self) -> StateSlots:
        """State slots of live sequences, of checkpoints and free ones."""
        return self._cache.state_slots

    @property
    def prefix_totals(self) -> PrefixTotals:
        """What the prefix cache has saved so far, over all restarts."""
        return self._counters.totals

    def num_cached_tokens(self, sequence_id: SequenceId) -> int | None:
        """Tokens of a live sequence's prompt that were not computed for it.

        None if it has not been admitted yet, or is not live.
        """
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else sequence.num_cached_tokens

    @property
    def num_steps_in_flight(self) -> int:
        """Steps formed and not completed."""
        return len(self._steps_in_flight)

    def add(
        self,
        request: SequenceRequest,
        *,
        continuation: Continuation = NOTHING_COMMITTED,
        is_alone: bool = False,
        sequence_id: SequenceId | None = None,
    ) -> SequenceId:
        """Queue a sequence, which is computed in steps of its own if ``is_alone``.

        What ``continuation`` has is not committed again. ``sequence_id`` is for a sequence that
        another scheduler had; otherwise it gets a new id. Raises ``PromptTooLongError`` if the
        prompt or its first token does not fit, and ``ParameterError`` for a continuation that the
        request cannot have, or that leaves nothing to compute.
        """
        num_new = num_new_tokens(request, continuation, self._limits.context_tokens)
        if sequence_id is None:
            sequence_id = SequenceId(self._next_sequence)
        elif sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is live already")
        sequence = SequenceState(
            sequence_id=sequence_id,
            request=request,
            max_tokens=len(request.prompt_tokens) + num_new,
            tokens=[*request.prompt_tokens, *continuation.output_tokens],
            num_scored=continuation.num_scored,
            next_score=continuation.num_scored + 1,
            is_alone=is_alone,
            # Its prompt was counted when it was computed first.
            num_cached_tokens=None if continuation == NOTHING_COMMITTED else 0,
        )
        self._next_sequence = max(self._next_sequence, sequence_id + 1)
        self._sequences[sequence.sequence_id] = sequence
        self._waiting.append(sequence)
        return sequence.sequence_id

    def set_alone(self, sequence_id: SequenceId) -> None:
        """Compute a sequence in steps of its own from now on; one that is not live is accepted."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.is_alone = True

    def restart(self, limits: SchedulerLimits) -> None:
        """Start again over other stages, which hold nothing of any sequence.

        Steps in flight are forgotten and must not be completed any more; steps are counted from 0
        again. All blocks are free. Every live sequence waits, in the order of admission and then of
        arrival, and is computed again from its committed tokens; scores that were not received are
        asked for again. A sequence keeps the limit of tokens that it was given. Raises
        ``ValueError``, and changes nothing, if a live sequence might not fit in
        ``limits.context_tokens``.
        """
        longest = max((each.max_tokens for each in self._sequences.values()), default=0)
        if longest > limits.context_tokens:
            raise ValueError(
                f"a live sequence may have {longest} tokens,"
                f" and the context would hold {limits.context_tokens}"
            )
        self._limits = limits
        self._cache = self._empty_cache()
        self._restorer = Restorer(self._cache)
        self._chunks = self._new_controller()
        self._waiting = deque([*self._running, *self._waiting])
        self._running = []
        self._steps_in_flight.clear()
        self._closing.clear()
        self._is_alone_in_flight = False
        self._next_step = 0
        for sequence in self._waiting:
            sequence.restart()

    def cancel(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and free its blocks now; results still in flight are ignored.

        Unknown and finished sequences are accepted: a client may leave at any moment.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._remove(sequence)

    def next_step(self) -> Step | None:
        """The next step to run, or None when there is nothing to do or no room in flight."""
        if len(self._steps_in_flight) >= self._limits.max_steps_in_flight:
            return None
        if self._is_alone_in_flight:
            return None
        if self._restorer.is_due:
            return self._restoring_step()
        forming = Forming()
        for is_alone in (self._is_turn_of_alone, not self._is_turn_of_alone):
            if is_alone and not self._has_alone:
                continue
            if is_alone and self._steps_in_flight:
                return None  # its turn comes when these are through
            self._fill(forming, is_alone=is_alone)
            if forming.slices:
                self._is_alone_in_flight = is_alone
                self._is_turn_of_alone = not is_alone
                break
        if self._limits.num_states and self._running:
            self._announce_waiting()
        if not forming.slices and self._restorer.is_due:
            return self._restoring_step()
        num_tokens = sum(len(part.tokens) for part in forming.slices)
        saves = self._cache.take_filled(
            max(MAX_MOVED_BLOCKS // 2, num_tokens // KV_BLOCK_TOKENS)
            if forming.slices
            else MAX_MOVED_BLOCKS * (not self._steps_in_flight)
        )
        state_saves = self._cache.take_unsaved_states(
            MAX_SAVED_STATES * (bool(forming.slices) or not self._steps_in_flight)
        )
        if not forming.slices and not saves and not state_saves:
            return None
        closed = tuple(self._closing)
        self._closing.clear()
        return Step(
            step_id=self._take_step_id(StepInFlight(tuple(forming.scheduled), closed)),
            slices=tuple(forming.slices),
            opened=tuple(forming.openings),
            closed=closed,
            copies=tuple(forming.copies),
            state_copies=tuple(forming.state_copies),
            state_saves=state_saves,
            saves=tuple(hashed(each) for each in saves),
        )

    def complete(
        self,
        step_id: StepId,
        sampled: tuple[SampledToken, ...],
        *,
        has_failed: bool = False,
        num_restored: int = 0,
        state_end: int = 0,
        seconds: float | None = None,
    ) -> list[CommittedToken]:
        """Take a step's result; returns the tokens that its sequences were given.

        Scored tokens of prompts are among them, each once and in order. The sequences of a step
        that ``has_failed`` are to be cancelled: what the cache holds of it is not known. Those that
        it closed are closed again, because the stages after the one that failed did not see it.
        ``num_restored`` blocks were there of those that the step was to restore, and the state
        after the first ``state_end`` of them, unless that is 0. It took
        ``seconds`` from when it was formed, or from the end of the step before if that was later;
        None if that is not known.
        """
        in_flight = self._steps_in_flight.pop(step_id)
        scheduled = in_flight.scheduled
        if scheduled and seconds is not None and not has_failed:
            num_chunk_tokens = sum(part.num_chunk_tokens for part in scheduled)
            num_decodes = sum(part.num_chunk_tokens == 0 for part in scheduled)
            self._chunks.took(
                seconds,
                num_tokens=num_chunk_tokens + num_decodes,
                num_chunk_tokens=num_chunk_tokens,
            )
        self._is_alone_in_flight = False  # nothing is in flight beside such a step
        self._restorer.complete(step_id, num_restored, state_end)
        if has_failed:
            self._closing.extend(in_flight.closed)
        for part in scheduled:
            is_known = part.is_current and not has_failed
            if is_known:
                self._cache.computed(part.sequence, part.end)
            if part.checkpoint is not None:
                self._cache.settle(part.checkpoint, part.sequence, is_known=is_known)
        committed: list[CommittedToken] = []
        for sample in sampled:
            sequence = self._sequences.get(sample.sequence_id)
            if sequence is None:
                continue  # cancelled while the step was in flight
            if sample.vector is not None:
                reason: FinishReason | None = FinishReason.LENGTH
            elif sample.position < sequence.num_prompt_tokens:
                is_last = sequence.is_only_scored and sample.position == len(sequence.tokens) - 1
                reason = FinishReason.LENGTH if is_last else None
                sequence.num_scored = sample.position
            else:
                sequence.awaiting_sample = False
                sequence.tokens.append(sample.token)
                reason = _finish_reason(sequence, sample)
            if reason is not None:
                self._remove(sequence)
            committed.append(
                CommittedToken(
                    sequence_id=sample.sequence_id,
                    token=sample.token,
                    position=sample.position,
                    logprob=sample.logprob,
                    top=sample.top,
                    finish_reason=reason,
                    vector=sample.vector,
                )
            )
        return committed

    @property
    def _has_alone(self) -> bool:
        """Whether a sequence that is computed alone could be in a step now."""
        if any(each.is_alone and each.num_unscheduled for each in self._running):
            return True
        first = self._waiting[0] if self._waiting else None
        if first is None or not first.is_alone:
            return False
        return self._admissible(first) is not None

    def _empty_cache(self) -> BlockCache:
        limits = self._limits
        make: Callable[..., BlockCache] = BlockCache
        if limits.num_states:
            make = partial(StatefulCache, num_states=limits.num_states)
        return make(
            limits.num_blocks,
            is_shared=limits.has_prefix_cache,
            counters=self._counters,
            salt=limits.disk_salt or b"",
            is_stored=limits.disk_salt is not None,
        )

    def _take_step_id(self, in_flight: StepInFlight) -> StepId:
        step_id = StepId(self._next_step)
        self._next_step += 1
        self._steps_in_flight[step_id] = in_flight
        return step_id

    def _restoring_step(self) -> Step:
        return self._restorer.take_due(self._take_step_id(StepInFlight()))

    def _new_controller(self) -> ChunkController:
        limits = self._limits
        return ChunkController(limits.target_step_seconds, limits.max_steps_in_flight)

    def _fill(self, forming: Forming, *, is_alone: bool) -> None:
        """Put what is due into a step: of one sequence that is computed alone, or of the others."""
        running = [each for each in self._running if each.is_alone is is_alone]
        if is_alone:
            running = [each for each in running if each.num_unscheduled][:1]
        self._add_decodes(running, forming)
        budget = min(self._limits.max_step_tokens - len(forming.slices), self._prefill_share)
        if any(each.wants_decode or each.awaiting_sample for each in self._running):
            budget = min(budget, self._chunks.most_tokens(len(forming.slices)))
        for sequence in running:
            if sequence.block_table:  # not preempted just now
                budget = self._add_prefill(sequence, budget, forming)
        for sequence in tuple(self._waiting):
            if budget == 0 or not self._has_room(forming):
                return
            if sequence.is_alone is not is_alone or (is_alone and forming.slices):
                return
            if sequence.awaited is not None and self._cache.is_awaitable(sequence.awaited):
                continue
            match = self._admissible(sequence)
            if match is None:
                return
            sequence.awaited = None if is_alone else self._cache.worth_awaiting(sequence, match)
            if sequence.awaited is not None:
                continue
            if is_alone or not self._seeks(sequence, match):
                self._admit(sequence, match, forming)
                # One token may be all that is not in the cache: it looks like a decode.
                budget = self._add_chunk(sequence, budget, forming)

    def _announce_waiting(self) -> None:
        """Have those that compute what others wait for make checkpoints for them in time."""
        for sequence in self._waiting:
            if not (sequence.is_announced or sequence.is_alone or sequence.awaited):
                sequence.is_announced = True
                match = self._cache.find(sequence)
                sequence.awaited = self._cache.worth_awaiting(sequence, match)

    def _seeks(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Whether the sequence is to wait for blocks from the disks of the stages."""
        return self._limits.disk_salt is not None and self._restorer.seeks(sequence, match)

    def _admit(self, sequence: SequenceState, match: PrefixMatch, forming: Forming) -> None:
        self._waiting.remove(sequence)
        copies = self._cache.admit(sequence, match)
        forming.copies.extend(copies.blocks)
        forming.state_copies.extend(copies.states)
        sequence.num_admissions += 1
        sequence.num_scheduled = match.num_tokens
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(match.num_tokens, sequence.num_prompt_tokens)
        self._running.append(sequence)

    @property
    def _prefill_share(self) -> int:
        """The most tokens of prompts for one step."""
        most = self._limits.max_step_tokens
        if self._limits.max_steps_in_flight == 1:
            return most
        num_chunks = _CHUNKS_PER_STEP_IN_FLIGHT * self._limits.max_steps_in_flight
        pending = 0
        for sequence in chain(self._running, self._waiting):
            if not sequence.wants_decode and sequence.awaited is None:
                pending += sequence.num_unscheduled
            if pending >= most * num_chunks:
                return most
        return max(_LEAST_CHUNK_TOKENS, -(-pending // num_chunks))

    def _admissible(self, sequence: SequenceState) -> PrefixMatch | None:
        """What the cache has for a sequence that waits; None if there is no room for all of it."""
        if sequence.awaiting_sample or not self._cache.may_have_room(sequence):
            return None
        match = self._cache.find(sequence)
        return match if self._cache.has_room(sequence, match) else None

    def _add_decodes(self, running: list[SequenceState], forming: Forming) -> None:
        decoding = sum(1 for sequence in running if _is_decoding(sequence))
        share = -(-decoding // self._limits.max_steps_in_flight)
        most = min(share, self._limits.max_step_tokens, self._limits.max_step_sequences)
        for sequence in running:
            if len(forming.slices) >= most:
                return
            if not sequence.wants_decode:
                continue
            # A preemption below may have taken this very sequence's blocks away.
            if not sequence.block_table or not self._grow(sequence):
                continue
            forming.take(sequence, 1, is_decode=True, checkpoint=self._cache.checkpoint(sequence))

    def _has_room(self, forming: Forming) -> bool:
        return len(forming.slices) < self._limits.max_step_sequences

    def _add_prefill(self, sequence: SequenceState, budget: int, forming: Forming) -> int:
        """Add the sequence's next chunk, if it has one; returns what is left of the budget."""
        if sequence.num_unscheduled == 0 or sequence.wants_decode:
            return budget
        if budget == 0 or not self._has_room(forming):
            return budget
        return self._add_chunk(sequence, budget, forming)

    def _add_chunk(self, sequence: SequenceState, budget: int, forming: Forming) -> int:
        """Add a chunk for which there is room; returns what is left of the budget."""
        count = self._cache.cut(sequence, min(budget, sequence.num_unscheduled))
        forming.take(sequence, count, checkpoint=self._cache.checkpoint(sequence))
        return budget - count

    def _grow(self, sequence: SequenceState) -> bool:
        """Make room for the sequence's next position; False if it was preempted itself."""
        if sequence.num_scheduled < len(sequence.block_table) * KV_BLOCK_TOKENS:
            return True
        while not self._cache.grow(sequence):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence)
        sequence.num_scheduled = 0
        sequence.seek_again()
        self._waiting.appendleft(sequence)

    def _remove(self, sequence: SequenceState) -> None:
        if sequence.block_table:
            self._running.remove(sequence)
            self._cache.release(sequence)
        else:
            self._waiting.remove(sequence)
        del self._sequences[sequence.sequence_id]
        if sequence.is_opened:
            self._closing.append(sequence.sequence_id)


def _is_decoding(sequence: SequenceState) -> bool:
    return len(sequence.tokens) > sequence.num_prompt_tokens or sequence.awaiting_sample


def _finish_reason(sequence: SequenceState, sample: SampledToken) -> FinishReason | None:
    if sample.is_cut_off:
        return FinishReason.LENGTH
    if sample.token in sequence.request.stop_tokens:
        return FinishReason.STOP
    if len(sequence.tokens) >= sequence.max_tokens:
        return FinishReason.LENGTH
    return None
