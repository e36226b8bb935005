"""Whatever stages are lost and whenever, every sequence gets the tokens of an undisturbed run.

Each once and in order, and all blocks come back. Stages that follow may have other limits; results
of lost ones come late or twice, or never.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduling.drafters import CheckedDrafts
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens, next_token, toy_score

from potluck.errors import DefectError, EngineError, PotluckError
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    FinishReason,
    SequenceRequest,
)
from potluck.types.step import SamplingParams, SequenceId, Step

CONTEXT_TOKENS = 80

Given = tuple[int, int, float | None]
"""A committed token: its position, itself and its score."""

limits = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(blocks_for(CONTEXT_TOKENS), 20),
    context_tokens=st.just(CONTEXT_TOKENS),
    max_step_tokens=st.integers(1, 40),
    max_step_sequences=st.integers(1, 6),
    max_steps_in_flight=st.integers(1, 4),
    has_prefix_cache=st.sampled_from([True, True, False]),
)
# Some begin alike, up to any token.
prompts = st.one_of(
    st.lists(st.integers(0, 999), min_size=1, max_size=CONTEXT_TOKENS),
    st.builds(
        lambda text, length, rest: [*expected_tokens([text], length), *rest][:CONTEXT_TOKENS],
        st.integers(0, 1),
        st.integers(1, CONTEXT_TOKENS),
        st.lists(st.integers(0, 999), max_size=20),
    ),
)


def make_request(
    prompt: list[int], count: int, is_scored: bool, has_stop: bool
) -> SequenceRequest | None:
    request = SequenceRequest(
        prompt_tokens=tuple(prompt),
        sampling=SamplingParams(),
        max_new_tokens=count,
        score_prompt=is_scored,
        stop_tokens=frozenset(range(60)) if has_stop else frozenset(),
    )
    fits = len(prompt) + (count > 0) <= CONTEXT_TOKENS
    return request if fits and not request.generates_nothing else None


requests = st.builds(
    make_request,
    prompts,
    st.integers(0, 60),
    st.booleans(),
    st.booleans(),
).filter(lambda request: request is not None)


def undisturbed(request: SequenceRequest) -> list[Given]:
    """What ``request`` is given where nothing is ever lost."""
    prompt = request.prompt_tokens
    given: list[Given] = []
    for position in range(1, request.num_scores + 1):
        token = prompt[position]
        given.append((position, token, toy_score(prompt[:position], token)))
    most = min(request.max_new_tokens or 0, CONTEXT_TOKENS - len(prompt))
    for position, token in enumerate(expected_tokens(prompt, most), len(prompt)):
        given.append((position, token, None))
        if token in request.stop_tokens:
            break
    return given


def continuation_after(request: SequenceRequest, given: list[Given]) -> Continuation:
    num_scored = sum(score is not None for _, _, score in given)
    return Continuation(
        output_tokens=tuple(token for _, token, _ in given[num_scored:]), num_scored=num_scored
    )


@dataclass
class Watched:
    """A sequence and what it was given; checks every token as it comes."""

    request: SequenceRequest
    expected: list[Given]
    given: list[Given] = field(default_factory=list)
    errors: list[PotluckError] = field(default_factory=list)
    is_over: bool = False

    def take(self, token: CommittedToken) -> None:
        assert not self.is_over
        self.given.append((token.position, token.token, token.logprob))
        assert self.given == self.expected[: len(self.given)]
        is_last = len(self.given) == len(self.expected)
        assert (token.finish_reason is not None) is is_last
        if is_last:
            is_stop = token.token in self.request.stop_tokens
            has_new = len(self.given) > self.request.num_scores
            assert token.finish_reason is (
                FinishReason.STOP if is_stop and has_new else FinishReason.LENGTH
            )
        self.is_over = is_last

    def update(self, update: Update) -> None:
        if isinstance(update, PotluckError):
            assert not self.is_over
            self.errors.append(update)
            self.is_over = True
        else:
            self.take(update.tokens[0])


def check_step(step: Step, within: SchedulerLimits, watched: dict[SequenceId, Watched]) -> None:
    assert step.num_tokens <= within.max_step_tokens
    assert len(step.slices) <= within.max_step_sequences
    for part in step.slices:
        assert all(block < within.num_blocks for block in part.block_table)
    for opening in step.opened:
        sequence = watched[opening.sequence_id]
        outputs = [token for _, token, score in sequence.given if score is None]
        assert opening.prompt_tokens == sequence.request.prompt_tokens
        assert list(opening.output_tokens) == outputs, "the history of penalties"


scheduler_events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests, st.sampled_from([False, False, True])),
        st.tuples(st.just("continue"), requests, st.integers(0, 200)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("alone"), st.integers(0, 9)),
        st.tuples(st.just("form")),
        st.tuples(st.just("complete")),
        st.tuples(st.just("complete")),
        st.tuples(st.just("restart"), limits),
    ),
    min_size=25,  # by itself it draws short lists, in which little is lost
    max_size=60,
)


sources = st.one_of(
    st.none(),
    st.builds(CheckedDrafts, st.just(next_token), st.integers(0, 99)),
)


@pytest.mark.slow
@settings(max_examples=50)
@given(first=limits, events=scheduler_events, drafts=sources)
def test_a_scheduler_that_restarts_commits_every_token_once(
    first: SchedulerLimits, events: list[tuple[object, ...]], drafts: CheckedDrafts | None
) -> None:
    within = first
    scheduler = Scheduler(first, drafts)
    pipeline = ToyPipeline()
    watched: dict[SequenceId, Watched] = {}
    cancelled: set[SequenceId] = set()

    def add(request: SequenceRequest, cut: int, *, is_alone: bool = False) -> None:
        expected = undisturbed(request)
        before = expected[: min(cut, len(expected) - 1)]
        sequence = Watched(request=request, expected=expected, given=before)
        continuation = continuation_after(request, before)
        watched[scheduler.add(request, continuation=continuation, is_alone=is_alone)] = sequence

    def form() -> bool:
        step = scheduler.next_step()
        if step is None:
            return False
        check_step(step, within, watched)
        pipeline.submit(step)
        assert len(pipeline) <= within.max_steps_in_flight
        return True

    def complete() -> None:
        for token in scheduler.complete(*pipeline.run_oldest()):
            assert token.sequence_id not in cancelled
            watched[token.sequence_id].take(token)

    for event in events:
        match event:
            case ("add", SequenceRequest() as request, bool(is_alone)):
                add(request, 0, is_alone=is_alone)
            case ("continue", SequenceRequest() as request, int(cut)):
                add(request, cut)
            case ("cancel", int(number)):
                if number in watched and not watched[SequenceId(number)].is_over:
                    cancelled.add(SequenceId(number))
                scheduler.cancel(SequenceId(number))
            case ("alone", int(number)):
                scheduler.set_alone(SequenceId(number))
            case ("restart", SchedulerLimits() as others):
                within, pipeline = others, ToyPipeline()
                scheduler.restart(others)
                assert scheduler.load.num_free_blocks == others.num_blocks
                assert scheduler.load.num_waiting == scheduler.load.num_sequences
            case ("form",):
                form()
            case ("complete",) if len(pipeline):
                complete()
            case _:
                pass
    while form() or len(pipeline):
        if len(pipeline):
            complete()

    assert all(each.is_over for number, each in watched.items() if number not in cancelled)
    assert scheduler.load.num_free_blocks == within.num_blocks
    assert scheduler.load.num_sequences == len(pipeline) == 0


class PlayedPipeline:
    """Runs a step of the toy model when it is told, also after it was closed."""

    def __init__(self, on_outcome: OnOutcome, within: SchedulerLimits) -> None:
        self.on_outcome = on_outcome
        self.within = within
        self.toy = ToyPipeline()
        self.submitted: list[Step] = []
        self.steps: deque[Step] = deque()
        self.outcomes: list[StepOutcome] = []
        self.is_closed = False

    def submit(self, step: Step) -> None:
        assert not self.is_closed
        self.toy.submit(step)
        self.steps.append(step)
        self.submitted.append(step)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def answer(self) -> None:
        """Tell the outcome of the oldest step, if there is one."""
        if self.steps:
            _, sampled = self.toy.run_oldest()
            self.outcomes.append(StepOutcome(step=self.steps.popleft(), sampled=sampled))
            self.on_outcome(self.outcomes[-1])

    def repeat(self, number: int) -> bool:
        """Tell an earlier outcome again, if there is one."""
        if self.outcomes:
            self.on_outcome(self.outcomes[number % len(self.outcomes)])
        return bool(self.outcomes)


dispatcher_events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests, st.sampled_from([False, False, True])),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("alone"), st.integers(0, 9)),
        st.tuples(st.just("answer")),
        st.tuples(st.just("answer")),
        st.tuples(st.just("answer")),
        st.tuples(st.just("answer late"), st.integers(0, 5)),
        st.tuples(st.just("repeat"), st.integers(0, 5), st.integers(0, 99)),
        st.tuples(st.just("stop")),
        st.tuples(st.just("detach")),
        st.tuples(st.just("attach"), limits),
        st.tuples(st.just("defect")),
    ),
    min_size=35,
    max_size=80,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(first=limits, events=dispatcher_events, drafts=sources)
def test_a_dispatcher_whose_pipelines_are_swapped_tells_every_token_once(
    first: SchedulerLimits, events: list[tuple[object, ...]], drafts: CheckedDrafts | None
) -> None:
    broken: list[PotluckError] = []
    dispatcher = Dispatcher(first, broken.append, drafts)
    pipelines: list[PlayedPipeline] = []
    watched: dict[SequenceId, Watched] = {}
    cancelled: set[SequenceId] = set()
    num_dropped = num_defects = 0

    def attach(within: SchedulerLimits) -> None:
        def start(on_outcome: OnOutcome) -> PlayedPipeline:
            pipelines.append(PlayedPipeline(on_outcome, within))
            return pipelines[-1]

        dispatcher.detach()
        dispatcher.attach(start, within)

    attach(first)
    for event in events:
        match event:
            case ("add", SequenceRequest() as request, bool(is_alone)):
                sequence = Watched(request=request, expected=undisturbed(request))
                watched[dispatcher.add(request, sequence.update, is_alone=is_alone)] = sequence
            case ("cancel", int(number)):
                if number in watched and not watched[SequenceId(number)].is_over:
                    cancelled.add(SequenceId(number))
                    watched[SequenceId(number)].is_over = True
                dispatcher.cancel(SequenceId(number))
            case ("alone", int(number)):
                dispatcher.set_alone(SequenceId(number))
            case ("answer",) if dispatcher.is_attached:
                pipelines[-1].answer()
            case ("answer late", int(number)) if number < len(pipelines):
                old = pipelines[number]
                is_present = old is pipelines[-1] and dispatcher.is_attached
                num_dropped += bool(old.steps) and not is_present
                old.answer()
            case ("repeat", int(number), int(which)) if number < len(pipelines):
                num_dropped += pipelines[number].repeat(which)
            case ("stop",):
                dispatcher.stop()
            case ("detach",):
                dispatcher.detach()
            case ("attach", SchedulerLimits() as others):
                attach(others)
            case ("defect",) if dispatcher.is_attached and pipelines[-1].steps:
                # A result that makes no sense to the scheduler breaks it.
                nonsense = Step(step_id=pipelines[-1].submitted[-1].step_id + 1, slices=())  # type: ignore[arg-type]
                pipelines[-1].on_outcome(StepOutcome(step=nonsense))
                num_defects += 1
                assert not dispatcher.is_attached
            case _:
                pass
    assert dispatcher.num_dropped_outcomes == num_dropped
    attach(first)
    while pipelines[-1].steps:
        pipelines[-1].answer()

    for pipeline in pipelines:
        for step in pipeline.submitted:
            assert step.num_tokens <= pipeline.within.max_step_tokens
            assert len(step.slices) <= pipeline.within.max_step_sequences
        assert [step.step_id for step in pipeline.submitted] == list(range(len(pipeline.submitted)))
    assert len(broken) == num_defects
    assert all(isinstance(error, DefectError) for error in broken)
    for number, sequence in watched.items():
        assert sequence.errors == []
        assert sequence.is_over
        assert number in cancelled or sequence.given == sequence.expected
    load = dispatcher.load
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert load.num_free_blocks == first.num_blocks
    dispatcher.close(EngineError("over"))
    assert drafts is None or all(drafter.is_closed for drafter in drafts.opened)
    assert all(pipeline.is_closed for pipeline in pipelines)


@pytest.mark.slow
@settings(max_examples=40)
@given(within=limits, request_=requests)
def test_a_sequence_can_be_continued_from_every_token(
    within: SchedulerLimits, request_: SequenceRequest
) -> None:
    expected = undisturbed(request_)
    for cut in range(len(expected)):
        before = expected[:cut]
        scheduler = Scheduler(within)
        continuation = continuation_after(request_, before)
        assert cut > 0 or continuation == NOTHING_COMMITTED
        scheduler.add(request_, continuation=continuation)
        pipeline = ToyPipeline()
        sequence = Watched(request=request_, expected=expected, given=before)
        while not sequence.is_over:
            while (step := scheduler.next_step()) is not None:
                pipeline.submit(step)
            for token in scheduler.complete(*pipeline.run_oldest()):
                sequence.take(token)
        assert sequence.given == expected
        assert scheduler.load.num_free_blocks == within.num_blocks
