import dataclasses

import pytest
from support.scheduling.played_pipeline import drain, next_step
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens

from potluck.errors import ParameterError, PromptTooLongError
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import Continuation, FinishReason, SequenceRequest
from potluck.types.step import SampledToken, SamplingParams, SequenceId, StepId


def make_limits(
    *,
    num_blocks: int = 64,
    context_tokens: int = 256,
    max_step_tokens: int = 32,
    max_step_sequences: int = 8,
    max_steps_in_flight: int = 1,
) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=num_blocks,
        context_tokens=context_tokens,
        max_step_tokens=max_step_tokens,
        max_step_sequences=max_step_sequences,
        max_steps_in_flight=max_steps_in_flight,
        has_prefix_cache=False,  # see test_prefix_cache.py
    )


def make_scheduler(**limits: int) -> Scheduler:
    return Scheduler(make_limits(**limits))


def request(
    num_tokens: int, max_new_tokens: int | None = 8, stop: frozenset[int] = frozenset()
) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(range(num_tokens)),
        sampling=SamplingParams(),
        max_new_tokens=max_new_tokens,
        stop_tokens=stop,
    )


def run_all(scheduler: Scheduler) -> dict[SequenceId, list[int]]:
    return drain(scheduler, ToyPipeline())


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_text_whose_grammar_was_given_up_is_cut_off(is_cut_off: bool) -> None:
    scheduler = make_scheduler()
    sequence_id = scheduler.add(request(3, stop=frozenset({7})))
    step = next_step(scheduler)
    token = SampledToken(sequence_id=sequence_id, position=3, token=7, is_cut_off=is_cut_off)
    (committed,) = scheduler.complete(step.step_id, (token,))
    assert committed.finish_reason is (FinishReason.LENGTH if is_cut_off else FinishReason.STOP)


def test_a_long_prompt_goes_in_chunks_and_only_the_last_one_samples() -> None:
    scheduler = make_scheduler(max_steps_in_flight=3)
    scheduler.add(request(70))
    steps = [next_step(scheduler) for _ in range(3)]
    assert [len(step.slices[0].tokens) for step in steps] == [32, 32, 6]
    assert [step.slices[0].start_position for step in steps] == [0, 32, 64]
    assert [step.slices[0].sample for step in steps] == [False, False, True]
    assert [len(step.opened) for step in steps] == [0, 0, 1]


def test_decodes_go_before_prefill_and_share_its_step() -> None:
    scheduler = make_scheduler()
    pipeline = ToyPipeline()
    first = scheduler.add(request(4))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    second = scheduler.add(request(50))
    step = next_step(scheduler)
    assert [(part.sequence_id, len(part.tokens)) for part in step.slices] == [
        (first, 1),
        (second, 31),
    ]


def test_decodes_are_shared_out_over_the_steps_in_flight() -> None:
    scheduler = make_scheduler(max_steps_in_flight=2, max_step_tokens=64)
    pipeline = ToyPipeline()
    for _ in range(4):
        scheduler.add(request(4))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    steps = [next_step(scheduler), next_step(scheduler)]
    assert [[part.sequence_id for part in step.slices] for step in steps] == [[0, 1], [2, 3]]
    assert scheduler.next_step() is None


def test_a_prefill_is_cut_so_that_stages_overlap() -> None:
    scheduler = make_scheduler(
        max_steps_in_flight=2, max_step_tokens=512, num_blocks=128, context_tokens=1024
    )
    pipeline = ToyPipeline()
    scheduler.add(request(1000))
    num_tokens: list[int] = []
    while sum(num_tokens) < 1000:
        while (step := scheduler.next_step()) is not None:
            num_tokens.append(step.num_tokens)
            pipeline.submit(step)
        scheduler.complete(*pipeline.run_oldest())
    assert num_tokens[:3] == [125, 110, 96]  # an eighth of what is left
    assert num_tokens[-3:-1] == [64, 64]
    assert num_tokens[-1] <= 64


def test_several_short_prompts_fill_a_share_of_a_prefill() -> None:
    scheduler = make_scheduler(max_steps_in_flight=2, max_step_tokens=512)
    for _ in range(8):
        scheduler.add(request(32))
    steps = [next_step(scheduler), next_step(scheduler)]
    assert [step.num_tokens for step in steps] == [64, 64]


def test_one_stage_takes_as_much_of_a_prefill_as_fits() -> None:
    scheduler = make_scheduler(max_step_tokens=512, num_blocks=128, context_tokens=1024)
    scheduler.add(request(1000))
    assert next_step(scheduler).num_tokens == 512


def test_a_share_of_a_prefill_grows_with_what_waits() -> None:
    scheduler = make_scheduler(max_steps_in_flight=2, max_step_tokens=512)
    for _ in range(40):
        scheduler.add(request(100))
    assert next_step(scheduler).num_tokens == 500


