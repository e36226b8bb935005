"""Exceptions that nobody expected, in whatever the dispatcher calls: nobody waits for ever."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from support.scheduling.played_pipeline import PlayedPipeline

from potluck.errors import DefectError, EngineError, PotluckError
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import SequenceRequest, SequenceUpdate
from potluck.types.step import SampledToken, SamplingParams, SequenceId, Step, StepId

LIMITS = SchedulerLimits(
    num_blocks=8, context_tokens=64, max_step_tokens=32, max_step_sequences=4, max_steps_in_flight=1
)


class Played(PlayedPipeline):
    """A dispatcher whose pipeline is the test."""

    token = 7

    def __init__(self, *, has_owner: bool = True, limits: SchedulerLimits = LIMITS) -> None:
        self.steps: list[Step] = []
        self.broken: list[PotluckError] = []
        self.num_closes = 0
        self.dispatcher = Dispatcher(limits, self.broken.append if has_owner else None)
        self.dispatcher.attach(self.start, limits)

    def start(self, on_outcome: OnOutcome) -> Any:
        self.on_outcome = on_outcome
        return self

    def add(
        self, subscriber: Callable[[Update], None], prompt: int = 1, *, is_alone: bool = False
    ) -> SequenceRequest:
        request = SequenceRequest(
            prompt_tokens=(prompt,), sampling=SamplingParams(), max_new_tokens=5
        )
        self.dispatcher.add(request, subscriber, is_alone=is_alone)
        return request


def raising(_: Update) -> None:
    raise RuntimeError("the subscriber is broken")


def test_a_subscriber_that_raises_loses_its_own_sequence_only() -> None:
    played = Played()
    updates: SimpleQueue[Update] = SimpleQueue()
    played.add(lambda _: None)  # in the first step alone
    played.add(raising)
    played.add(updates.put)
    while played.steps:
        played.answer()
    assert updates.qsize() == 5
    assert played.broken == []
    assert played.dispatcher.load.num_running == played.dispatcher.load.num_waiting == 0
    assert played.dispatcher.load.num_free_blocks == LIMITS.num_blocks
    played.dispatcher.close()


def test_the_next_step_is_submitted_before_subscribers_are_told() -> None:
    played = Played()
    num_submitted: list[int] = []
    played.add(lambda _: num_submitted.append(len(played.steps)))
    for _ in range(5):
        played.answer()
    assert num_submitted == [1, 1, 1, 1, 0]
    played.dispatcher.close()


def test_blocks_of_a_sequence_whose_subscriber_raises_are_used_at_once() -> None:
    limits = dataclasses.replace(
        LIMITS, max_steps_in_flight=3, max_step_tokens=64, has_prefix_cache=False
    )
    played = Played(limits=limits)
    request = SequenceRequest(
        prompt_tokens=tuple(range(59)), sampling=SamplingParams(), max_new_tokens=5
    )
    played.dispatcher.add(request, raising)  # takes 4 of 8 blocks
    played.dispatcher.add(request, lambda _: None)
    played.dispatcher.add(request, lambda _: None)
    assert played.dispatcher.load.num_waiting == 1
    played.answer()
    assert played.steps[-1].slices[0].sequence_id == 2
    played.dispatcher.close()


def break_the_scheduler(monkeypatch: pytest.MonkeyPatch, played: Played, method: str) -> None:
    """Have ``method`` of the present scheduler raise, and call it."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a block that nobody has")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, method, broken)
        if method == "cancel":
            error = EngineError("the stage has failed")
            played.on_outcome(StepOutcome(step=played.steps.pop(0), error=error))
        else:
            played.answer()


METHODS = pytest.mark.parametrize("method", ["complete", "next_step", "cancel"])


