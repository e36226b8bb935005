"""Any interleaving of arrivals, cancellations and completions gives every sequence its own text."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy_pipeline import ToyPipeline, expected_tokens

from potluck.scheduling import Scheduler, SchedulerLimits, SequenceRequest
from potluck.scheduling.blocks import blocks_for
from potluck.types.step import SamplingParams, SequenceId

CONTEXT_TOKENS = 80

limits = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(blocks_for(CONTEXT_TOKENS), 20),
    context_tokens=st.just(CONTEXT_TOKENS),
    max_step_tokens=st.integers(1, 40),
    max_step_sequences=st.integers(1, 6),
    max_steps_in_flight=st.integers(1, 4),
)
arrivals = st.tuples(
    st.just("add"),
    st.lists(st.integers(0, 999), min_size=1, max_size=CONTEXT_TOKENS - 1),
    st.integers(1, 60),
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


@settings(max_examples=150, deadline=None)
@given(limits=limits, events=events)
def test_every_sequence_gets_its_own_text_and_all_blocks_come_back(
    limits: SchedulerLimits, events: list[tuple[object, ...]]
) -> None:
    scheduler = Scheduler(limits)
    pipeline = ToyPipeline()
    asked: dict[SequenceId, tuple[list[int], int]] = {}
    got: dict[SequenceId, list[int]] = {}
    cancelled: set[SequenceId] = set()

    def form() -> bool:
        step = scheduler.next_step()
        if step is None:
            return False
        assert step.num_tokens <= limits.max_step_tokens
        assert len(step.slices) <= limits.max_step_sequences
        pipeline.submit(step)
        assert scheduler.num_steps_in_flight <= limits.max_steps_in_flight
        return True

    def complete() -> None:
        for token in scheduler.complete(*pipeline.run_oldest()):
            assert token.sequence_id not in cancelled
            got[token.sequence_id].append(token.token)

    for event in events:
        match event:
            case ("add", list(prompt), int(count)):
                sequence = scheduler.add(
                    SequenceRequest(
                        prompt_tokens=tuple(prompt),
                        sampling=SamplingParams(),
                        max_new_tokens=count,
                    )
                )
                asked[sequence] = (prompt, min(count, CONTEXT_TOKENS - len(prompt)))
                got[sequence] = []
            case ("cancel", int(number)) if number < len(asked):
                sequence = SequenceId(number)
                finished = len(got[sequence]) == asked[sequence][1]
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

    for sequence, (prompt, count) in asked.items():
        expected = expected_tokens(prompt, count)
        if sequence in cancelled:
            assert got[sequence] == expected[: len(got[sequence])]
        else:
            assert got[sequence] == expected
    assert scheduler.num_free_blocks == limits.num_blocks
    assert scheduler.num_sequences == 0
