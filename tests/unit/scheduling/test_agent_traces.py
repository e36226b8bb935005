"""What agents make a model with state compute: never a whole prompt again.

Each trace says how many tokens of each prompt are computed. Those that nobody has computed before
must be; the others are the price of having states at some places only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.scheduling.played_pipeline import drain
from support.scheduling.stateful_pipeline import StatefulPipeline
from support.scheduling.toy_pipeline import expected_tokens

from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams

GENERATION = [1, 2, 3]  # <|im_start|>assistant and a newline
THINK = [4, 5]
"""What a prompt ends with: the beginning of an answer."""


@dataclass
class Served:
    """A model of one stage that serves prompts and counts what it computes of them."""

    num_states: int = 8
    steps_in_flight: int = 1
    num_blocks: int = 2500
    draws: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        self.pipeline = StatefulPipeline(self.num_states, num_stages=1)
        self.scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=self.num_blocks,
                context_tokens=32_768,
                max_step_tokens=512,
                max_step_sequences=8,
                max_steps_in_flight=self.steps_in_flight,
                num_states=self.num_states,
            )
        )

    def words(self, count: int) -> list[int]:
        return [self.draws.randrange(10, 1000) for _ in range(count)]

    def serve(self, *prompts: list[int], count: int = 12) -> tuple[int, list[int]]:
        """Serve prompts that come together; return how many tokens of them were computed, and the
        first one's answer.
        """
        before = self.pipeline.num_computed
        ids = [self.scheduler.add(a_request(prompt, count)) for prompt in prompts]
        answers = drain(self.scheduler, self.pipeline)
        for sequence, prompt in zip(ids, prompts, strict=True):
            assert answers[sequence] == expected_tokens(prompt, count)
        num_decoded = len(prompts) * (count - 1)
        return self.pipeline.num_computed - before - num_decoded, answers[ids[0]]


def a_request(prompt: list[int], count: int) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(prompt), sampling=SamplingParams(), max_new_tokens=count
    )


def test_a_chat_whose_answers_are_repeated_computes_what_is_new() -> None:
    served = Served()
    history = served.words(3200)
    num_computed, answer = served.serve([*history, *GENERATION])
    assert num_computed == 3203
    for _ in range(6):
        history = [*history, *GENERATION, *answer, *served.words(100)]
        num_computed, answer = served.serve([*history, *GENERATION])
        assert num_computed == 100 + 3 + 1, "and the last token of the answer"
    assert served.scheduler.load.prefix.num_uncovered_tokens == 0


def test_a_chat_whose_thoughts_are_dropped_computes_the_end_of_the_last_prompt_again() -> None:
    served = Served()
    history = served.words(3200)
    served.serve([*history, *GENERATION, *THINK])
    for _ in range(6):
        end = len(history) + 3  # what the next prompt repeats of this one
        history = [*history, *GENERATION, *served.words(200)]
        num_computed, _ = served.serve([*history, *GENERATION, *THINK])
        num_new = len(history) + 5 - end
        assert num_new <= num_computed <= num_new + 8 + 15


@pytest.mark.slow
@pytest.mark.parametrize("num_states", [4, 8])
def test_thoughts_that_are_dropped_after_many_calls_of_tools(num_states: int) -> None:
    """Within a turn of the user all is repeated; the next turn has no thoughts of the last one."""
    served = Served(num_states=num_states)
    history = served.words(3000)
    end = 0
    for _ in range(3):
        history = [*history, *served.words(60)]
        loop = kept = history
        for call in range(6):
            num_computed, answer = served.serve([*loop, *GENERATION, *THINK])
            if call:
                assert num_computed == 200 + 5 + 1
            else:
                num_new = len(loop) + 5 - end
                assert num_new <= num_computed <= num_new + 8 + 15
                end = len(loop) + 3
            result = served.words(200)
            loop = [*loop, *GENERATION, *THINK, *answer, *result]
            kept = [*kept, *GENERATION, *answer[6:], *result]
        history = kept


def test_a_system_prompt_and_tools_that_chats_share() -> None:
    """The second one computes from the last rung on and leaves a checkpoint where they part."""
    served = Served()
    shared = served.words(3000)
    assert [served.serve([*shared, *served.words(65)])[0] for _ in range(4)] == [
        3065,
        3065 - 2048,
        3065 - 2992,
        3065 - 2992,
    ]
    assert served.scheduler.load.prefix.num_uncovered_tokens == 3000 - 2048 + 2 * 8


@pytest.mark.parametrize("steps_in_flight", [1, 3])
def test_chats_that_come_together_compute_what_they_share_once(steps_in_flight: int) -> None:
    """The first is asked for a checkpoint where the others part from it."""
    served = Served(steps_in_flight=steps_in_flight)
    shared = served.words(3000)
    prompts = [[*shared, *served.words(65)] for _ in range(4)]
    assert served.serve(*prompts)[0] == 3065 + 3 * (3065 - 2992)


def test_forks_of_one_prompt_compute_its_end_each() -> None:
    served = Served(steps_in_flight=2)
    prompt = served.words(1500)
    assert served.serve(prompt, prompt, prompt)[0] == 1500 + 2 * (1500 - 1488)


@pytest.mark.slow
def test_a_prompt_that_is_changed_in_the_middle_computes_from_the_rung_before() -> None:
    served = Served(num_states=64)
    prompt = served.words(12_000)
    served.serve(prompt)
    assert served.serve([*prompt[:9000], *served.words(500)])[0] == 9500 - 8192
    assert served.serve([*prompt[:9000], *served.words(500)])[0] == 9500 - 8992


@pytest.mark.slow
def test_with_few_slots_rungs_are_thinned_out_but_for_the_last_ones() -> None:
    served = Served(num_states=8)
    prompt = served.words(20_000)
    served.serve(prompt)
    for end, most in ((19_500, 1024), (17_500, 2048), (10_000, 8192)):
        num_computed, _ = served.serve([*prompt[:end], *served.words(30)])
        assert num_computed <= most + 30, end


@pytest.mark.slow
def test_long_answers_have_rungs_too() -> None:
    served = Served()
    prompt = served.words(100)
    _, answer = served.serve(prompt, count=1100)
    cut = [*prompt, *answer][:1150]
    assert served.serve([*cut, *served.words(10)])[0] == 1160 - 1024


@pytest.mark.slow
def test_a_checkpoint_goes_with_its_blocks() -> None:
    """Even where there are free slots: without the blocks it is of no use."""
    served = Served(num_states=64, num_blocks=2048)
    prompt = served.words(1000)
    served.serve(prompt, count=1)
    before = served.scheduler.load.states.num_checkpoints
    assert before == 2, "at the end of the prompt and of the turn"
    served.serve(served.words(32_000), count=1)
    totals = served.scheduler.load.prefix
    assert totals.num_evictions > 0
    states = served.scheduler._cache.states
    assert states is not None
    kept = [each.prefix.num_tokens for each in states.pool.checkpoints]
    assert served.scheduler.load.states.num_free > 20
    assert (1000 in kept, 992 in kept) == (False, False)
    num_computed, _ = served.serve(prompt, count=1)
    assert num_computed == 1000


def test_without_a_prefix_cache_there_are_no_checkpoints() -> None:
    limits = SchedulerLimits(
        num_blocks=300,
        context_tokens=4096,
        max_step_tokens=512,
        max_step_sequences=8,
        max_steps_in_flight=1,
        has_prefix_cache=False,
        num_states=4,
    )
    scheduler = Scheduler(limits)
    scheduler.add(a_request(list(range(3000)), 3))
    steps = []
    pipeline = StatefulPipeline(4)
    while (step := scheduler.next_step()) is not None:
        steps.append(step)
        pipeline.submit(step)
        scheduler.complete(*pipeline.run_oldest())
    assert [step.num_tokens for step in steps] == [512] * 5 + [440, 1, 1]
    assert not any(step.state_copies for step in steps)
    assert scheduler.load.states.num_free == 4


def test_more_sequences_than_slots_wait() -> None:
    served = Served(num_states=4)
    prompts = [served.words(40) for _ in range(5)]
    for prompt in prompts:
        served.scheduler.add(a_request(prompt, 3))
    assert served.scheduler.next_step() is not None
    assert served.scheduler.load.num_waiting == 2
    assert served.scheduler.load.states.num_live == 3
