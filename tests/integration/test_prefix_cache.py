"""With a prefix cache, every sequence has the bits that it has alone without one.

Random traffic over real engines (``support.scheduling.prefix_traffic``). Tokens, log-probabilities
and alternatives are compared, greedy, sampled and scored.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.scheduling.prefix_traffic import SAMPLINGS, Traffic, alone, limits_of

from potluck.scheduling import sequence_cache
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SequenceId

NUM_EVENTS = 400


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("num_blocks", [11, 60])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_random_traffic(
    num_stages: int, num_blocks: int, seed: int, is_on_disk: bool, tmp_path: Path
) -> None:
    """On disk blocks outlive the stages, and there is not room for all."""
    traffic = Traffic(
        limits=limits_of(
            num_blocks=num_blocks, num_stages=num_stages, disk_salt=b"" if is_on_disk else None
        ),
        random=random.Random(f"{num_stages} {num_blocks} {seed}"),
        folder=tmp_path if is_on_disk else None,
    )
    play(traffic)
    totals = traffic.scheduler.load.prefix
    assert totals.num_hits > 10, "or this shows nothing"
    assert is_on_disk or not totals.num_restored_tokens
    assert traffic.stages.num_copies > 0
    if num_blocks == 11:
        assert totals.num_evictions > 10
        assert traffic.num_repeated > 0, "or none was preempted"


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize(("num_blocks", "num_states"), [(11, 5), (60, 8)])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_random_traffic_with_states(
    num_stages: int,
    num_blocks: int,
    num_states: int,
    is_on_disk: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints are made more often than they would be."""
    monkeypatch.setattr(sequence_cache, "LADDER_TOKENS", 48)
    monkeypatch.setattr(sequence_cache, "LEAST_SAVED_TOKENS", 16)
    traffic = Traffic(
        limits=limits_of(
            num_blocks=num_blocks,
            num_stages=num_stages,
            num_states=num_states,
            disk_salt=b"" if is_on_disk else None,
        ),
        random=random.Random(f"states {num_stages} {num_blocks}"),
        folder=tmp_path if is_on_disk else None,
    )
    play(traffic)
    totals = traffic.scheduler.load.prefix
    assert totals.num_checkpoint_hits > 5
    assert totals.num_checkpoint_evictions > 10
    assert traffic.stages.num_state_copies > 10
    assert (totals.num_restored_tokens > 0) is is_on_disk
    assert traffic.scheduler.load.states.num_live == 0


def play(traffic: Traffic) -> None:
    """Play events, and compare what came of them with what each sequence is given alone."""
    limits = traffic.limits
    events = [Traffic.add] * 2 + [Traffic.form] * 8 + [Traffic.complete] * 8
    events.append(Traffic.cancel)
    for number in range(NUM_EVENTS):
        traffic.random.choice(events)(traffic)
        if number % 100 == 99:
            traffic.lose_stages()
    traffic.finish()
    traffic.stages.close()
    for sequence, given in traffic.given.items():
        expected = alone(traffic.requests[sequence], has_state=limits.num_states > 0)
        if sequence in traffic.cancelled:
            expected = expected[: len(given)]
        assert given == expected, sequence
    scheduler = traffic.scheduler
    assert scheduler.load.num_free_blocks == limits.num_blocks
    assert scheduler.load.num_sequences == 0


@pytest.mark.parametrize("num_stages", [1, 2])
def test_stages_that_follow_read_from_disk_what_was_computed(
    num_stages: int, tmp_path: Path
) -> None:
    """Also for a sequence that was live when the stages before were lost."""
    traffic = Traffic(
        limits=limits_of(num_stages=num_stages, disk_salt=b"salt"),
        random=random.Random(0),
        folder=tmp_path,
    )
    prompt = tuple(traffic.prompts[0][:100])

    def ask(tokens: tuple[int, ...]) -> SequenceId:
        request = SequenceRequest(prompt_tokens=tokens, sampling=SAMPLINGS[1], max_new_tokens=40)
        sequence = traffic.scheduler.add(request)
        traffic.requests[sequence] = request
        traffic.given[sequence] = []
        return sequence

    def num_restored() -> int:
        return traffic.scheduler.load.prefix.num_restored_tokens

    first = ask(prompt)
    while len(traffic.given[first]) < 20:
        traffic.form()
        traffic.complete()
    assert num_restored() == 0
    traffic.lose_stages()
    traffic.finish()
    assert num_restored() == 112, "the prompt and what was generated"
    traffic.lose_stages()
    second = ask((*prompt, 5, 6, 7))
    traffic.finish()
    assert num_restored() == 112 + 96
    traffic.stages.close()
    for sequence in (first, second):
        assert traffic.given[sequence] == alone(traffic.requests[sequence])


def test_a_second_turn_is_computed_from_where_it_differs() -> None:
    traffic = Traffic(limits=limits_of(), random=random.Random(0))
    prompt = tuple(traffic.prompts[0][:100])
    for tokens in (prompt, (*prompt, 5, 6, 7)):
        request = SequenceRequest(prompt_tokens=tokens, sampling=SAMPLINGS[0], max_new_tokens=1)
        sequence = traffic.scheduler.add(request)
        traffic.requests[sequence] = request
        traffic.given[sequence] = []
        traffic.finish()
        assert traffic.given[sequence] == alone(request)
    assert traffic.stages.num_tokens == 103
    assert traffic.stages.num_copies == 1
