"""The scheduler with a prefix cache: what is not computed again, and when."""

from dataclasses import replace

from support.scheduling.played_pipeline import drain, next_step
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens

from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import Continuation, SequenceRequest
from potluck.types.step import BlockCopy, Pooling, SamplingParams, SequenceId


def make_scheduler(
    *,
    num_blocks: int = 64,
    context_tokens: int = 256,
    max_step_tokens: int = 32,
    max_steps_in_flight: int = 1,
    has_prefix_cache: bool = True,
) -> Scheduler:
    return Scheduler(
        SchedulerLimits(
            num_blocks=num_blocks,
            context_tokens=context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=8,
            max_steps_in_flight=max_steps_in_flight,
            has_prefix_cache=has_prefix_cache,
        )
    )


def request(tokens: list[int], count: int = 1, **fields: object) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(tokens),
        sampling=SamplingParams(),
        max_new_tokens=count,
        **fields,  # type: ignore[arg-type]
    )


PROMPT = list(range(100, 140))  # two blocks and a half


def test_a_second_turn_computes_what_is_new() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    first = scheduler.add(request(PROMPT, 20))
    answer = drain(scheduler, pipeline)[first]
    before = pipeline.num_computed
    turn = [*PROMPT, *answer, 1, 2, 3]
    second = scheduler.add(request(turn))
    step = next_step(scheduler)
    assert scheduler.num_cached_tokens(second) == len(turn) - 4, "the last answer was not computed"
    pipeline.submit(step)
    (token,) = scheduler.complete(*pipeline.run_oldest())
    assert token.token == expected_tokens(turn, 1)[0]
    assert pipeline.num_computed == before + 4
    assert scheduler.load.prefix == PrefixTotals(
        num_admissions=2, num_hits=1, num_saved_tokens=len(turn) - 4
    )


def test_without_the_cache_everything_is_computed() -> None:
    scheduler, pipeline = make_scheduler(has_prefix_cache=False), ToyPipeline()
    for _ in range(2):
        scheduler.add(request(PROMPT))
        drain(scheduler, pipeline)
    assert pipeline.num_computed == 2 * len(PROMPT)
    assert scheduler.load.num_kept_blocks == 0
    assert scheduler.load.prefix.num_hits == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(list(range(48))))
    drain(scheduler, pipeline)
    scheduler.add(request(list(range(48))))
    step = next_step(scheduler)
    assert step.slices[0].start_position == 47
    assert step.slices[0].block_table[:2] == (0, 1)
    assert step.slices[0].block_table[2] == 3, "the block that is written is its own"
    assert step.copies == (BlockCopy(source=2, target=3),)


def test_forks_that_arrive_together_wait_for_the_first() -> None:
    scheduler, pipeline = make_scheduler(max_steps_in_flight=2, max_step_tokens=64), ToyPipeline()
    forks = [scheduler.add(request(PROMPT, 5)) for _ in range(4)]
    texts = drain(scheduler, pipeline)
    assert all(texts[fork] == expected_tokens(PROMPT, 5) for fork in forks)
    # Of the others, the last token of the prompt and those that were generated, but for the last.
    assert pipeline.num_computed == len(PROMPT) + 3 + 4 * 4


def test_a_prompt_that_has_little_in_common_with_others_does_not_wait() -> None:
    scheduler = make_scheduler(max_step_tokens=256)
    scheduler.add(request(PROMPT))
    scheduler.add(request([*PROMPT[:16], *range(17)]))
    scheduler.add(request([*PROMPT[:16], *range(15)]))
    scheduler.add(request([7, 8, 9]))
    assert [part.sequence_id for part in next_step(scheduler).slices] == [0, 1, 3]


