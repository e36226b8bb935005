"""The checks can fail: where a protection is off, random schedules find a counterexample."""

from __future__ import annotations

import pytest
from simulation.schedules import run_random
from simulation.stages import Switches
from simulation.world import World, room_for

_MOST = 200


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        (Switches(has_fencing=False), "after it has obeyed"),
        (Switches(has_idempotence=False), "twice"),
        (Switches(has_ledger=False), "is given"),
    ],
    ids=("fencing", "idempotence", "ledger"),
)
def test_random_schedules_notice_what_is_off(switches: Switches, words: str) -> None:
    for seed in range(_MOST):
        violations = run_random(seed, switches).violations
        if any(words in violation for violation in violations):
            assert not run_random(seed).violations
            return
    pytest.fail(f"{_MOST} schedules go well without it")


@pytest.mark.parametrize("has_quorum", [True, False])
def test_without_a_quorum_a_node_that_was_cut_off_beats_the_others(*, has_quorum: bool) -> None:
    with World(
        1, [room_for(6), room_for(6), room_for(6)], switches=Switches(has_quorum=has_quorum)
    ) as world:
        world.start_all()
        before = world.epoch
        world.cut_between([3], [1, 2])
        world.run(8.0)
        world.heal_between([3], [1, 2])
        world.end()
        assert (world.epoch == before) is has_quorum
