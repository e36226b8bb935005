"""Models with state: any interleaving gives every sequence its own text.

With and without a prefix cache, with several steps in flight, and when sequences are cancelled or
preempted, steps fail on one of the stages, and all stages are lost. Checkpoints are made more often
than they would be, so that short prompts have many.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.scheduling.drafters import CheckedDrafts
from support.scheduling.stateful_pipeline import Disk, StatefulDiskPipeline, StatefulPipeline
from support.scheduling.toy_pipeline import expected_tokens, next_token, toy_score

from potluck.scheduling import sequence_cache
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, SequenceId, Step

CONTEXT_TOKENS = 120
NUM_STAGES = 2
NUM_EVENTS = 500
STOP_TOKENS = frozenset(range(30))

Given = tuple[int, float | None]


def check_slots(scheduler: Scheduler, limits: SchedulerLimits) -> None:
    slots = scheduler.load.states
    num_running = scheduler.load.num_sequences - scheduler.load.num_waiting
    assert num_running <= max(1, 3 * limits.num_states // 4)
    assert num_running <= slots.num_live <= 2 * num_running, "some have a snapshot"
    num_used = slots.num_live + slots.num_checkpoints + slots.num_free
    assert num_used == limits.num_states or limits.disk_salt is not None, "one is being restored"
    assert limits.has_prefix_cache or not slots.num_checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_sequence_gets_its_own_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(seed)
    monkeypatch.setattr(sequence_cache, "LADDER_TOKENS", draws.choice([16, 48, 1024]))
    monkeypatch.setattr(sequence_cache, "LEAST_SAVED_TOKENS", draws.choice([1, 16, 128]))
    play(
        SchedulerLimits(
            num_blocks=draws.randint(blocks_for(CONTEXT_TOKENS), 40),
            context_tokens=CONTEXT_TOKENS,
            max_step_tokens=draws.choice([1, 7, 20, 40, 60]),
            max_step_sequences=draws.randint(1, 6),
            max_steps_in_flight=draws.randint(1, 4),
            has_prefix_cache=draws.random() < 0.9,
            num_states=draws.randint(1, 10),
        ),
        draws,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_states_on_disks_change_no_text(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the disks lose; a long prompt may be found there or be computed again."""
    draws = random.Random(f"disk {seed}")
    monkeypatch.setattr(sequence_cache, "LADDER_TOKENS", draws.choice([16, 48, 1024]))
    monkeypatch.setattr(sequence_cache, "LEAST_SAVED_TOKENS", draws.choice([1, 16]))
    loss = draws.choice((0.0, 0.0, 0.2))
    play(
        SchedulerLimits(
            num_blocks=draws.randint(blocks_for(CONTEXT_TOKENS), 40),
            context_tokens=CONTEXT_TOKENS,
            max_step_tokens=draws.choice([7, 20, 40, 60]),
            max_step_sequences=draws.randint(1, 6),
            max_steps_in_flight=draws.randint(1, 4),
            num_states=draws.randint(1, 10),
            disk_salt=b"salt",
        ),
        draws,
        [Disk() for _ in range(NUM_STAGES)],
        lambda: draws.random() >= loss,
    )


