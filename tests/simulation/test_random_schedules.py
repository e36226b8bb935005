"""Random schedules of crashes, cuts, delays, duplicates, joins and drains on a virtual clock.

Each has a seed, which is named when it fails. ``pytest tests/simulation --seed N`` runs that one
again, and shows what happened in it, line by line; so does ``POTLUCK_SIMULATION_SEED=N``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.history import History
from simulation.schedules import run_random

from potluck.host.child_environment import child_environment

NUM_SCHEDULES = 2000
NUM_IN_GATE = 300
"""Five times as many as find each defect of ``test_checker``; each takes 0.1 s."""

_PER_TEST = 50
_TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < NUM_IN_GATE else pytest.mark.exhaustive)
        for first in range(0, NUM_SCHEDULES, _PER_TEST)
    ],
)
def test_random_schedules(first: int, request: pytest.FixtureRequest) -> None:
    chosen = request.config.getoption("--seed", default=None)
    chosen = chosen or os.environ.get("POTLUCK_SIMULATION_SEED")
    if chosen is not None:
        if first:
            pytest.skip("one schedule is run again")
        history = run_random(int(chosen))
        print(*history.notes, sep="\n")
        assert not history.violations, _failure(int(chosen), history)
        return
    for seed in range(first, first + _PER_TEST):
        history = run_random(seed)
        assert not history.violations, _failure(seed, history)


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    code = (
        "import sys, zlib; from simulation.schedules import run_random; "
        "print([zlib.crc32(repr(run_random(n).notes).encode()) for n in range(8)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=child_environment({"PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": hash_seed}),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def _failure(seed: int, history: History) -> str:
    lines = [f"seed {seed} fails; run it again with: pytest tests/simulation --seed {seed}"]
    return "\n".join([*lines, *history.violations, "", *history.notes])
