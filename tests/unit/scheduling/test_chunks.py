"""Chunks of prompts while others decode, from what steps took."""

from collections.abc import Callable

import pytest
from support.scheduling.toy_pipeline import ToyPipeline

from potluck.scheduling.limits import ChunkController, SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, Step

StepSeconds = Callable[[int, int], float]


def measured(controller: ChunkController, *, fixed: float, per_token: float) -> None:
    for _ in range(7):
        controller.record(fixed, num_tokens=1, num_chunk_tokens=0)
        controller.record(fixed + 512 * per_token, num_tokens=512, num_chunk_tokens=512)


@pytest.mark.parametrize(
    ("fixed", "per_token", "num_tokens"),
    [
        (0.064, 0.002, 64),  # 100 tokens in 200 ms, less 32 for the step
        (0.5, 0.01, 32),
        (0.0032, 0.0001, 1968),
        (0.01, 1.0, 32),
    ],
)
def test_a_chunk_fits_into_the_target_and_is_not_too_short(
    fixed: float, per_token: float, num_tokens: int
) -> None:
    controller = ChunkController(0.2, 1)
    measured(controller, fixed=fixed, per_token=per_token)
    assert controller.most_tokens(0) == num_tokens


def test_several_steps_in_flight_share_the_target_and_decodes_count() -> None:
    controller = ChunkController(0.4, 4)
    measured(controller, fixed=0.032, per_token=0.001)
    assert controller.most_tokens(0) == 64
    assert controller.most_tokens(8) == 48


def test_before_anything_is_known_a_chunk_is_moderate() -> None:
    controller = ChunkController(0.2, 1)
    assert controller.most_tokens(1) == 128
    controller.record(0.03, num_tokens=1, num_chunk_tokens=0)
    controller.record(3.0, num_tokens=4, num_chunk_tokens=3)  # mostly of something else
    assert controller.most_tokens(1) == 128


def test_single_steps_that_were_held_up_change_nothing() -> None:
    controller = ChunkController(0.2, 1)
    measured(controller, fixed=0.064, per_token=0.002)
    for _ in range(3):
        controller.record(60.0, num_tokens=81, num_chunk_tokens=80)
    assert controller.most_tokens(0) == 64


@pytest.mark.parametrize("fixed_tokens", [0, 8, 40, 100])
def test_chunks_settle_whatever_a_step_costs_besides(fixed_tokens: int) -> None:
    """What is measured of short chunks leads to chunks that are about as short."""
    controller = ChunkController(0.5, 1)
    measured(controller, fixed=fixed_tokens * 0.001, per_token=0.001)
    chunks = []
    for _ in range(40):
        chunks.append(controller.most_tokens(1))
        seconds = 0.001 * (fixed_tokens + 1 + chunks[-1])
        controller.record(seconds, num_tokens=chunks[-1] + 1, num_chunk_tokens=chunks[-1])
    assert len(set(chunks[10:])) == 1
    assert 0.7 * 0.5 < 0.001 * (fixed_tokens + chunks[-1]) < 1.2 * 0.5


def request(tokens: range, count: int) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(tokens), sampling=SamplingParams(), max_new_tokens=count
    )


class Machine:
    """Computes the toy model; a step takes as long as ``step_seconds`` of its tokens says."""

    def __init__(self, step_seconds: StepSeconds, target_seconds: float) -> None:
        self.scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=1024,
                context_tokens=8192,
                max_step_tokens=512,
                max_step_sequences=8,
                max_steps_in_flight=1,
                target_step_seconds=target_seconds,
            )
        )
        self.pipeline = ToyPipeline()
        self.step_seconds = step_seconds

    def run_one(self) -> tuple[Step, float]:
        step = self.scheduler.next_step()
        assert step is not None
        self.pipeline.submit(step)
        seconds = self.step_seconds(step.num_tokens, max(p.start_position for p in step.slices))
        self.scheduler.complete(*self.pipeline.run_oldest(), seconds=seconds)
        return step, seconds


def test_a_long_prompt_does_not_hold_up_a_stream() -> None:
    """On a machine whose tokens take longer the further they are in a text."""
    machine = Machine(lambda count, start: 0.03 + count * (0.001 + start * 2e-7), 0.2)
    machine.scheduler.add(request(range(600), 500))
    assert machine.run_one()[0].num_tokens == 512, "alone, a prompt has the longest chunks"
    for _ in range(10):
        machine.run_one()
    machine.scheduler.add(request(range(1000, 5000), 1))
    between = []
    while machine.scheduler.load.num_sequences == 2:
        step, seconds = machine.run_one()
        assert step.slices[0].sequence_id == 0, "every step has a token of the stream"
        between.append(seconds)
    assert max(between) < 0.25
    assert sum(between) < 1.35 * machine.step_seconds(4000, 2000), "nor does the stream the prompt"
    assert len(between) < 50


def test_alone_a_prompt_has_the_longest_chunks() -> None:
    machine = Machine(lambda count, _: 0.03 + count * 0.01, 0.2)
    machine.scheduler.add(request(range(2000), 1))
    assert [machine.run_one()[0].num_tokens for _ in range(4)] == [512, 512, 512, 464]


def test_sequences_that_are_all_computed_again_have_the_longest_chunks() -> None:
    machine = Machine(lambda count, _: 0.03 + count * 0.01, 0.2)
    for start in (0, 1000):
        machine.scheduler.add(request(range(start, start + 700), 200))
    while machine.run_one()[0].num_tokens != 2:
        pass
    machine.pipeline = ToyPipeline()
    machine.scheduler.restart(machine.scheduler._limits)
    assert [machine.run_one()[0].num_tokens for _ in range(2)] == [512, 512]