def test_the_context_bounds_the_new_tokens() -> None:
    scheduler = make_scheduler(context_tokens=20, num_blocks=2)
    sequence = scheduler.add(request(15, max_new_tokens=None))
    assert run_all(scheduler)[sequence] == expected_tokens(range(15), 5)
    assert scheduler.load.num_free_blocks == 2


def test_a_stop_token_ends_the_sequence_and_is_its_last_token() -> None:
    stop = expected_tokens(range(4), 3)[-1]
    scheduler = make_scheduler()
    pipeline = ToyPipeline()
    scheduler.add(request(4, max_new_tokens=50, stop=frozenset({stop})))
    committed = []
    while (step := scheduler.next_step()) is not None:
        pipeline.submit(step)
        committed += scheduler.complete(*pipeline.run_oldest())
    assert [token.finish_reason for token in committed] == [None, None, FinishReason.STOP]
    assert committed[-1].token == stop
    assert scheduler.load.num_sequences == 0


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    scheduler = make_scheduler(context_tokens=32)
    with pytest.raises(PromptTooLongError, match="has 32 tokens, but the context size is 32"):
        scheduler.add(request(32))


def test_cancel_frees_blocks_at_once_and_late_results_are_ignored() -> None:
    scheduler = make_scheduler()
    pipeline = ToyPipeline()
    sequence = scheduler.add(request(40))
    pipeline.submit(next_step(scheduler))
    assert scheduler.load.num_free_blocks == 61
    scheduler.cancel(sequence)
    assert scheduler.load.num_free_blocks == 64
    assert scheduler.complete(*pipeline.run_oldest()) == []
    scheduler.cancel(sequence)
    assert scheduler.next_step() is None


def test_the_last_stage_is_told_to_forget_finished_sequences() -> None:
    scheduler = make_scheduler()
    pipeline = ToyPipeline()
    first = scheduler.add(request(4, max_new_tokens=1))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    scheduler.add(request(5, max_new_tokens=1))
    step = next_step(scheduler)
    assert step.closed == (first,)


def test_the_youngest_is_preempted_and_its_text_does_not_change() -> None:
    # Three contexts of up to 56 tokens and room for 64: they cannot all stand at once.
    scheduler = make_scheduler(context_tokens=64, num_blocks=4)
    prompts = [request(14, max_new_tokens=40), request(15, max_new_tokens=40)]
    ids = [scheduler.add(prompt) for prompt in prompts]
    texts = run_all(scheduler)
    for sequence, prompt in zip(ids, prompts, strict=True):
        assert texts[sequence] == expected_tokens(prompt.prompt_tokens, 40)
    assert scheduler.load.num_free_blocks == 4


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="less than one full context"):
        make_scheduler(num_blocks=1, context_tokens=17)
    with pytest.raises(ValueError, match="must be positive"):
        make_scheduler(max_step_tokens=0)


def test_a_preempted_sequence_waits_for_its_token_in_flight() -> None:
    scheduler = make_scheduler(context_tokens=32, num_blocks=2, max_steps_in_flight=3)
    pipeline = ToyPipeline()
    older = scheduler.add(request(15, max_new_tokens=10))
    younger = scheduler.add(request(4, max_new_tokens=20))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    got: list[int] = []
    while scheduler.load.num_waiting == 0:  # until the older one's growth preempts the younger one
        while (step := scheduler.next_step()) is not None:
            pipeline.submit(step)
        if scheduler.load.num_waiting == 0:
            committed = scheduler.complete(*pipeline.run_oldest())
            got += [token.token for token in committed if token.sequence_id == younger]
    scheduler.cancel(older)
    assert len(pipeline) == 2  # one of them samples for the younger one
    assert scheduler.next_step() is None
    got += drain(scheduler, pipeline)[younger]
    assert got == expected_tokens(range(4), 20)[1:]


def test_after_a_restart_all_is_computed_again_in_the_order_of_admission() -> None:
    scheduler = make_scheduler(num_blocks=20, max_steps_in_flight=2)
    pipeline = ToyPipeline()
    first, second = scheduler.add(request(20)), scheduler.add(request(20))
    waiting = scheduler.add(request(200))
    for _ in range(4):
        pipeline.submit(next_step(scheduler))
        scheduler.complete(*pipeline.run_oldest())
    next_step(scheduler)  # lost
    limits = SchedulerLimits(
        num_blocks=16,
        context_tokens=256,
        max_step_tokens=7,
        max_step_sequences=3,
        max_steps_in_flight=1,
        has_prefix_cache=False,
    )
    scheduler.restart(limits)
    assert scheduler.load.num_waiting == scheduler.load.num_sequences == 3
    assert scheduler.load.num_free_blocks == 16
    step = next_step(scheduler)  # none is in flight, as only one may be
    assert (step.step_id, step.closed) == (0, ())
    assert [part.sequence_id for part in step.slices] == [first]
    pipeline = ToyPipeline()
    pipeline.submit(step)
    scheduler.complete(*pipeline.run_oldest())
    texts = drain(scheduler, pipeline)
    assert list(texts) == [first, second, waiting]
    assert texts[waiting] == expected_tokens(range(200), 8)
    for sequence in (first, second):
        expected = expected_tokens(range(20), 8)
        assert 0 < len(texts[sequence]) < 8
        assert texts[sequence] == expected[-len(texts[sequence]) :]
    assert scheduler.load.num_free_blocks == 16