def test_a_branch_copies_the_part_of_a_block_that_it_shares() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT, 100))
    for _ in range(3):  # the first goes on, and writes to its third block
        pipeline.submit(next_step(scheduler))
        scheduler.complete(*pipeline.run_oldest())
    branch = [*PROMPT[:36], 1, 2, 3]
    sequence = scheduler.add(request(branch, 3))
    step = next_step(scheduler)
    assert [part.start_position for part in step.slices] == [41, 36]
    assert step.copies == (BlockCopy(source=2, target=3),)
    pipeline.submit(step)
    texts = scheduler.complete(*pipeline.run_oldest())
    assert [each.token for each in texts if each.sequence_id == sequence] == expected_tokens(
        branch, 1
    )
    assert drain(scheduler, pipeline)[sequence] == expected_tokens(branch, 3)[1:]


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    scheduler, pipeline = make_scheduler(num_blocks=16), ToyPipeline()
    old, new = [*range(64)], [*range(500, 564)]
    for prompt in (old, new, old[:32], [*range(900, 1060)]):  # 4, 4, and 10 blocks
        scheduler.add(request(prompt))
        drain(scheduler, pipeline)
    # The old prompt's beginning was used last: what follows it had to go.
    assert scheduler.load.prefix.num_evictions == 2
    starts = []
    for prompt in (new, old):
        scheduler.add(request([*prompt, 1]))
        pipeline.submit(next_step(scheduler))
        starts.append(scheduler.load.prefix.num_saved_tokens)
        scheduler.complete(*pipeline.run_oldest())
        drain(scheduler, pipeline)
    assert starts == [31 + 64, 31 + 64 + 16], "one more block was needed, of the old prompt's"


def test_live_sequences_are_not_preempted_for_what_is_cached() -> None:
    scheduler, pipeline = make_scheduler(num_blocks=16), ToyPipeline()
    scheduler.add(request([*range(200)]))  # 13 blocks are kept
    drain(scheduler, pipeline)
    assert scheduler.load.num_free_blocks == 16
    assert scheduler.load.num_kept_blocks == 13
    ids = [scheduler.add(request([500 + each], 120)) for each in range(2)]  # 8 blocks each
    texts = drain(scheduler, pipeline)
    assert all(len(texts[each]) == 120 for each in ids)
    assert scheduler.load.prefix.num_admissions == 3, "neither was preempted"
    assert scheduler.load.prefix.num_evictions == 13


def test_a_preempted_sequence_finds_what_it_had() -> None:
    scheduler, pipeline = make_scheduler(num_blocks=5, context_tokens=64), ToyPipeline()
    prompts = [[*range(14)], [*range(100, 115)]]
    ids = [scheduler.add(request(prompt, 40)) for prompt in prompts]
    texts = drain(scheduler, pipeline)
    for sequence, prompt in zip(ids, prompts, strict=True):
        assert texts[sequence] == expected_tokens(prompt, 40)
    assert scheduler.load.prefix.num_hits > 0


def test_what_a_failed_step_computed_is_not_used() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT))
    pipeline.submit(next_step(scheduler))
    scheduler.complete(*pipeline.run_oldest())
    failed = next_step(scheduler)  # it is not run
    scheduler.complete(failed.step_id, (), has_failed=True)
    scheduler.cancel(SequenceId(0))
    sequence = scheduler.add(request(PROMPT))
    assert next_step(scheduler).slices[0].start_position == 32
    assert scheduler.num_cached_tokens(sequence) == 32


def test_a_step_of_blocks_that_were_given_back_says_nothing_of_the_new_ones() -> None:
    scheduler = make_scheduler(num_blocks=4, context_tokens=64, max_steps_in_flight=2)
    pipeline = ToyPipeline()
    scheduler.add(request([*range(60)], 2))
    step = next_step(scheduler)
    scheduler.cancel(SequenceId(0))
    scheduler.add(request([*range(60)], 2))
    scheduler.complete(step.step_id, ())
    assert scheduler.load.num_kept_blocks == 0
    step = next_step(scheduler)
    assert step.slices[0].start_position == 0
    pipeline.submit(step)
    scheduler.complete(*pipeline.run_oldest())
    assert drain(scheduler, pipeline)[SequenceId(1)] == expected_tokens(range(60), 2)


