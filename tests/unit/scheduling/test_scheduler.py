import pytest
from support.toy_pipeline import ToyPipeline, expected_tokens

from potluck.errors import PromptTooLongError
from potluck.scheduling import FinishReason, Scheduler, SchedulerLimits, SequenceRequest
from potluck.types.step import SamplingParams, SequenceId, Step


def make_scheduler(
    *,
    num_blocks: int = 64,
    context_tokens: int = 256,
    max_step_tokens: int = 32,
    max_step_sequences: int = 8,
    max_steps_in_flight: int = 1,
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            num_blocks=num_blocks,
            context_tokens=context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            max_steps_in_flight=max_steps_in_flight,
        )
    )


def request(
    num_tokens: int, max_new_tokens: int | None = 8, stop: frozenset[int] = frozenset()
) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(range(num_tokens)),
        sampling=SamplingParams(),
        max_new_tokens=max_new_tokens,
        stop_tokens=stop,
    )


def next_step(scheduler: Scheduler) -> Step:
    step = scheduler.next_step()
    assert step is not None
    return step


def run_all(scheduler: Scheduler) -> dict[SequenceId, list[int]]:
    return drain(scheduler, ToyPipeline())


def drain(scheduler: Scheduler, pipeline: ToyPipeline) -> dict[SequenceId, list[int]]:
    texts: dict[SequenceId, list[int]] = {}
    while True:
        while (step := scheduler.next_step()) is not None:
            pipeline.submit(step)
        if not len(pipeline):
            return texts
        for token in scheduler.complete(*pipeline.run_oldest()):
            texts.setdefault(token.sequence_id, []).append(token.token)


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


def test_the_context_bounds_the_new_tokens() -> None:
    scheduler = make_scheduler(context_tokens=20, num_blocks=2)
    sequence = scheduler.add(request(15, max_new_tokens=None))
    assert run_all(scheduler)[sequence] == expected_tokens(range(15), 5)
    assert scheduler.num_free_blocks == 2


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
    assert scheduler.num_sequences == 0


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    scheduler = make_scheduler(context_tokens=32)
    with pytest.raises(PromptTooLongError, match="has 32 tokens, and the context holds 32"):
        scheduler.add(request(32))


def test_cancel_frees_blocks_at_once_and_late_results_are_ignored() -> None:
    scheduler = make_scheduler()
    pipeline = ToyPipeline()
    sequence = scheduler.add(request(40))
    pipeline.submit(next_step(scheduler))
    assert scheduler.num_free_blocks == 61
    scheduler.cancel(sequence)
    assert scheduler.num_free_blocks == 64
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
    assert scheduler.num_free_blocks == 4


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
    while scheduler.num_waiting == 0:  # until the older one's growth preempts the younger one
        while (step := scheduler.next_step()) is not None:
            pipeline.submit(step)
        if scheduler.num_waiting == 0:
            committed = scheduler.complete(*pipeline.run_oldest())
            got += [token.token for token in committed if token.sequence_id == younger]
    scheduler.cancel(older)
    assert len(pipeline) == 2  # one of them samples for the younger one
    assert scheduler.next_step() is None
    got += drain(scheduler, pipeline)[younger]
    assert got == expected_tokens(range(4), 20)[1:]
