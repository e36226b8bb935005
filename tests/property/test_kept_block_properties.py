"""Blocks on the disks of stages change no text, whatever the disks lose and whenever stages do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduling.toy_pipeline import DiskPipeline, expected_tokens

from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, SequenceId

CONTEXT_TOKENS = 320
NUM_STAGES = 2

limits_of = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(blocks_for(CONTEXT_TOKENS), 50),
    context_tokens=st.just(CONTEXT_TOKENS),
    max_step_tokens=st.integers(1, 100),
    max_step_sequences=st.integers(1, 6),
    max_steps_in_flight=st.integers(1, 4),
    disk_salt=st.just(b"salt"),
)
events_of = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(0, 2),
            st.integers(1, CONTEXT_TOKENS - 30),
            st.integers(1, 30),
            st.booleans(),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("run"), st.integers(1, 20)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("lose"), st.integers(0, 3)),
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=120)
@given(limits=limits_of, events=events_of, seed=st.integers(0, 3), loss=st.sampled_from([0, 0.3]))
def test_every_sequence_gets_its_own_text(
    limits: SchedulerLimits, events: list[tuple[object, ...]], seed: int, loss: float
) -> None:
    rng = random.Random(seed)
    disks: list[dict[bytes, list[tuple[int, int]]]] = [{} for _ in range(NUM_STAGES)]
    scheduler = Scheduler(limits)

    def new_pipeline() -> DiskPipeline:
        return DiskPipeline(disks, lambda _: rng.random() >= loss)

    pipeline = new_pipeline()
    expected_outputs: dict[SequenceId, list[int]] = {}
    got: dict[SequenceId, list[int]] = {}
    cancelled: set[SequenceId] = set()

    def run() -> bool:
        """Form steps while there are any, and run one."""
        while (step := scheduler.next_step()) is not None:
            pipeline.submit(step)
        if not len(pipeline):
            return False
        step_id, sampled = pipeline.run_oldest()
        tokens = scheduler.complete(step_id, sampled, num_restored=pipeline.num_restored)
        for token in tokens:
            got[token.sequence_id].append(token.token)
        return True

    for event in events:
        match event:
            case ("add", int(text), int(length), int(count), bool(is_alone)):
                prompt = expected_tokens([text], length)
                sequence = scheduler.add(
                    SequenceRequest(
                        prompt_tokens=tuple(prompt), sampling=SamplingParams(), max_new_tokens=count
                    ),
                    is_alone=is_alone and rng.random() < 0.2,
                )
                expected_outputs[sequence] = expected_tokens(prompt, count)
                got[sequence] = []
            case ("cancel", int(number)) if number < len(expected_outputs):
                sequence = SequenceId(number)
                if got[sequence] != expected_outputs[sequence]:
                    cancelled.add(sequence)
                scheduler.cancel(sequence)
            case ("run", int(count)):
                for _ in range(count):
                    run()
            case ("restart",):
                scheduler.restart(limits)
                pipeline = new_pipeline()
            case ("lose", int(stage)) if stage < NUM_STAGES and disks[stage]:
                del disks[stage][rng.choice(list(disks[stage]))]
            case _:
                pass
    while run():
        pass
    for sequence, expected in expected_outputs.items():
        if sequence in cancelled:
            assert got[sequence] == expected[: len(got[sequence])]
        else:
            assert got[sequence] == expected
    assert scheduler.load.num_free_blocks == limits.num_blocks
    assert scheduler.load.num_sequences == 0


def test_long_prompts_are_restored_and_not_computed() -> None:
    """By another pipeline, as after a restart: all but the last tokens, once for all that ask."""
    disks: list[dict[bytes, list[tuple[int, int]]]] = [{} for _ in range(NUM_STAGES)]
    prompt = expected_tokens([0], 300)

    def computed(num_sequences: int, salt: bytes = b"salt") -> tuple[int, int]:
        """How many tokens are computed for as many with the same prompt, and restored."""
        scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=100,
                context_tokens=CONTEXT_TOKENS,
                max_step_tokens=64,
                max_step_sequences=4,
                max_steps_in_flight=2,
                disk_salt=salt,
            )
        )
        pipeline = DiskPipeline(disks, lambda _: True)
        request = SequenceRequest(
            prompt_tokens=tuple(prompt), sampling=SamplingParams(), max_new_tokens=1
        )
        for _ in range(num_sequences):
            scheduler.add(request)
        tokens = []
        while True:
            while (step := scheduler.next_step()) is not None:
                pipeline.submit(step)
            if not len(pipeline):
                break
            step_id, sampled = pipeline.run_oldest()
            tokens += scheduler.complete(step_id, sampled, num_restored=pipeline.num_restored)
        assert [token.token for token in tokens] == expected_tokens(prompt, 1) * num_sequences
        return pipeline.num_computed, scheduler.load.prefix.num_restored_tokens

    assert computed(1) == (300, 0)
    assert [len(disk) for disk in disks] == [18, 18]
    in_order = list(disks[1])
    assert computed(1) == (12, 288)
    assert computed(4) == (4 * 12, 288)
    assert computed(1, b"another") == (300, 0)
    # A hole on one of the disks ends it there, for all that ask.
    del disks[1][in_order[10]]
    assert computed(3)[1] == 10 * 16
    assert computed(1) == (12, 288)
    for name in in_order[3:]:
        del disks[0][name]
    assert computed(1) == (300 - 48, 48)
