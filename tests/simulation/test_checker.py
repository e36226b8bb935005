"""The checks can fail: where a protection is off, schedules find a counterexample."""

from __future__ import annotations

import pytest
from simulation.schedules import run_random
from simulation.stages import Switches, Worker
from simulation.world import World, room_for

from potluck.scheduling.checkpoints import Checkpoint, StatePool
from potluck.scheduling.sequence import SequenceState

_MOST = 200


def find(words: str, switches: Switches | None = None) -> int:
    """The first schedule with a violation of these words."""
    for seed in range(_MOST):
        violations = run_random(seed, switches).violations
        if any(words in violation for violation in violations):
            return seed
    pytest.fail(f"{_MOST} schedules go well without it")


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        (Switches(has_fencing=False), "after it has obeyed"),
        (Switches(has_idempotence=False), "twice"),
        (Switches(has_ledger=False), "never ends"),
    ],
    ids=("fencing", "idempotence", "ledger"),
)
def test_random_schedules_notice_what_is_off(switches: Switches, words: str) -> None:
    seed = find(words, switches)
    assert not run_random(seed).violations


def test_random_schedules_notice_if_the_last_stage_is_not_told_of_a_sequence_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restart = SequenceState.restart

    def without_opening(sequence: SequenceState) -> None:
        was_opened = sequence.is_opened
        restart(sequence)
        sequence.is_opened = was_opened

    with monkeypatch.context() as patch:
        patch.setattr(SequenceState, "restart", without_opening)
        seed = find("is given")
    assert not run_random(seed).violations


def test_random_schedules_notice_if_the_last_stage_is_not_told_what_was_generated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening = SequenceState.opening

    def empty_opening(sequence: SequenceState) -> object:
        original = opening(sequence)
        return type(original)(
            sequence_id=original.sequence_id,
            sampling=original.sampling,
            prompt_tokens=original.prompt_tokens,
        )

    with monkeypatch.context() as patch:
        patch.setattr(SequenceState, "opening", empty_opening)
        seed = find("is given")
    assert not run_random(seed).violations


def test_random_schedules_notice_if_sequences_share_a_state_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = StatePool.take

    def always_the_first(pool: StatePool, source: Checkpoint | None) -> int:
        take(pool, source)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(StatePool, "take", always_the_first)
        seed = find("is given")
    assert not run_random(seed).violations


def test_random_schedules_notice_if_a_wrong_draft_is_taken_for_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "is_reached", lambda *_: True)
        seed = find("is given")
    assert not run_random(seed).violations


@pytest.mark.parametrize("has_quorum", [True, False])
def test_without_a_quorum_a_node_that_was_cut_off_beats_the_others(*, has_quorum: bool) -> None:
    switches = Switches(has_quorum=has_quorum)
    with World(1, [room_for(3), room_for(3), room_for(6)], switches=switches) as world:
        world.start(1, 2)
        world.run(1.0)
        world.deploy(1)
        world.start(3)
        world.run(2.0)
        before = world.epoch
        world.cut_between([3], [1, 2])
        world.run(8.0)
        world.heal_between([3], [1, 2])
        world.end()
        assert (world.epoch == before) is has_quorum
