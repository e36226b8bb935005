"""Slices with drafts: how they are formed, verified, cancelled and taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from support.scheduling.drafters import InstantSource, QuietDrafter
from support.scheduling.played_pipeline import next_step
from support.scheduling.stateful_pipeline import StatefulPipeline
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens

from potluck.scheduling.draft_lengths import DraftLengths
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import CommittedToken, FinishReason, SequenceRequest
from potluck.types.step import SampledToken, SamplingParams, SequenceId, StateCopy, Step, StepId

PROMPT = [5, 6, 7]
TEXT = [*PROMPT, *expected_tokens(PROMPT, 60)]
WRONG = 5000
"""A token that the toy model never writes."""


@dataclass
class Scripted(InstantSource, QuietDrafter):
    """A drafter that gives what it is told to, or the right tokens."""

    guesses: list[Sequence[int] | None] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)
    chance: float | None = None

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Scripted:
        """See ``DraftSource``: there is one sequence."""
        return self

    def chances(self, tokens: Sequence[int], most: int) -> Sequence[float] | None:
        """See ``Drafter``."""
        return None if self.chance is None else [self.chance] * most

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """See ``Drafter``."""
        self.calls.append((len(tokens), k))
        return self.guesses.pop(0) if self.guesses else TEXT[len(tokens) : len(tokens) + k]

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""
        self.truncated.append(num_tokens)


@pytest.fixture(autouse=True)
def lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three drafts, always."""
    monkeypatch.setattr(DraftLengths, "length", lambda *_, **__: 3)
    monkeypatch.setattr(DraftLengths, "length_ahead", lambda *_, **__: 3)
    monkeypatch.setattr(DraftLengths, "wants_plain", lambda *_, **__: False)


def scheduler_of(drafter: Scripted, *, in_flight: int = 1, num_states: int = 0) -> Scheduler:
    limits = SchedulerLimits(
        num_blocks=8,
        context_tokens=100,
        max_step_tokens=20,
        max_step_sequences=4,
        max_steps_in_flight=in_flight,
        num_states=num_states,
    )
    return Scheduler(limits, drafter)


def add(
    scheduler: Scheduler, *, max_new_tokens: int = 50, stop: Sequence[int] = (), alone: bool = False
) -> SequenceId:
    request = SequenceRequest(
        prompt_tokens=tuple(PROMPT),
        sampling=SamplingParams(),
        max_new_tokens=max_new_tokens,
        stop_tokens=frozenset(stop),
    )
    return scheduler.add(request, is_alone=alone)


def run(scheduler: Scheduler, pipeline: ToyPipeline) -> tuple[Step, list[CommittedToken]]:
    """Form a step, run it and take its result."""
    step = next_step(scheduler)
    pipeline.submit(step)
    return step, scheduler.complete(*pipeline.run_oldest())


def tokens_of(committed: list[CommittedToken]) -> list[int]:
    return [token.token for token in committed]


def test_right_drafts_and_the_token_after_them_are_given_at_once() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler)
    run(scheduler, pipeline)
    step, committed = run(scheduler, pipeline)
    (part,) = step.slices
    assert part.tokens == tuple(TEXT[3:7])
    assert (part.num_drafts, part.start_position, part.sample) == (3, 3, True)
    assert tokens_of(committed) == TEXT[4:8]
    assert [(each.num_drafted, each.num_accepted) for each in committed] == [(3, 3)] + 3 * [(0, 0)]
    assert run(scheduler, pipeline)[0].slices[0].start_position == 7
    totals = scheduler.load.drafts
    assert (totals.num_drafted, totals.num_accepted, totals.num_samples) == (6, 6, 8)


def test_what_follows_a_wrong_draft_is_computed_again() -> None:
    drafter = Scripted([[TEXT[4], WRONG, TEXT[6]]])
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler)
    run(scheduler, pipeline)
    _, committed = run(scheduler, pipeline)
    assert tokens_of(committed) == TEXT[4:6]
    assert (committed[0].num_drafted, committed[0].num_accepted) == (3, 1)
    step, committed = run(scheduler, pipeline)
    assert step.slices[0].start_position == 5, "from the last token on"
    assert tokens_of(committed) == TEXT[6:10]


def test_drafts_end_before_a_token_that_ends_the_text() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler, stop=[TEXT[5]])
    run(scheduler, pipeline)
    step, committed = run(scheduler, pipeline)
    assert step.slices[0].tokens == tuple(TEXT[3:5])
    assert committed[-1].finish_reason is FinishReason.STOP
    assert drafter.is_closed
    assert scheduler.load.num_free_blocks == 8


def test_nothing_is_given_after_the_end() -> None:
    """Also if the last stage has sampled more, because it does not know where the text ends."""
    drafter = Scripted()
    scheduler = scheduler_of(drafter)
    sequence = add(scheduler, stop=[999_999])

    def sampled(*tokens: int, start: int) -> tuple[SampledToken, ...]:
        return tuple(
            SampledToken(sequence_id=sequence, position=position, token=token)
            for position, token in enumerate(tokens, start)
        )

    scheduler.complete(next_step(scheduler).step_id, sampled(TEXT[3], start=3))
    step = next_step(scheduler)
    committed = scheduler.complete(step.step_id, sampled(TEXT[4], 999_999, start=4))
    assert tokens_of(committed) == [TEXT[4], 999_999]
    assert committed[-1].finish_reason is FinishReason.STOP