def play(
    limits: SchedulerLimits,
    draws: random.Random,
    disks: list[Disk] | None = None,
    keeps: Callable[[], bool] = lambda: True,
) -> None:
    def new_pipeline() -> StatefulPipeline:
        if disks is None:
            return StatefulPipeline(limits.num_states, NUM_STAGES)
        return StatefulDiskPipeline(limits.num_states, disks, keeps)

    drafts = CheckedDrafts(next_token, draws.randrange(99))
    scheduler = Scheduler(limits, drafts if draws.random() < 0.8 else None)
    pipeline = new_pipeline()
    in_flight: deque[Step] = deque()
    expected_outputs: dict[SequenceId, list[Given]] = {}
    texts: dict[SequenceId, list[int]] = {}
    got: dict[SequenceId, list[Given]] = {}
    over: set[SequenceId] = set()

    def add(prompt: list[int], count: int, *, is_scored: bool, is_alone: bool) -> None:
        request = SequenceRequest(
            prompt_tokens=tuple(prompt),
            sampling=SamplingParams(),
            max_new_tokens=count,
            score_prompt=is_scored,
            stop_tokens=STOP_TOKENS,
        )
        sequence = scheduler.add(request, is_alone=is_alone)
        new = expected_tokens(prompt, min(count, CONTEXT_TOKENS - len(prompt)))
        end = next((i for i, token in enumerate(new) if token in STOP_TOKENS), len(new))
        new = new[: end + 1]
        scores = [(prompt[i], toy_score(prompt[:i], prompt[i])) for i in range(1, len(prompt))]
        expected_outputs[sequence] = scores * is_scored + [(token, None) for token in new]
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
        restored = {}
        if isinstance(pipeline, StatefulDiskPipeline) and fails_at is None:
            restored = {"num_restored": pipeline.num_restored, "state_end": pipeline.state_end}
        for token in scheduler.complete(
            step_id, sampled, has_failed=fails_at is not None, **restored
        ):
            assert token.sequence_id not in over
            got[token.sequence_id].append((token.token, token.logprob))
            if token.finish_reason is not None:
                assert got[token.sequence_id] == expected_outputs[token.sequence_id]
        if fails_at is not None:
            for part in step.slices:
                cancel(part.sequence_id)
        check_slots(scheduler, limits)

    def cancel(sequence: SequenceId) -> None:
        if sequence in expected_outputs and got[sequence] != expected_outputs[sequence]:
            over.add(sequence)
        scheduler.cancel(sequence)
        check_slots(scheduler, limits)

    def prompt() -> list[int]:
        """Return one that begins as others do, or goes on where one ended."""
        tail = [draws.randrange(1000) for _ in range(draws.choice((0, 1, 5, 30)))]
        if texts and draws.random() < 0.4:
            text = draws.choice(list(texts.values())[-4:])
            return [*text[: len(text) - draws.choice((0, 0, 1, 5, 20))], *tail]
        return [*expected_tokens([draws.randrange(2)], draws.randrange(CONTEXT_TOKENS)), *tail]

    for _ in range(NUM_EVENTS):
        match draws.choices(
            ("add", "cancel", "form", "complete", "fail", "restart"), (12, 4, 40, 40, 2, 0.5)
        )[0]:
            case "add" if len(expected_outputs) - len(over) < 40:
                add(
                    (prompt() or [7])[: CONTEXT_TOKENS - 1],
                    draws.choice((1, 3, 20, 60)),
                    is_scored=draws.random() < 0.1,
                    is_alone=draws.random() < 0.05,
                )
            case "cancel" if expected_outputs:
                cancel(draws.choice(list(expected_outputs)[-6:]))
            case "form":
                form()
            case "complete" if len(pipeline):
                complete()
            case "fail" if len(pipeline):
                complete(fails_at=draws.randrange(NUM_STAGES))
            case "restart":
                limits = replace(limits, num_states=draws.randint(1, 10))
                scheduler.restart(limits)
                pipeline = new_pipeline()
                in_flight.clear()
            case _:
                pass
    while form() or len(pipeline):
        if len(pipeline):
            complete()

    for sequence, expected in expected_outputs.items():
        if sequence in over:
            assert got[sequence] == expected[: len(got[sequence])]
        else:
            assert got[sequence] == expected
    assert scheduler.load.num_free_blocks == limits.num_blocks
    assert scheduler.load.num_sequences == 0
    slots = scheduler.load.states
    assert slots.num_live == 0
    assert slots.num_checkpoints + slots.num_free == limits.num_states


def test_long_prompts_are_restored_with_their_states() -> None:
    """By another pipeline, as after a restart: all but the end, once for all that ask."""
    disks = [Disk() for _ in range(NUM_STAGES)]
    prompt = expected_tokens([0], 700)

    def computed(num_sequences: int, salt: bytes = b"salt") -> tuple[int, int, int]:
        """How many tokens are computed for as many with the same prompt, and restored."""
        scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=200,
                context_tokens=800,
                max_step_tokens=64,
                max_step_sequences=4,
                max_steps_in_flight=2,
                num_states=8,
                disk_salt=salt,
            )
        )
        pipeline = StatefulDiskPipeline(8, disks, lambda: True)
        request = SequenceRequest(
            prompt_tokens=tuple(prompt), sampling=SamplingParams(), max_new_tokens=2
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
            tokens += scheduler.complete(
                step_id, sampled, num_restored=pipeline.num_restored, state_end=pipeline.state_end
            )
        for sequence in range(num_sequences):
            its = [token.token for token in tokens if token.sequence_id == sequence]
            assert its == expected_tokens(prompt, 2)
        totals = scheduler.load.prefix
        num_decoded = num_sequences
        return (
            pipeline.num_computed - num_decoded,
            totals.num_restored_tokens,
            totals.num_checkpoint_hits,
        )

    assert computed(1) == (700, 0, 0)
    assert [len(disk.states) for disk in disks] == [1, 1], "that of the end of the prompt"
    assert computed(1) == (700 - 688, 688, 1)
    assert computed(3) == (3 * (700 - 688), 688, 3)
    assert computed(1, b"another") == (700, 0, 0)
    # What one of the stages has lost is of no use to the others.
    disks[1].states.clear()
    assert computed(1)[0] == 700
    assert computed(1)[0] == 700 - 688, "it was kept again"
    del disks[0].blocks[list(disks[0].blocks)[30]]
    assert computed(1)[0] == 700
