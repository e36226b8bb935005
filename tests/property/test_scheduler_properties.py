"""Any interleaving of arrivals, cancellations and completions gives every sequence its own text.

Of prompts that are scored it gives every token's score once, in order.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduling.drafters import CheckedDrafts
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens, next_token, toy_score

from potluck.errors import PromptTooLongError
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import FinishReason, SequenceRequest
from potluck.types.step import SamplingParams, SequenceId

CONTEXT_TOKENS = 80

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
arrivals = st.tuples(
    st.just("add"),
    prompts,
    st.integers(0, 60),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
events = st.lists(
    st.one_of(
        arrivals,
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("form")),
        st.tuples(st.just("complete")),
    ),
    max_size=40,
)


sources = st.one_of(
    st.none(),
    st.builds(CheckedDrafts, st.just(next_token), st.integers(0, 99)),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(limits=limits, events=events, drafts=sources)
def test_every_sequence_gets_its_own_text_and_all_blocks_come_back(
    limits: SchedulerLimits, events: list[tuple[object, ...]], drafts: CheckedDrafts | None
) -> None:
    scheduler = Scheduler(limits, drafts)
    pipeline = ToyPipeline()
    expected_outputs: dict[SequenceId, list[tuple[int, float | None]]] = {}
    got: dict[SequenceId, list[tuple[int, float | None]]] = {}
    cancelled: set[SequenceId] = set()
    alone: set[SequenceId] = set()
    in_flight: list[set[SequenceId]] = []

    def form() -> bool:
        step = scheduler.next_step()
        if step is None:
            return False
        assert step.num_tokens <= limits.max_step_tokens
        assert len(step.slices) <= limits.max_step_sequences
        pipeline.submit(step)
        in_flight.append({part.sequence_id for part in step.slices})
        if any(sequences & alone for sequences in in_flight):
            assert len(in_flight) == len(step.slices) == 1, "it shares no step, and none is beside"
        assert len(pipeline) <= limits.max_steps_in_flight
        return True

    def complete() -> None:
        in_flight.pop(0)
        for token in scheduler.complete(*pipeline.run_oldest()):
            assert token.sequence_id not in cancelled
            texts = got[token.sequence_id]
            texts.append((token.token, token.logprob))
            assert texts == expected_outputs[token.sequence_id][: len(texts)]
            is_last = len(texts) == len(expected_outputs[token.sequence_id])
            assert token.finish_reason is (FinishReason.LENGTH if is_last else None)

    for event in events:
        match event:
            case ("add", list(prompt), int(count), bool(is_scored), bool(is_alone)):
                request = SequenceRequest(
                    prompt_tokens=tuple(prompt),
                    sampling=SamplingParams(),
                    max_new_tokens=count,
                    score_prompt=is_scored,
                )
                if request.generates_nothing or len(prompt) + (count > 0) > CONTEXT_TOKENS:
                    with pytest.raises((ValueError, PromptTooLongError)):
                        scheduler.add(request)
                    continue
                sequence = scheduler.add(request, is_alone=is_alone)
                if is_alone:
                    alone.add(sequence)
                scores = [
                    (prompt[i], toy_score(prompt[:i], prompt[i])) for i in range(1, len(prompt))
                ]
                new = expected_tokens(prompt, min(count, CONTEXT_TOKENS - len(prompt)))
                expected_outputs[sequence] = scores * is_scored + [(token, None) for token in new]
                got[sequence] = []
            case ("cancel", int(number)) if number < len(expected_outputs):
                sequence = SequenceId(number)
                finished = got[sequence] == expected_outputs[sequence]
                scheduler.cancel(sequence)
                if not finished:
                    cancelled.add(sequence)
            case ("form",):
                form()
            case ("complete",) if len(pipeline):
                complete()
            case _:
                pass
    while form() or len(pipeline):
        if len(pipeline):
            complete()

    for sequence, expected in expected_outputs.items():
        if sequence in cancelled:
            assert got[sequence] == expected[: len(got[sequence])]
        else:
            assert got[sequence] == expected
    assert scheduler.load.num_free_blocks == limits.num_blocks
    assert scheduler.load.num_sequences == 0
    assert drafts is None or all(drafter.is_closed for drafter in drafts.opened)