def test_no_more_is_drafted_than_may_be_given() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler, max_new_tokens=4)
    run(scheduler, pipeline)
    step, committed = run(scheduler, pipeline)
    assert len(step.slices[0].tokens) == 3
    assert tokens_of(committed) == TEXT[4:7]
    assert committed[-1].finish_reason is FinishReason.LENGTH
    assert scheduler.load.num_sequences == 0


def test_a_sequence_waits_for_its_drafter_and_others_do_not() -> None:
    drafter = Scripted([None, None])
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler)
    run(scheduler, pipeline)
    assert scheduler.next_step() is None
    assert scheduler.next_step() is None
    assert run(scheduler, pipeline)[0].slices[0].num_drafts == 3


def test_a_sequence_that_is_computed_alone_has_no_drafts() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter, in_flight=3), ToyPipeline()
    add(scheduler, alone=True)
    run(scheduler, pipeline)
    assert run(scheduler, pipeline)[0].slices[0].num_drafts == 0
    assert drafter.calls == []


def test_drafts_take_no_blocks_from_others() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler)
    run(scheduler, pipeline)
    for _ in range(2):
        run(scheduler, pipeline)  # up to position 11
    scheduler._cache.blocks._pool.take(scheduler.load.num_free_blocks)
    assert len(run(scheduler, pipeline)[0].slices[0].tokens) == 4
    step = next_step(scheduler)
    assert step.slices[0].tokens == (TEXT[15],), "the block ends there"


def test_a_pipeline_goes_on_as_if_drafts_were_right() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter, in_flight=3), ToyPipeline()
    add(scheduler)
    steps = [next_step(scheduler) for _ in range(3)]
    assert scheduler.next_step() is None
    assert all(step.slices[0].begins_with_draft for step in steps[1:])
    assert steps[1].slices[0].tokens == tuple(TEXT[3:6])
    assert steps[2].slices[0].tokens == tuple(TEXT[6:9])
    given: list[int] = []
    for step in steps:
        pipeline.submit(step)
    for _ in steps:
        given += tokens_of(scheduler.complete(*pipeline.run_oldest()))
    assert given == TEXT[3:10]
    assert drafter.truncated == []


def test_a_step_ahead_is_as_likely_as_all_guesses_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    likely: list[float] = []

    def length_ahead(*_: object, **values: float) -> int:
        likely.append(values["likely"])
        return 3

    monkeypatch.setattr(DraftLengths, "length_ahead", length_ahead)
    scheduler, pipeline = scheduler_of(Scripted(chance=0.5), in_flight=3), ToyPipeline()
    add(scheduler)
    for _ in range(3):
        pipeline.submit(next_step(scheduler))
    assert likely == [0.5, 0.5**4], "the sample's guess; three in flight, and the next one"
    scheduler.complete(*pipeline.run_oldest())  # it shows that the first one was right
    next_step(scheduler)
    assert likely[2:] == [0.5**6], "five in flight"


def test_nothing_is_asked_of_a_drafter_without_a_promising_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DraftLengths, "length", lambda *_, **__: 0)
    drafter = Scripted(chance=0.5)
    scheduler, pipeline = scheduler_of(drafter), ToyPipeline()
    add(scheduler)
    for _ in range(3):
        run(scheduler, pipeline)
    assert drafter.calls == []
    assert drafter.truncated == []


def test_steps_after_a_wrong_draft_are_cancelled_once() -> None:
    drafter = Scripted([[TEXT[3], TEXT[4], WRONG]])
    scheduler, pipeline = scheduler_of(drafter, in_flight=3), ToyPipeline()
    add(scheduler)
    for _ in range(3):
        pipeline.submit(next_step(scheduler))
    assert tokens_of(scheduler.complete(*pipeline.run_oldest())) == [TEXT[3]]
    pipeline.submit(next_step(scheduler))  # one more ahead
    assert tokens_of(scheduler.complete(*pipeline.run_oldest())) == TEXT[4:6]
    step = next_step(scheduler)
    assert step.cancels == (StepId(2), StepId(3))
    assert step.slices[0].tokens[0] == TEXT[5]
    assert not step.slices[0].begins_with_draft
    assert drafter.truncated == [5], "the wrong one and all after it"
    pipeline.submit(step)
    assert scheduler.complete(*pipeline.run_oldest()) == []
    ahead = next_step(scheduler)
    assert ahead.cancels == ()
    assert ahead.slices[0].begins_with_draft
    assert scheduler.complete(*pipeline.run_oldest()) == []
    committed = scheduler.complete(*pipeline.run_oldest())
    assert tokens_of(committed) == TEXT[6:10]
    assert committed[0].num_drafted > 3, "those that came to nothing are told as well"
    assert scheduler.load.drafts.num_cancelled == 2


