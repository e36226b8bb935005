"""Form ragged steps with chunked prefill and keep several of them in flight.

The policy, in the order in which a step is filled:

1. Decodes: every running sequence that waits for its next token, oldest first. While several steps
   may be in flight, a step takes only its share of them (the running decodes divided by the steps),
   so that every stage of a pipeline has something to do. Each may bring drafts (``drafting``).
2. Prefill: chunks of admitted prompts, oldest first, up to the step's token budget. If several
   steps may be in flight, the budget of a step is a share of what is left to prefill, so that the
   stages compute chunks of one prompt, or of several, at the same time. While other sequences
   decode, it is what a step can compute within the target (``limits.ChunkController``).
3. Admission: waiting sequences, first come first served, when the blocks for all their known tokens
   are free. Tokens in the prefix cache are not computed (``block_cache``). A sequence whose prompt
   is mostly being computed for others waits for that and lets others pass.
4. Steps ahead: if nothing else is due, one sequence continues as if its drafts in flight were
   right.

When a decode needs a block and none is free, the youngest running sequence is preempted: it loses
its blocks, goes back to the head of the queue and is later computed again from its committed
tokens, except for what is still in the cache. Its text does not change, because a token's logits
depend on its own sequence alone and random numbers are keyed by position.

A sequence may require to be computed alone: its steps have no other sequence, and no other step is
in flight at the same time. Such steps and all others take turns.

Steps pass through every stage in the order in which they were formed. That is why blocks may be
given back while a step that writes to them is still in flight: their next owner writes later.

When the stages are lost, :meth:`Scheduler.restart` preempts every sequence in the same way, and new
stages compute them again. The last stage is then told of the tokens generated before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain, count

from potluck.scheduling.completing import complete_part
from potluck.scheduling.disk_restore import Restorer
from potluck.scheduling.draft_lengths import StepKind
from potluck.scheduling.drafting import Drafting
from potluck.scheduling.frame_limits import MAX_MOVED_BLOCKS, MAX_SAVED_STATES
from potluck.scheduling.limits import ChunkController, Load, SchedulerLimits
from potluck.scheduling.prefix_index import HashChain, PrefixMatch
from potluck.scheduling.sequence import PromptScores, SequenceState, num_new_tokens
from potluck.scheduling.sequence_cache import SequenceCache
from potluck.scheduling.step_builder import StepBuilder, StepInFlight
from potluck.types.drafting import DraftSource
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    SequenceRequest,
)
from potluck.types.states import StateSlots
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    HashedState,
    SampledToken,
    SequenceId,
    Step,
    StepId,
)

_LEAST_CHUNK_TOKENS = 64
"""The minimum share of a prefill: the weights are read once for each chunk, which takes as long as
computing 8 tokens (4 bits) to 40 (BF16 with matrix units)."""

_CHUNKS_PER_STEP_IN_FLIGHT = 4
"""A prefill is split into this many chunks for each step that may be in flight. At its beginning
and its end some stages are idle, for the time of one chunk."""


class Scheduler:
    """Admits sequences, forms steps, owns block tables. Not thread-safe."""

    def __init__(self, limits: SchedulerLimits, drafts: DraftSource | None = None) -> None:
        self._drafting = Drafting(drafts, limits.max_steps_in_flight)
        self._prefix_totals = PrefixTotals()
        self._waiting: deque[SequenceState] = deque()
        self._sequences: dict[SequenceId, SequenceState] = {}
        self._is_turn_of_alone = True
        self._next_sequence = 0
        self._begin(limits)

    def _begin(self, limits: SchedulerLimits) -> None:
        """Begin with stages that hold nothing; no sequence runs."""
        self._limits = limits
        self._cache = SequenceCache(limits, self._prefix_totals)
        self._restorer = Restorer(self._cache)
        self._chunks = ChunkController(limits.target_step_seconds, limits.max_steps_in_flight)
        self._running: list[SequenceState] = []  # in order of admission
        self._steps_in_flight: dict[StepId, StepInFlight] = {}
        self._closing: list[SequenceId] = []
        self._is_alone_in_flight = False
        self._step_ids = count()

    @property
    def load(self) -> Load:
        """Return the current load. Totals are over all restarts."""
        num_waiting = len(self._waiting)
        blocks, states = self._cache.blocks, self._cache.states
        return Load(
            num_waiting=num_waiting,
            num_running=len(self._sequences) - num_waiting,
            num_free_blocks=blocks.num_free,
            num_kept_blocks=blocks.num_kept,
            prefix=replace(self._prefix_totals),
            states=StateSlots() if states is None else states.pool.slots,
            drafts=self._drafting.totals,
        )

    def num_cached_tokens(self, sequence_id: SequenceId) -> int | None:
        """Return how many tokens of a live sequence's prompt were not computed for it.

        Return None if it has not been admitted yet, or is not live.
        """
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else sequence.num_cached_tokens

    def add(
        self,
        request: SequenceRequest,
        *,
        continuation: Continuation = NOTHING_COMMITTED,
        is_alone: bool = False,
        sequence_id: SequenceId | None = None,
    ) -> SequenceId:
        """Queue a sequence, which is computed in steps of its own if ``is_alone``.

        The tokens of ``continuation`` are not committed again. ``sequence_id`` is for a sequence
        that another scheduler had; otherwise it gets a new id. Raise ``PromptTooLongError`` if the
        prompt or its first token does not fit, and ``ParameterError`` for a continuation that does
        not belong to the request, or that leaves nothing to compute.
        """
        num_new = num_new_tokens(request, continuation, self._limits.context_tokens)
        if sequence_id is None:
            sequence_id = SequenceId(self._next_sequence)
        elif sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is live already")
        tokens = [*request.prompt_tokens, *continuation.output_tokens]
        num_scored = continuation.num_scored
        sequence = SequenceState(
            sequence_id=sequence_id,
            request=request,
            max_tokens=len(request.prompt_tokens) + num_new,
            tokens=tokens,
            chain=HashChain(self._cache.blocks.root, tokens),
            scores=PromptScores(num_scored, num_scored + 1) if request.score_prompt else None,
            is_alone=is_alone,
            # Its prompt was counted when it was first computed.
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
        """Start again with other stages, which hold nothing of any sequence.

        Steps in flight are forgotten and must not be completed; steps are counted from 0 again. All
        blocks are free. Every live sequence waits, in the order of admission and then of arrival,
        and is computed again from its committed tokens; scores that were not received are requested
        again. A sequence keeps its token limit. Raise ``ValueError``, and change nothing, if a live
        sequence might not fit in ``limits.context_tokens``.
        """
        longest = max((each.max_tokens for each in self._sequences.values()), default=0)
        if longest > limits.context_tokens:
            raise ValueError(
                f"a live sequence may have {longest} tokens,"
                f" but the context only holds {limits.context_tokens}"
            )
        self._waiting = deque([*self._running, *self._waiting])
        self._begin(limits)
        self._drafting.restart(limits.max_steps_in_flight)
        for sequence in self._waiting:
            sequence.restart()
            sequence.chain = HashChain(self._cache.blocks.root, sequence.tokens)  # another salt

    def cancel(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and free its blocks now; results still in flight are ignored.

        Unknown and finished sequences are accepted: a client may disconnect at any time.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._remove(sequence)

    def close(self) -> None:
        """Release what its sequences hold outside of it. Idempotent."""
        self._drafting.close()

    def next_step(self) -> Step | None:
        """Return the next step, or None if there is nothing to do or no room in flight."""
        if len(self._steps_in_flight) >= self._limits.max_steps_in_flight:
            return None
        if self._is_alone_in_flight:
            return None
        if self._restorer.is_due:
            return self._restoring_step()
        void = self._drafting.void_steps(self._steps_in_flight, self._sequences)
        builder = StepBuilder(kind=StepKind(follows=len(void) < len(self._steps_in_flight)))
        for is_alone in (self._is_turn_of_alone, not self._is_turn_of_alone):
            if is_alone and not self._has_alone:
                continue
            if is_alone and self._steps_in_flight:
                return None  # its turn comes when these are complete
            self._fill(builder, is_alone=is_alone)
            if builder.slices:
                self._is_alone_in_flight = is_alone
                self._is_turn_of_alone = not is_alone
                break
        if self._cache.states is not None and self._running:
            self._announce_waiting()
        if not builder.slices and self._restorer.is_due:
            return self._restoring_step()
        if not builder.slices:
            most = self._limits.max_step_tokens
            self._drafting.add_ahead(builder, self._running, self._cache.blocks, most)
        saves = self._cache.blocks.take_filled(
            max(MAX_MOVED_BLOCKS // 2, builder.num_tokens // KV_BLOCK_TOKENS)
            if builder.slices
            else MAX_MOVED_BLOCKS * (not self._steps_in_flight)
        )
        state_saves: tuple[HashedState, ...] = ()
        if self._cache.states is not None and (builder.slices or not self._steps_in_flight):
            state_saves = self._cache.states.take_unsaved(MAX_SAVED_STATES)
        if not builder.slices and not saves and not state_saves:
            return None
        last = next(reversed(self._steps_in_flight.values()), None)
        is_longer = last is not None and builder.num_tokens > last.step.num_tokens
        step = Step(
            step_id=StepId(next(self._step_ids)),
            slices=tuple(builder.slices),
            opened=tuple(builder.openings),
            closed=tuple(self._closing),
            copies=tuple(builder.copies),
            state_copies=tuple(builder.state_copies),
            state_saves=state_saves,
            saves=saves,
            cancels=self._drafting.cancel(void),
        )
        self._closing.clear()
        self._steps_in_flight[step.step_id] = StepInFlight(
            step,
            scheduled=tuple(builder.scheduled),
            kind=builder.kind,
            is_telling=not void and not is_longer,
        )
        return step

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
        """Process a step's result; return the tokens that its sequences were given.

        They include scored tokens of prompts, each once and in order. The sequences of a step that
        ``has_failed`` must be cancelled: their cache content is undefined. Those that it closed are
        closed again, because the stages after the failed one did not see it. ``num_restored`` of
        the blocks that the step was to restore were there, and the state after the first
        ``state_end`` of them, unless that is 0. It took ``seconds`` from when it was formed, or
        from the end of the step before if that was later; None if unknown.
        """
        in_flight = self._steps_in_flight.pop(step_id)
        was_cancelled = self._drafting.was_cancelled(step_id)
        if seconds is not None and not has_failed and not was_cancelled:
            num_chunk_tokens = sum(part.num_chunk_tokens for part in in_flight.scheduled)
            self._chunks.record(
                seconds, num_tokens=in_flight.step.num_tokens, num_chunk_tokens=num_chunk_tokens
            )
            self._drafting.record(seconds, in_flight)
        self._is_alone_in_flight = False  # no other step is in flight with such a step
        self._restorer.complete(step_id, num_restored, state_end)
        if has_failed:
            self._closing.extend(in_flight.step.closed)
        samples: dict[SequenceId, list[SampledToken]] = {}
        for sample in sampled:
            samples.setdefault(sample.sequence_id, []).append(sample)
        committed: list[CommittedToken] = []
        for part in in_flight.scheduled:
            sequence = part.sequence
            given = complete_part(
                part,
                in_flight,
                samples.get(sequence.sequence_id, []),
                cache=self._cache,
                drafting=self._drafting,
                is_live=sequence.sequence_id in self._sequences,
                has_failed=has_failed,
            )
            if given and given[-1].finish_reason is not None:
                self._remove(sequence)
            committed += given
        return committed

    @property
    def _has_alone(self) -> bool:
        """Return whether a sequence that is computed alone could be in a step now."""
        if any(each.is_alone and each.num_unscheduled for each in self._running):
            return True
        first = self._waiting[0] if self._waiting else None
        if first is None or not first.is_alone:
            return False
        return self._cache.find_with_room(first) is not None

    def _restoring_step(self) -> Step:
        step = self._restorer.take_due(StepId(next(self._step_ids)))
        self._steps_in_flight[step.step_id] = StepInFlight(step)
        return step

    def _fill(self, builder: StepBuilder, *, is_alone: bool) -> None:
        """Fill a step with what is due: of one sequence that is computed alone, or of the
        others.
        """
        running = [each for each in self._running if each.is_alone is is_alone]
        if is_alone:
            running = [each for each in running if each.num_unscheduled][:1]
        self._add_decodes(running, builder)
        budget = min(self._limits.max_step_tokens - builder.num_tokens, self._prefill_share)
        if any(each.wants_decode or each.awaiting_sample for each in self._running):
            budget = min(budget, self._chunks.most_tokens(builder.num_tokens))
        for sequence in running:
            if sequence.block_table:  # not just preempted
                budget = self._add_prefill(sequence, budget, builder)
        for sequence in tuple(self._waiting):
            if budget == 0 or len(builder.slices) >= self._limits.max_step_sequences:
                return
            if sequence.is_alone is not is_alone or (is_alone and builder.slices):
                return
            if sequence.awaited is not None and self._cache.is_awaitable(sequence.awaited):
                continue
            match = self._cache.find_with_room(sequence)
            if match is None:
                return
            sequence.awaited = None if is_alone else self._cache.worth_awaiting(sequence, match)
            if sequence.awaited is not None:
                continue
            if is_alone or not self._seeks(sequence, match):
                self._admit(sequence, match, builder)
                # A single token may be missing from the cache: it looks like a decode.
                budget = self._add_chunk(sequence, budget, builder)

    def _announce_waiting(self) -> None:
        """Let sequences that compute what others wait for make checkpoints for them in time."""
        for sequence in self._waiting:
            if not (sequence.is_announced or sequence.is_alone or sequence.awaited):
                sequence.is_announced = True
                match = self._cache.find(sequence)
                sequence.awaited = self._cache.worth_awaiting(sequence, match)

    def _seeks(self, sequence: SequenceState, match: PrefixMatch) -> bool:
        """Return whether the sequence has to wait for blocks from the disks of the stages."""
        return self._limits.disk_salt is not None and self._restorer.seeks(sequence, match)

    def _admit(self, sequence: SequenceState, match: PrefixMatch, builder: StepBuilder) -> None:
        self._waiting.remove(sequence)
        copies, state_copies = self._cache.admit(sequence, match)
        builder.copies.extend(copies)
        builder.state_copies.extend(state_copies)
        sequence.num_admissions += 1
        sequence.num_scheduled = match.num_tokens
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(match.num_tokens, sequence.num_prompt_tokens)
        self._running.append(sequence)

    @property
    def _prefill_share(self) -> int:
        """Return the most prompt tokens for one step."""
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

    def _add_decodes(self, running: list[SequenceState], builder: StepBuilder) -> None:
        decoding = sum(1 for sequence in running if _is_decoding(sequence))
        share = -(-decoding // self._limits.max_steps_in_flight)
        most = min(share, self._limits.max_step_tokens, self._limits.max_step_sequences)
        num_wanting = min(most, sum(1 for sequence in running if sequence.wants_decode))
        if num_wanting:
            self._drafting.begin(builder, num_wanting, decoding)
        for sequence in running:
            if len(builder.slices) >= most:
                return
            if not sequence.wants_decode:
                continue
            # A preemption below may have taken the blocks of this very sequence.
            if not sequence.block_table or not self._grow(sequence):
                continue
            num_left = num_wanting - len(builder.slices)
            room = self._limits.max_step_tokens - builder.num_tokens - num_left
            self._drafting.add_decode(builder, sequence, self._cache, room)

    def _add_prefill(self, sequence: SequenceState, budget: int, builder: StepBuilder) -> int:
        """Add the sequence's next chunk, if it has one; return what is left of the budget."""
        if sequence.num_unscheduled == 0 or sequence.wants_decode:
            return budget
        if budget == 0 or len(builder.slices) >= self._limits.max_step_sequences:
            return budget
        return self._add_chunk(sequence, budget, builder)

    def _add_chunk(self, sequence: SequenceState, budget: int, builder: StepBuilder) -> int:
        """Add a chunk for which there is room; return what is left of the budget."""
        count, checkpoint = min(budget, sequence.num_unscheduled), None
        if self._cache.states is not None:
            count = self._cache.states.cut(sequence, count)
            checkpoint = self._cache.states.checkpoint(sequence)
        builder.take(sequence, count, checkpoint=checkpoint)
        return budget - count

    def _grow(self, sequence: SequenceState) -> bool:
        """Make room for the sequence's next position; return False if it was itself preempted."""
        if sequence.num_scheduled < len(sequence.block_table) * KV_BLOCK_TOKENS:
            return True
        while not self._cache.blocks.grow(sequence):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence)
        sequence.num_scheduled = 0
        sequence.num_sought_blocks = 0
        self._waiting.appendleft(sequence)

    def _remove(self, sequence: SequenceState) -> None:
        if sequence.block_table:
            self._running.remove(sequence)
            self._cache.release(sequence)
        else:
            self._waiting.remove(sequence)
        del self._sequences[sequence.sequence_id]
        self._drafting.forget(sequence)
        if sequence.is_opened:
            self._closing.append(sequence.sequence_id)


def _is_decoding(sequence: SequenceState) -> bool:
    return len(sequence.tokens) > sequence.num_prompt_tokens or sequence.awaiting_sample
