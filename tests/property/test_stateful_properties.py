"""Models with state: any interleaving gives every sequence its own text.

With and without a prefix cache, with several steps in flight, and when sequences are cancelled or
preempted, steps fail on one of the stages, and all stages are lost. Checkpoints are made more often
than they would be, so that short prompts have many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stateful_pipeline import StatefulPipeline
from support.toy_pipeline import expected_tokens, toy_score

from potluck.scheduling import Scheduler, SchedulerLimits, SequenceRequest, stateful_cache
from potluck.scheduling.blocks import blocks_for
from potluck.types.step import SamplingParams, SequenceId, Step

CONTEXT_TOKENS = 120
NUM_STAGES = 2

limits_of = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(blocks_for(CONTEXT_TOKENS), 30),
    context_tokens=st.just(CONTEXT_TOKENS),
    max_step_tokens=st.integers(1, 60),
    max_step_sequences=st.integers(1, 6),
    max_steps_in_flight=st.integers(1, 4),
    has_prefix_cache=st.sampled_from([True, True, True, False]),
    num_states=st.integers(1, 10),
)
prompts = st.one_of(
    st.lists(st.integers(0, 999), min_size=1, max_size=CONTEXT_TOKENS - 1),
    st.builds(
        lambda text, length, rest: [*expected_tokens([text], length), *rest][: CONTEXT_TOKENS - 1],
        st.integers(0, 1),
        st.integers(1, CONTEXT_TOKENS),
        st.lists(st.integers(0, 999), max_size=20),
    ),
)
events_of = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            prompts,
            st.integers(1, 60),
            st.sampled_from([False, False, False, True]),
            st.sampled_from([False, False, False, True]),
        ),
        st.tuples(st.just("add"), prompts, st.integers(1, 60), st.just(False), st.just(False)),
        st.tuples(st.just("follow"), st.integers(0, 9), st.lists(st.integers(0, 999), max_size=9)),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("form")),
        st.tuples(st.just("complete")),
        st.tuples(st.just("run"), st.integers(1, 20)),
        st.tuples(st.just("fail"), st.integers(0, NUM_STAGES - 1)),
        st.tuples(st.just("restart"), st.integers(1, 10)),
    ),
    min_size=10,
    max_size=50,
)

Given = tuple[int, float | None]


def check_slots(scheduler: Scheduler, limits: SchedulerLimits) -> None:
    slots = scheduler.state_slots
    assert slots.num_live == scheduler.num_sequences - scheduler.num_waiting
    assert slots.num_live <= max(1, 3 * limits.num_states // 4)
    assert slots.num_live + slots.num_checkpoints + slots.num_free == limits.num_states
    assert limits.has_prefix_cache or not slots.num_checkpoints


@settings(max_examples=200, deadline=None)
@given(
    limits=limits_of,
    events=events_of,
    ladder=st.sampled_from([16, 48, 1024]),
    least=st.sampled_from([1, 16, 128]),
)
def test_every_sequence_gets_its_own_text(
    limits: SchedulerLimits, events: list[tuple[object, ...]], ladder: int, least: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stateful_cache, "LADDER_TOKENS", ladder)
        patch.setattr(stateful_cache, "LEAST_SAVED_TOKENS", least)
        play(limits, events)


def play(limits: SchedulerLimits, events: list[tuple[object, ...]]) -> None:
    scheduler = Scheduler(limits)
    pipeline = StatefulPipeline(limits.num_states, NUM_STAGES)
    in_flight: deque[Step] = deque()
    asked: dict[SequenceId, list[Given]] = {}
    texts: dict[SequenceId, list[int]] = {}
    got: dict[SequenceId, list[Given]] = {}
    over: set[SequenceId] = set()

    def add(prompt: list[int], count: int, is_scored: bool, is_alone: bool) -> None:
        request = SequenceRequest(
            prompt_tokens=tuple(prompt),
            sampling=SamplingParams(),
            max_new_tokens=count,
            score_prompt=is_scored,
        )
        sequence = scheduler.add(request, is_alone=is_alone)
        new = expected_tokens(prompt, min(count, CONTEXT_TOKENS - len(prompt)))
        scores = [(prompt[i], toy_score(prompt[:i], prompt[i])) for i in range(1, len(prompt))]
        asked[sequence] = scores * is_scored + [(token, None) for token in new]
        texts[sequence] = [*prompt, *new]
        got[sequence] = []

    def form() -> bool:
        step = scheduler.next_step()
        if step is None:
            return False
        assert step.num_tokens <= limits.max_step_tokens
        pipeline.submit(step)
        in_flight.append(step)
        check_slots(scheduler, limits)
        return True

    def complete(fails_at: int | None = None) -> None:
        step = in_flight.popleft()
        step_id, sampled = pipeline.run_oldest(fails_at)
        for token in scheduler.complete(step_id, sampled, has_failed=fails_at is not None):
            assert token.sequence_id not in over
            got[token.sequence_id].append((token.token, token.logprob))
            if token.finish_reason is not None:
                assert got[token.sequence_id] == asked[token.sequence_id]
        if fails_at is not None:
            for part in step.slices:
                cancel(part.sequence_id)
        check_slots(scheduler, limits)

    def cancel(sequence: SequenceId) -> None:
        if sequence in asked and got[sequence] != asked[sequence]:
            over.add(sequence)
        scheduler.cancel(sequence)
        check_slots(scheduler, limits)

    for event in events:
        match event:
            case ("add", list(prompt), int(count), bool(is_scored), bool(is_alone)):
                add(prompt, count, is_scored, is_alone)
            case ("follow", int(number), list(rest)) if number < len(asked):
                prompt = [*texts[SequenceId(number)], *rest]
                if len(prompt) < CONTEXT_TOKENS:
                    add(prompt, 5, is_scored=False, is_alone=False)
            case ("cancel", int(number)):
                cancel(SequenceId(number))
            case ("form",):
                form()
            case ("complete",) if len(pipeline):
                complete()
            case ("run", int(count)):
                for _ in range(count):
                    while form():
                        pass
                    if len(pipeline):
                        complete()
            case ("fail", int(stage)) if len(pipeline):
                complete(fails_at=stage)
            case ("restart", int(num_states)):
                limits = replace(limits, num_states=num_states)
                scheduler.restart(limits)
                pipeline = StatefulPipeline(num_states, NUM_STAGES)
                in_flight.clear()
            case _:
                pass
    while form() or len(pipeline):
        if len(pipeline):
            complete()

    for sequence, expected in asked.items():
        if sequence in over:
            assert got[sequence] == expected[: len(got[sequence])]
        else:
            assert got[sequence] == expected
    assert scheduler.num_free_blocks == limits.num_blocks
    assert scheduler.num_sequences == 0
    assert scheduler.state_slots.num_live == 0