def test_results_of_what_was_given_up_change_nothing() -> None:
    """Even if a stage, which knows better, should send some."""
    drafter = Scripted([[WRONG]])
    scheduler = scheduler_of(drafter, in_flight=2)
    sequence = add(scheduler)
    first, ahead = next_step(scheduler), next_step(scheduler)

    def sample(position: int, token: int) -> tuple[SampledToken, ...]:
        return (SampledToken(sequence_id=sequence, position=position, token=token),)

    scheduler.complete(first.step_id, sample(3, TEXT[3]))
    again = next_step(scheduler)
    assert scheduler.complete(ahead.step_id, sample(4, 77)) == []
    assert scheduler._sequences[sequence].awaiting_sample
    assert tokens_of(scheduler.complete(again.step_id, sample(4, TEXT[4]))) == [TEXT[4]]


def test_a_restart_forgets_guesses_and_keeps_tokens() -> None:
    drafter = Scripted()
    scheduler, pipeline = scheduler_of(drafter, in_flight=3), ToyPipeline()
    sequence = add(scheduler)
    pipeline.submit(next_step(scheduler))
    next_step(scheduler)
    scheduler.complete(*pipeline.run_oldest())
    scheduler.restart(scheduler._limits)
    assert scheduler._sequences[sequence].ahead == []
    step = next_step(scheduler)
    assert step.slices[0].tokens == tuple(TEXT[:4])
    assert step.cancels == ()
    pipeline = ToyPipeline()
    pipeline.submit(step)
    assert tokens_of(scheduler.complete(*pipeline.run_oldest())) == [TEXT[4]]


def test_cancelled_sequences_cancel_their_steps_ahead() -> None:
    drafter = Scripted()
    scheduler = scheduler_of(drafter, in_flight=3)
    sequence = add(scheduler)
    steps = [next_step(scheduler) for _ in range(3)]
    scheduler.cancel(sequence)
    assert drafter.is_closed
    scheduler.complete(steps[0].step_id, ())
    add(scheduler)
    assert next_step(scheduler).cancels == (steps[1].step_id, steps[2].step_id)


def test_states_are_taken_back_with_a_snapshot() -> None:
    drafter = Scripted([[TEXT[4], WRONG, TEXT[6]]])
    scheduler = scheduler_of(drafter, in_flight=2, num_states=4)
    pipeline = StatefulPipeline(4)
    add(scheduler)

    def run_one() -> tuple[Step, list[int]]:
        step = next_step(scheduler)
        assert scheduler.next_step() is None, "one at a time"
        pipeline.submit(step)
        return step, tokens_of(scheduler.complete(*pipeline.run_oldest()))

    assert run_one()[1] == [TEXT[3]]
    step, given = run_one()
    state = step.slices[0].state
    assert state is not None
    (copy,) = step.state_copies
    assert copy.source == state
    assert given == TEXT[4:6]
    step, given = run_one()
    assert step.state_copies == (StateCopy(source=copy.target, target=state),)
    assert step.slices[0].tokens == (*TEXT[3:6], *TEXT[6:9]), "those that were right, too"
    assert (step.slices[0].num_drafts, step.slices[0].start_position) == (3, 3)
    assert given == TEXT[6:10]
    step, given = run_one()
    assert step.slices[0].start_position == 9
    assert step.state_copies[0].source == state
    assert given == TEXT[10:14]
    slots = scheduler.load.states
    assert (slots.num_live, slots.num_checkpoints + slots.num_free) == (1, 3)


def test_a_text_that_ends_within_drafts_leaves_the_snapshot_as_its_checkpoint() -> None:
    drafter = Scripted([[TEXT[4], WRONG]])
    scheduler = scheduler_of(drafter, num_states=4)
    pipeline = StatefulPipeline(4)
    add(scheduler, stop=[TEXT[5]])
    for _ in range(2):
        pipeline.submit(next_step(scheduler))
        scheduler.complete(*pipeline.run_oldest())
    assert scheduler.load.num_sequences == 0
    slots = scheduler.load.states
    assert (slots.num_live, slots.num_checkpoints) == (0, 1)
    scheduler.add(
        SequenceRequest(prompt_tokens=tuple(TEXT[:12]), sampling=SamplingParams(), max_new_tokens=3)
    )
    step = next_step(scheduler)
    assert step.slices[0].start_position == 3, "after the prompt, where the snapshot was made"
    pipeline.submit(step)
    assert tokens_of(scheduler.complete(*pipeline.run_oldest())) == [TEXT[12]]


def test_without_a_slot_for_a_snapshot_nothing_is_drafted() -> None:
    drafter = Scripted()
    scheduler = scheduler_of(drafter, num_states=1)
    pipeline = StatefulPipeline(1)
    add(scheduler)
    for _ in range(3):
        step = next_step(scheduler)
        pipeline.submit(step)
        scheduler.complete(*pipeline.run_oldest())
        assert step.slices[0].num_drafts == 0
        assert step.state_copies == ()