@METHODS
def test_a_scheduler_that_raises_and_has_no_owner_ends_all_sequences(
    monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    played = Played(has_owner=False)
    updates: SimpleQueue[Update] = SimpleQueue()
    played.add(updates.put)
    played.add(updates.put)
    break_the_scheduler(monkeypatch, played, method)
    ends = [updates.get_nowait() for _ in range(updates.qsize())]
    errors = [each for each in ends if isinstance(each, PotluckError)]
    assert isinstance(errors[-1], DefectError)
    assert "KeyError" in errors[-1].message
    assert "the scheduler failed" in caplog.text
    with pytest.raises(DefectError):
        played.add(updates.put)
    played.dispatcher.close()


@METHODS
def test_after_a_scheduler_that_raises_sequences_go_on_over_the_next_pipeline(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    played = Played()
    queues: list[SimpleQueue[Update]] = [SimpleQueue() for _ in range(3)]
    first = played.add(queues[0].put, prompt=1)
    played.add(queues[1].put, prompt=2)
    break_the_scheduler(monkeypatch, played, method)
    (defect,) = played.broken
    assert isinstance(defect, DefectError)
    assert "KeyError" in defect.message
    assert not played.dispatcher.is_attached
    played.add(queues[2].put, prompt=3)
    played.steps.clear()
    assert first in played.dispatcher.detach(), "a suspect"
    played.dispatcher.attach(played.start, LIMITS)
    while played.steps:
        played.answer()
    # A stage that had failed had ended the sequences of its step before the scheduler broke.
    for queue in queues[1 if method == "cancel" else 0 :]:
        tokens = [queue.get_nowait() for _ in range(queue.qsize())]
        assert [each.tokens[0].position for each in tokens if isinstance(each, SequenceUpdate)] == [
            1, 2, 3, 4, 5
        ]  # fmt: skip
    assert played.dispatcher.load.num_free_blocks == LIMITS.num_blocks
    played.dispatcher.close()
    assert len(played.broken) == 1
    assert played.num_closes == 2


def test_what_was_in_flight_at_the_end_is_known_afterwards() -> None:
    played = Played()
    first = played.add(lambda _: None)
    played.add(lambda _: None, prompt=2)  # waits for the step in flight
    played.dispatcher.stop()
    lost = EngineError("lost")
    played.on_outcome(StepOutcome(step=played.steps.pop(0), error=lost))
    assert played.dispatcher.detach() == (first,)
    assert played.dispatcher.detach() == ()
    assert played.steps == []
    assert played.dispatcher.num_dropped_outcomes == 0, "an error is no result"


def test_what_has_completed_is_no_longer_in_flight() -> None:
    played = Played()
    played.add(lambda _: None, prompt=1, is_alone=True)
    second = played.add(lambda _: None, prompt=2)
    played.answer()
    assert played.dispatcher.detach() == (second,)


def test_a_sequence_that_is_alone_is_alone_in_flight() -> None:
    played = Played()
    alone = played.add(lambda _: None, prompt=1, is_alone=True)
    played.add(lambda _: None, prompt=2)
    requests = dict(played.dispatcher.live)
    seen = []
    while played.steps:
        seen.append([requests[part.sequence_id] for step in played.steps for part in step.slices])
        played.answer()
    assert len(seen) == 10
    assert [alone in in_flight for in_flight in seen] == [True, False] * 5
    assert all(len(in_flight) == 1 for in_flight in seen)


def test_an_outcome_of_no_step_is_a_defect() -> None:
    played = Played()
    step = Step(step_id=StepId(99), slices=())
    played.on_outcome(StepOutcome(step=step))
    assert len(played.broken) == 1


def test_tokens_that_a_broken_scheduler_kept_to_itself_are_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played()
    updates: SimpleQueue[Update] = SimpleQueue()
    played.add(updates.put)
    played.answer()
    complete = Scheduler.complete

    def breaks_afterwards(*arguments: Any) -> None:
        complete(*arguments)
        raise KeyError("after all was noted")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "complete", breaks_afterwards)
        played.answer()
    played.steps.clear()
    played.dispatcher.detach()
    played.dispatcher.attach(played.start, LIMITS)
    (step,) = played.steps
    assert step.slices[0].tokens == (1, 7), "the prompt and the one that was told"
    while played.steps:
        played.answer()
    tokens = [updates.get_nowait() for _ in range(updates.qsize())]
    assert [each.tokens[0].position for each in tokens if isinstance(each, SequenceUpdate)] == [
        1, 2, 3, 4, 5
    ]  # fmt: skip
    played.dispatcher.close()


def test_results_that_come_twice_or_late_are_dropped_and_counted() -> None:
    played = Played()
    updates: SimpleQueue[Update] = SimpleQueue()
    played.add(updates.put)
    first, old = played.steps[0], played.on_outcome
    played.answer()
    sampled = (SampledToken(sequence_id=SequenceId(0), position=1, token=9),)
    old(StepOutcome(step=first, sampled=sampled))
    assert played.dispatcher.num_dropped_outcomes == 1
    late = played.steps.pop()
    played.dispatcher.detach()
    old(StepOutcome(step=late, sampled=sampled))
    played.dispatcher.attach(played.start, LIMITS)
    old(StepOutcome(step=late, sampled=sampled))
    assert played.dispatcher.num_dropped_outcomes == 3
    assert updates.qsize() == 1
    assert played.broken == []
    played.dispatcher.close()