def test_a_last_chunk_of_one_token_opens_its_sequence_again() -> None:
    """It looks like a decode, and the new last stage does not know the sequence."""
    scheduler = make_scheduler(max_step_tokens=4)
    scheduler.add(request(4), continuation=Continuation(output_tokens=(7,)))
    assert next_step(scheduler).opened == ()
    scheduler.complete(StepId(0), ())
    step = next_step(scheduler)
    assert [part.tokens for part in step.slices] == [(7,)]
    assert [opening.output_tokens for opening in step.opened] == [(7,)]


def test_what_was_closed_before_a_restart_is_not_closed_again() -> None:
    scheduler = make_scheduler()
    first = scheduler.add(request(4))
    next_step(scheduler)
    scheduler.cancel(first)
    scheduler.add(request(5))
    scheduler.restart(make_limits())
    assert next_step(scheduler).closed == ()


def test_a_context_that_a_live_sequence_might_outgrow_is_refused_and_changes_nothing() -> None:
    scheduler = make_scheduler(context_tokens=256)
    sequence = scheduler.add(request(100, max_new_tokens=101))
    step = next_step(scheduler)
    with pytest.raises(ValueError, match="may have 201 tokens, but the context only holds 200"):
        scheduler.restart(make_limits(context_tokens=200))
    scheduler.complete(step.step_id, ())
    assert next_step(scheduler).slices[0].start_position == 32
    scheduler.cancel(sequence)
    scheduler.restart(make_limits(context_tokens=200))
    with pytest.raises(PromptTooLongError):
        scheduler.add(request(200))


def test_a_sequence_becomes_alone_while_it_is_computed() -> None:
    scheduler = make_scheduler(max_steps_in_flight=2)
    first, second = scheduler.add(request(4)), scheduler.add(request(4))
    step = next_step(scheduler)
    assert len(step.slices) == 2
    scheduler.set_alone(first)
    scheduler.set_alone(SequenceId(99))
    pipeline = ToyPipeline()
    pipeline.submit(step)
    scheduler.complete(*pipeline.run_oldest())
    seen = []
    while (step_ := scheduler.next_step()) is not None:
        assert len(step_.slices) == 1
        if step_.slices[0].sequence_id == first:
            assert scheduler.next_step() is None, "nothing is in flight beside it"
        seen.append(step_.slices[0].sequence_id)
        pipeline.submit(step_)
        scheduler.complete(*pipeline.run_oldest())
    assert set(seen[:2]) == {first, second}


@pytest.mark.parametrize(
    ("continuation", "reason"),
    [
        (Continuation(num_scored=4), "4 scores, but only 3"),
        (Continuation(num_scored=-1), "-1 scores, but only 3"),
        (Continuation(num_scored=2, output_tokens=(1,)), "lacks scores"),
        (Continuation(num_scored=3, output_tokens=(1,) * 6), "6 generated tokens, but at most 5"),
        (Continuation(num_scored=3, output_tokens=(1,) * 5), "it has ended"),
        (Continuation(num_scored=3, output_tokens=(1, 50)), "it has ended"),
    ],
)
def test_a_continuation_that_cannot_be_is_refused(continuation: Continuation, reason: str) -> None:
    scheduler = make_scheduler()
    scored_request = dataclasses.replace(request(4, 5, frozenset({50})), score_prompt=True)
    with pytest.raises(ParameterError, match=reason):
        scheduler.add(scored_request, continuation=continuation)
    assert scheduler.load.num_sequences == 0


def test_an_id_that_is_given_is_kept_and_not_given_again() -> None:
    scheduler = make_scheduler()
    assert scheduler.add(request(4), sequence_id=SequenceId(5)) == 5
    assert scheduler.add(request(4)) == 6
    with pytest.raises(ValueError, match="live already"):
        scheduler.add(request(4), sequence_id=SequenceId(5))


def test_what_a_failed_step_closed_is_closed_again() -> None:
    """The stages after the one that failed have not heard of it."""
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    first, other = scheduler.add(request(2)), scheduler.add(request(3))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    scheduler.cancel(first)
    step = next_step(scheduler)
    assert step.closed == (first,)
    scheduler.complete(step.step_id, (), has_failed=True)
    scheduler.cancel(other)
    scheduler.add(request(4))
    assert sorted(next_step(scheduler).closed) == [first, other]
