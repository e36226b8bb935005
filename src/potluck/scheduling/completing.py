"""The tokens that a completed step gives to its sequences."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from potluck.scheduling.drafting import Drafting
from potluck.scheduling.sequence import SequenceState
from potluck.scheduling.sequence_cache import SequenceCache
from potluck.scheduling.step_builder import Scheduled, StepInFlight
from potluck.types.sequence import CommittedToken, FinishReason
from potluck.types.step import SampledToken


def complete_part(
    part: Scheduled,
    step: StepInFlight,
    samples: Iterable[SampledToken],
    *,
    cache: SequenceCache,
    drafting: Drafting,
    is_live: bool,
    has_failed: bool,
) -> list[CommittedToken]:
    """Return the tokens of a sequence from its part of ``step``; the last one may end it.

    The sequence may no longer be live: it may have been cancelled while the step was in flight.
    """
    sequence, blocks, states = part.sequence, cache.blocks, cache.states
    is_known = part.is_current and not has_failed
    if part.checkpoint is not None and states is not None:
        states.settle(part.checkpoint, sequence, is_known=is_known)
    if part.is_dead or not is_live:
        drafting.came_to_nothing(part)
        return []
    if is_known and not part.num_drafts:
        blocks.computed(sequence, part.end)
    sequence.num_awaited -= part.is_awaited
    num_ahead = len(sequence.ahead)
    committed = _take_all(sequence, samples)
    if is_known and part.num_drafts:
        # The last sample differs from the draft there, or comes after all drafts.
        end = min(part.end, len(sequence.tokens) - 1)
        blocks.computed(sequence, end)
        state = sequence.state
        if state is not None and states is not None:
            if state.snapshot is not None and end < part.end:
                state.must_roll_back = True
                sequence.num_scheduled = part.start
            else:
                states.give_back_snapshot(state)
    if committed and part.is_awaited:
        # The guess of what follows the last draft belongs to another step.
        num_own = part.num_drafts - part.begins_with_draft
        is_compared = num_ahead > num_own and committed[-1].position == part.end
        num_drafted, num_accepted = drafting.verified(
            part,
            step,
            len(committed),
            is_right_after=not part.is_dead if is_compared else None,
        )
        committed[0] = msgspec.structs.replace(
            committed[0], num_drafted=num_drafted, num_accepted=num_accepted
        )
    return committed


def _take_all(sequence: SequenceState, samples: Iterable[SampledToken]) -> list[CommittedToken]:
    """Give the sequence what was sampled for it, up to the token that ends it."""
    committed: list[CommittedToken] = []
    for sample in samples:
        reason = _take(sequence, sample)
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
        if reason is not None:
            break
    return committed


def _take(sequence: SequenceState, sample: SampledToken) -> FinishReason | None:
    if sample.vector is not None:
        return FinishReason.LENGTH
    if sample.position < sequence.num_prompt_tokens:
        is_last = sequence.is_only_scored and sample.position == len(sequence.tokens) - 1
        if sequence.scores is not None:
            sequence.scores.num_committed = sample.position
        return FinishReason.LENGTH if is_last else None
    sequence.take_sample(sample.token)
    if sample.is_cut_off:
        return FinishReason.LENGTH
    if sample.token in sequence.request.stop_tokens:
        return FinishReason.STOP
    if len(sequence.tokens) >= sequence.max_tokens:
        return FinishReason.LENGTH
    return None