def test_a_restart_forgets_what_the_lost_stages_held() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT))
    drain(scheduler, pipeline)
    saved = scheduler.load.prefix
    scheduler.restart(
        SchedulerLimits(
            num_blocks=32,
            context_tokens=256,
            max_step_tokens=64,
            max_step_sequences=8,
            max_steps_in_flight=1,
        )
    )
    assert scheduler.load.num_kept_blocks == 0
    scheduler.add(request(PROMPT))
    assert next_step(scheduler).slices[0].start_position == 0
    assert scheduler.load.prefix.num_admissions == saved.num_admissions + 1


def test_scores_need_all_that_they_are_of() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT))
    drain(scheduler, pipeline)
    scheduler.add(request(PROMPT, score_prompt=True))
    assert next_step(scheduler).slices[0].start_position == 0
    scheduler = make_scheduler()
    scheduler.add(request(PROMPT))
    drain(scheduler, ToyPipeline())
    had = Continuation(num_scored=20)
    scheduler.add(request(PROMPT, score_prompt=True), continuation=had)
    part = next_step(scheduler).slices[0]
    assert (part.start_position, part.score_from) == (20, 0), "after it, the 21st is scored"


def test_what_all_of_the_prompt_is_pooled_for_is_computed_whole() -> None:
    for pooling, start in ((Pooling.MEAN, 0), (Pooling.CLS, 0), (Pooling.LAST, 39)):
        scheduler = make_scheduler()
        scheduler.add(request(PROMPT))
        drain(scheduler, ToyPipeline())
        scheduler.add(request(PROMPT, 0, pooling=pooling))
        assert next_step(scheduler).slices[0].start_position == start


def test_a_continuation_of_which_all_but_one_token_is_cached() -> None:
    """It looks like a decode, and no step has told the last stage of it."""
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT))
    drain(scheduler, pipeline)
    had = Continuation(output_tokens=tuple(expected_tokens(PROMPT, 1)))
    sequence = scheduler.add(request(PROMPT, 3), continuation=had)
    step = next_step(scheduler)
    assert [part.start_position for part in step.slices] == [40]
    assert [opening.sequence_id for opening in step.opened] == [sequence]
    pipeline.submit(step)
    scheduler.complete(*pipeline.run_oldest())
    assert drain(scheduler, pipeline)[sequence] == expected_tokens(PROMPT, 3)[2:]


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    scheduler, pipeline = make_scheduler(), ToyPipeline()
    scheduler.add(request(PROMPT))
    drain(scheduler, pipeline)
    new = scheduler.add(request(PROMPT, 3))
    had = Continuation(output_tokens=tuple(expected_tokens(PROMPT, 1)))
    continued = scheduler.add(request(PROMPT, 3), continuation=had)
    assert scheduler.num_cached_tokens(new) is None
    step = next_step(scheduler)
    assert [part.start_position for part in step.slices] == [39, 40]
    assert scheduler.num_cached_tokens(new) == 39
    assert scheduler.num_cached_tokens(continued) == 0, "whoever computed it first has told"
    assert scheduler.num_cached_tokens(SequenceId(99)) is None


def test_blocks_are_saved_under_the_salt_of_the_stages_that_computed_them() -> None:
    """A sequence that goes on over other stages, whose blocks have other content."""
    limits = SchedulerLimits(
        num_blocks=64,
        context_tokens=256,
        max_step_tokens=64,
        max_step_sequences=8,
        max_steps_in_flight=1,
        disk_salt=b"before",
    )

    def saved(scheduler: Scheduler) -> set[bytes]:
        hashes: set[bytes] = set()
        pipeline = ToyPipeline()
        while (step := scheduler.next_step()) is not None:
            hashes.update(block.hash for block in step.saves)
            pipeline.submit(step)
            scheduler.complete(*pipeline.run_oldest())
        return hashes

    moved = Scheduler(limits)
    moved.add(request(PROMPT, 30))
    next_step(moved)
    after = replace(limits, disk_salt=b"after")
    moved.restart(after)
    new = Scheduler(after)
    new.add(request(PROMPT, 30))
    assert saved(moved) == saved(new) != set()
